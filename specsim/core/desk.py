"""Desks: the arrays that the inner loops of policies, and of drafters' luck, work on.

Where numpy has no quick way, a loop is a plain function over arrays (`specsim.core.compiled`): it
allocates nothing, raises nothing and adds up in the order that the text says, so that it returns
the same bits, compiled or not. What it is to know of a step is copied to a desk, where other arrays
last. Tables of a step, such as a gain for each token of each draft, are one row after the other;
`sizes` says how many of it all there are.
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
    """Make a function a loop on such arrays; `rooms` besides its module and this one."""

    def loop(function: Callable[[Any], int]) -> Loop:
        module = function.__module__
        name = f"{module.split('.')[1]}-{module.rpartition('.')[2]}"
        return Loop(function, types_of(arrays), name=name, rooms=(module, __name__, *rooms))

    return loop


class PerRequest:
    """A number, or a row of some shape, for every request, in an array that grows."""

    def __init__(self, initial: float, *shape: int, dtype: type = np.float64) -> None:
        self._initial = initial
        self.values: NDArray[Any] = np.full((1024, *shape), initial, dtype=dtype)

    def up_to(self, requests: Ints) -> NDArray[Any]:
        """Return the values of all requests, at least of these; good until it is asked again."""
        needed = int(np.maximum.reduce(requests)) + 1 if len(requests) else 0
        if needed > len(self.values):
            size = max(needed - len(self.values), len(self.values))
            shape = (size, *self.values.shape[1:])
            more = np.full(shape, self._initial, dtype=self.values.dtype)
            self.values = np.concatenate([self.values, more])
        return self.values

    def become(self, dtype: DTypeLike) -> None:
        """Hold numbers of another type, if the first one is one."""
        if np.array(self._initial).astype(dtype) == self._initial:
            self.values = self.values.astype(dtype, copy=False)

    def forget(self, request: int) -> None:
        """Know nothing of a request any more; its index is another's from now on."""
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
    """A tuple of arrays, made anew where a step needs more room, and the loops on it.

    Args:
        kind: The tuple.
        *loops: Those on it.
        **given: Fields that are not zeros with room for a step: arrays that last, what is known
            `PerRequest`, the shape of zeros of another size, a hook, or another desk. Of such a
            part, what has the name of a field before it is that field.
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
        """Raise a TypeError for what no array of the field can be made of."""
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
        elif len(np.broadcast_shapes(given)) != kind[1]:  # refuses what is no shape
            raise TypeError(f"shape {given} of '{field}' must have {kind[1]} axes")

    @property
    def runs(self) -> Sequence[Callable[[], int]]:
        """The loops on the arrays that `fit` returned last, compiled when first asked for."""
        if self._runs is None:
            self._runs = [loop.bind(self._pointers) for loop in self._loops]
        return self._runs

    def fit(self, num: int) -> Arrays:
        """Return arrays with room for one more than so many numbers."""
        if num > self._room:
            self._make(num, None, {})
        return self.arrays

    def made(self, num: int, requests: Ints, shared: Mapping[str, Any]) -> Pointers:
        """Return pointers to arrays with room for that and so many requests, some of them given."""
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
    """A desk of which every thread has its own; what lasts there is only read."""
