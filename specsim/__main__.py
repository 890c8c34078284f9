"""Entry point: ``specsim`` and ``python -m specsim``."""

import os
import signal
import sys
from collections.abc import Callable
from io import BufferedWriter, FileIO, TextIOWrapper
from itertools import pairwise
from types import TracebackType
from typing import Any

from specsim.core.errors import SpecsimError
from specsim.core.surroundings import ENDS, WORKING_FOLDER_GONE, taken_here, working_folder
from specsim.core.version import foreign

_ANYWHERE = ("--debug", "--force", "--large")
"""Options of all commands, which may also follow the command."""


def _run(app: Callable[..., object]) -> int:
    """Run the command line; return its exit code, after one line for a wrong option."""
    try:
        code = app(prog_name="specsim", standalone_mode=False)
    except Exception as error:
        if type(error).__name__ == "Abort":  # Ctrl-C or Ctrl-D at a question
            sys.stderr.write("\n")
            return 130
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError" and hasattr(error, "show"):
            error.show()  # its message is the help
            return 2
        context = getattr(error, "ctx", None) or _context_of(error.__traceback__)
        command = f"{context.command_path}: " if context is not None else ""
        text = " ".join(error.format_message().split()).rstrip(".").replace("Value error, ", "")
        sys.stderr.write(f"error: {command}{text}; see --help\n")
        return 2
    return code if isinstance(code, int) else 0


def _context_of(place: TracebackType | None) -> Any:
    """Return the context of the command that failed, which some errors of options lack."""
    found = None
    while place is not None:
        found = place.tb_frame.f_locals.get("ctx", found)
        place = place.tb_next
    return found


def _end(number: int, frame: object) -> None:
    """Exit with cleanup of processes and unfinished files; a second signal kills at once."""
    signal.signal(number, signal.SIG_DFL)
    sys.exit(128 + number)


def _open_closed_streams() -> None:
    """Connect standard streams that are closed (`>&-`) to the null device.

    The order gives them their own file numbers, which files opened later would get otherwise.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


class _Remarks(FileIO):
    """Standard error that ignores a full disk or a closed pipe, so that commands go on."""

    def write(self, data: Any, /) -> int:
        """Return how much was written, or would have been."""
        try:
            return super().write(data) or 0
        except OSError:
            return memoryview(data).nbytes


def _bear_full_stderr() -> None:
    stream = sys.stderr
    if stream is sys.__stderr__ and isinstance(stream, TextIOWrapper):
        raw = _Remarks(stream.fileno(), "w", closefd=False)
        sys.stderr = TextIOWrapper(
            BufferedWriter(raw), stream.encoding, stream.errors, line_buffering=True
        )


def main() -> None:
    """Run the command line; an error of specsim is one line and exit code 2."""
    _open_closed_streams()
    _bear_full_stderr()
    for number in ENDS:
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup has SIGHUP ignored
            signal.signal(number, _end)
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda word: word not in _ANYWHERE)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # names of files may hold anything
    try:
        _check_out(sys.argv)
        sys.exit(_run(_app()))
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        text = _explained(error) or taken_here()
        if text is None or "--debug" in sys.argv:
            raise
        for line in text.splitlines() or [type(error).__name__]:
            sys.stderr.write(f"error: {line:.2000}\n")
        if isinstance(error, OSError):
            sys.stdout = None  # what it still holds would fail again
        sys.exit(2)


def _check_out(words: list[str]) -> None:
    """Raise a SpecsimError if `--out` is empty: results would go to the working directory."""
    if "--out=" in words or ("--out", "") in pairwise(words):
        raise SpecsimError("--out: is empty, as a variable is that was not set; name a place")


def _app() -> Callable[..., object]:
    try:
        from specsim.cli import app_of
    except ImportError as error:
        if (why := foreign()) is None:
            raise
        raise SpecsimError(f"{why} ({error})") from error
    return app_of(sys.argv[1:])


def _explained(error: Exception) -> str | None:
    """Return the error message of an exception; None if it is a bug."""
    if isinstance(error, SpecsimError):
        return str(error)
    if isinstance(error, RecursionError):
        return "a value is nested too deeply; make it flatter"
    if isinstance(error, MemoryError):
        return f"out of memory: {error}; simulate fewer requests at a time"
    if isinstance(error, FileNotFoundError) and not error.filename and working_folder() is None:
        return WORKING_FOLDER_GONE
    if isinstance(error, OSError):  # of standard output; commands report their own files
        return f"{error.filename or 'output'}: {error.strerror or error}"
    return _explained_value(error)


def _explained_value(error: Exception) -> str | None:
    """Return the error message of a value that no command checked; None if it is a bug."""
    if isinstance(error, UnicodeEncodeError):  # a file's name that is no text
        return f"{error.object!a:.200}: cannot be written as {error.encoding}; name it in UTF-8"
    if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop from"):
        return f"{str(error)[len('Symlink loop from ') :]} is a link to itself; name a file"
    if type(error).__name__ == "ValidationError":
        from specsim.core.settings import told_problems

        return "\n".join(told_problems(error))
    return None


if __name__ == "__main__":
    main()
