"""Randomness that is indexed, not drawn in sequence.

Whether the draft token at output position `p` of request `r` survives is a pure function of
(seed, stream, r, p). No policy, schedule or process count can shift it, so every run with one seed
meets the same luck (common random numbers), and paired differences have small error bars.

The function is a chain of SplitMix64 finalizers (Steele, Lea, Flood 2014, "Fast Splittable
Pseudorandom Number Generators"), the one with which the recorded vLLM schedules of the parity
tests were scripted, so that parity runs go through the same code as every other run. Lengths and
arrivals, which no policy can influence, come from ordinary numpy generators, one per name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_TO_UNIT = 2.0**-53
# The same as numpy scalars: making them anew at every call would cost as much as using them.
_ADD, _MUL_1, _MUL_2 = np.uint64(_GOLDEN), np.uint64(_MIX_1), np.uint64(_MIX_2)
_SHIFT_1, _SHIFT_2, _SHIFT_3, _SHIFT_4 = map(np.uint64, (30, 27, 31, 11))


def splitmix64(x: int) -> int:
    """Return the SplitMix64 hash, in [0, 2**64), of an integer modulo 2**64."""
    z = (x + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return z ^ (z >> 31)


def indexed_hash(seed: int, stream: int, request: int, position: int) -> int:
    """Return the hash, in [0, 2**64), of four integers modulo 2**64."""
    return splitmix64(splitmix64(splitmix64(splitmix64(seed) ^ stream) ^ request) ^ position)


def indexed_hashes(
    seed: int, stream: int, requests: Sequence[int], counts: Sequence[int]
) -> NDArray[np.uint64]:
    """Return `indexed_hash` of the first positions of several requests, end to end."""
    return _finalized(_keys(seed, stream, requests, counts))


def _keys(
    seed: int, stream: int, requests: Sequence[int], counts: Sequence[int]
) -> NDArray[np.uint64]:
    lengths = np.array(counts, dtype=np.int64)
    prefix = splitmix64(splitmix64(seed) ^ stream)
    prefixes = _finalized(np.array(requests, dtype=np.uint64) ^ np.uint64(prefix))
    z = np.arange(lengths.sum(), dtype=np.uint64)
    z -= np.repeat((lengths.cumsum() - lengths).astype(np.uint64), lengths)
    z ^= np.repeat(prefixes, lengths)
    return z


def _uniform(keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return numbers in [0, 1); changes the keys."""
    return (_finalized(keys) >> _SHIFT_4).astype(np.float64) * _TO_UNIT


def _finalized(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return `splitmix64` of each element; changes the array in place."""
    z += _ADD
    z ^= z >> _SHIFT_1
    z *= _MUL_1
    z ^= z >> _SHIFT_2
    z *= _MUL_2
    z ^= z >> _SHIFT_3
    return z


def stream_id(*names: str) -> int:
    """Return the stream number, in [0, 2**64), of a purpose such as ``"acceptance", "eagle3"``."""
    return int.from_bytes(blake2b("/".join(names).encode(), digest_size=8).digest(), "little")


def normals(uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return standard normal numbers, all finite, in place of numbers in [0, 1)."""
    from scipy.special import ndtri

    return np.asarray(ndtri(np.maximum(uniforms, 2.0**-54)))


def generator(seed: int, *names: str) -> np.random.Generator:
    """Return a numpy generator for one named purpose; other names give independent ones."""
    return np.random.Generator(np.random.PCG64([seed, stream_id(*names)]))


@dataclass(frozen=True, slots=True)
class Luck:
    """The indexed uniform numbers of one purpose; the only randomness a run sees."""

    seed: int
    stream: int

    def uniforms(self, requests: Sequence[int], counts: Sequence[int]) -> NDArray[np.float64]:
        """Return the numbers of the first positions of several requests, end to end.

        Position `p` of request `r` is a function of (seed, stream, r, p) alone, in [0, 1); the
        result has shape (sum(counts),). Seed and stream are taken modulo 2**64.
        """
        return _uniform(_keys(self.seed, self.stream, requests, counts))

    def per_request(self, requests: Sequence[int]) -> NDArray[np.float64]:
        return self.uniforms(requests, [1] * len(requests))

    def renewed(
        self,
        requests: Sequence[int],
        counts: Sequence[int],
        mean_len: float,
        turned: Callable[[NDArray[np.float64]], NDArray[np.float64]] = np.asarray,
    ) -> NDArray[np.float64]:
        """Return numbers as `uniforms` does that stay for a while along each request.

        At every position the number is drawn anew with probability 1 / mean_len (at least 1),
        independently of all before, and stays as it was otherwise. `turned` makes others of those
        that are drawn, each for itself.
        """
        is_drawn = self.child("renewal").uniforms(requests, counts) < 1 / mean_len
        is_drawn[np.cumsum(counts) - counts] = True
        drawn = _uniform(_keys(self.seed, self.stream, requests, counts)[is_drawn])
        return np.repeat(turned(drawn), np.diff(np.flatnonzero(np.append(is_drawn, True))))

    def child(self, name: str) -> "Luck":
        """Return luck for another purpose of the same model, independent of this one."""
        return Luck(self.seed, splitmix64(self.stream ^ stream_id(name)))
