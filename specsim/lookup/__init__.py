"""Lookups: drafting without a model, from text that has been seen.

Each module holds one lookup, the token-level mode of a proposer: real token ids in, real drafts
out. Their inner loops are compiled by numba, which takes longer to import than a short run takes;
so a lookup is imported when the first run asks for it, by `load`.
"""

from collections.abc import Callable
from importlib import import_module

from specsim.lookup.base import Draft, KnownTexts, Lookup

__all__ = ["Draft", "KnownTexts", "Lookup", "load"]


def load(module: str, name: str) -> Callable[..., Lookup]:
    """Return a class of this package, such as ``ngram``, ``NgramLookup``, imported now."""
    lookup: Callable[..., Lookup] = getattr(import_module(f"{__name__}.{module}"), name)
    return lookup
