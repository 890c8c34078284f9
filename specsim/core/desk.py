"""Desks: reusable sets of arrays that the loops of policies and acceptance models work on.

Where numpy is slow, a loop is a plain function over arrays (`specsim.core.compiled`): it allocates
nothing, raises nothing and adds in the order of its source, so that it returns the same bits,
compiled or not. The numbers of a step are copied to the desk; other arrays keep their values from
step to step. Tables of a step, such as a gain for each token of each draft, are flattened row by
row, with their dimensions in the field `sizes`.
"""

from collections.abc import Callable, Mapping, Sequence
from threading import local
from typing import Annotated, Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from specsim.core.compiled import HOOK, Hook, Loop, Pointers, check_array, types_of
from specsim.core.settings import nearest

Ints = Annotated[NDArray[np.int64], 1]
Floats = Annotated[NDArray[np.float64], 1]
Flags = Annotated[NDArray[np.bool_], 1]
ByteRows = Annotated[NDArray[np.uint8], 2]
Singles = Annotated[NDArray[np.float32], 1]
ShortRows = Annotated[NDArray[np.int16], 2]
FloatRows = Annotated[NDArray[np.float64], 2]
Arrays = TypeVar("Arrays")


def loop_on(arrays: type, *rooms: str) -> Callable[[Callable[[Any], int]], Loop]:
    """Return a decorator that makes a function a `Loop` on `arrays`; `rooms` are as for `Loop`."""

    def loop(function: Callable[[Any], int]) -> Loop:
        module = function.__module__
        name = f"{module.split('.')[1]}-{module.rpartition('.')[2]}"
        return Loop(function, types_of(arrays), name=name, rooms=(module, __name__, *rooms))

    return loop


class PerRequest:
    """A number, or a row of a given shape, for every request, in an array that grows."""

    def __init__(self, initial: float, *shape: int, dtype: type = np.float64) -> None:
        self._initial = initial
        self.values: NDArray[Any] = np.full((1024, *shape), initial, dtype=dtype)

    def up_to(self, requests: Ints) -> NDArray[Any]:
        """Return the values by request index, enlarged to cover `requests`; valid until then."""
        needed = int(np.maximum.reduce(requests)) + 1 if len(requests) else 0
        if needed > len(self.values):
            size = max(needed - len(self.values), len(self.values))
            shape = (size, *self.values.shape[1:])
            more = np.full(shape, self._initial, dtype=self.values.dtype)
            self.values = np.concatenate([self.values, more])
        return self.values

    def become(self, dtype: DTypeLike) -> None:
        """Change the element type, if that can hold the initial value."""
        if np.array(self._initial).astype(dtype) == self._initial:
            self.values = self.values.astype(dtype, copy=False)

    def forget(self, request: int) -> None:
        """Reset a request to the initial value, since its index will be used again."""
        if request < len(self.values):
            self.values[request] = self._initial

    def of(self, requests: Ints) -> NDArray[Any]:
        values: NDArray[Any]
        try:
            values = self.values[requests]
        except IndexError:
            values = self.up_to(requests)[requests]
        return values


class Desk(Generic[Arrays]):
    """A tuple of arrays, enlarged where a step needs more room, with the loops on it.

    Args:
        kind: The `NamedTuple` class.
        *loops: Loops on its arrays.
        **given: Values of fields: an array to keep, a `PerRequest`, the shape of an array of zeros,
            a `Hook`, or another desk as a part. All other fields are zeros with room for a step. A
            part's field named like one given before it is the same array.
    """

    def __init__(
        self,
        kind: type[Arrays],
        *loops: Loop,
        **given: "NDArray[Any] | PerRequest | int | tuple[int, ...] | Hook | Desk[Any]",
    ) -> None:
        self._kind: Any = kind
        self._loops, self._given = loops, given
        self._types = loops[0].types if loops else types_of(cast("type", kind))
        for field, value in given.items():
            self._check(field, value)
        self._room = -1
        self._arrays: Any
        self._pointers: Pointers
        self._runs: Sequence[Callable[[], int]] | None = None

    def _check(self, field: str, given: Any) -> None:
        """Raise a TypeError if `given` does not fit the type of the field."""
        kind = self._types.get(field)
        if kind is None:
            raise TypeError(f"no field '{field}'; {nearest(field, list(self._types))}")
        if not isinstance(kind, tuple):
            return
        if isinstance(given, PerRequest):
            given.become(kind[0])
            given = given.values
        if isinstance(given, np.ndarray):
            check_array(field, given, *kind)
        elif len(np.broadcast_shapes(given)) != kind[1]:  # raises if `given` is not a shape
            raise TypeError(f"shape {given} of '{field}' must have {kind[1]} axes")

    @property
    def runs(self) -> Sequence[Callable[[], int]]:
        """The loops on the arrays that `fit` returned last, compiled when first asked for."""
        if self._runs is None:
            self._runs = [loop.bind(self._pointers) for loop in self._loops]
        return self._runs

    def fit(self, num: int) -> Arrays:
        """Return the arrays, with room for `num` + 1 numbers."""
        if num > self._room:
            self._make(num, None, {})
        return self.arrays

    def made(self, num: int, requests: Ints, shared: Mapping[str, Any]) -> Pointers:
        """Return pointers to arrays made with room for `num` numbers and for `requests`.

        Fields in `shared` are taken from there.
        """
        self._make(num, requests, shared)
        return self._pointers

    @property
    def arrays(self) -> Arrays:
        arrays: Arrays = self._arrays
        return arrays

    def _make(self, num: int, requests: Ints | None, shared: Mapping[str, Any]) -> None:
        if num > self._room:
            self._room = num + num // 2
        made: dict[str, Any] = {}
        parts: dict[str, Any] = {}
        for field, kind in self._types.items():
            given = self._given.get(field, shared.get(field, max(self._room + 1, 8)))
            if isinstance(given, Desk):
                given._make(num, requests, {**shared, **made})
                made[field], parts[field] = given._arrays, given._pointers
                continue
            if isinstance(given, Pointers):
                made[field], parts[field] = given.arrays, given
                continue
            if kind == HOOK:
                made[field] = self._given.get(field)
                continue
            if isinstance(given, PerRequest):
                given = given.values if requests is None else given.up_to(requests)
            if not isinstance(given, np.ndarray):
                assert isinstance(kind, tuple)
                given = np.zeros(given, kind[0])
            made[field] = given
        self._arrays = self._kind(**made)
        self._pointers = Pointers(self._kind(**{**made, **parts}), self._types)
        self._runs = None


class LocalDesk(Desk[Arrays], local):
    """A desk with separate arrays in each thread; arrays that are kept may only be read."""
