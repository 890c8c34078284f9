"""Arrays in a temporary file, for what would not fit into memory."""

import tempfile
import weakref
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from specsim.core.errors import ConfigError


class ArrayFile:
    """A temporary file of arrays, made when it is first needed, which goes with this object.

    Args:
        what: Is stored there, for an error, with its verb: "the steps do".
        option: Leaves that out.
    """

    def __init__(self, what: str, option: str) -> None:
        self._what, self._option = what, option
        self._file: IO[bytes] | None = None
        self._size = 0

    @property
    def is_used(self) -> bool:
        """Whether there is a file."""
        return self._file is not None

    def append(self, rows: NDArray[Any]) -> int:
        """Write an array; return where it begins, bytes. A ConfigError if that fails."""
        start = self._size
        try:
            self.write(rows)
        except OSError as error:
            raise ConfigError(
                f"{tempfile.gettempdir()}: {self._what} not fit there: "
                f"{error.strerror or error}; set TMPDIR to another folder, or leave them out "
                f"({self._option})"
            ) from error
        return start

    def write(self, rows: NDArray[Any]) -> None:
        if self._file is None:
            self._file = file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - lives as long
            weakref.finalize(self, file.close)
        left = np.ascontiguousarray(rows).view(np.uint8).data
        self._size += len(left)
        while left:  # an unbuffered file may take less than all
            left = left[self._file.write(left) :]

    def read(self, start: int, kind: np.dtype[Any], count: int) -> NDArray[Any]:
        """Return so many elements from some byte on."""
        if not count:
            return np.zeros(0, dtype=kind)
        assert self._file is not None
        self._file.seek(start)
        rows: NDArray[Any] = np.fromfile(self._file, dtype=kind, count=count)
        self._file.seek(0, 2)  # where the next array goes
        assert len(rows) == count
        return rows
