"""Fitting acceptance models to recorded acceptance, and measuring how well they do.

Read `decoding` (what decoding a record step by step gives, and how far two such are apart), then
`fits`, and `study` (all of it, on one half and the other).
"""

from specsim.reality.acceptance_fit.decoding import Decoded, Distances, Twin, decode
from specsim.reality.acceptance_fit.fits import FITS
from specsim.reality.acceptance_fit.halves import (
    AcceptanceFit,
    Records,
    fields,
    fit_acceptance,
    load_records,
    split_halves,
)

__all__ = [
    "FITS", "AcceptanceFit", "Decoded", "Distances", "Records", "Twin", "decode", "fields",
    "fit_acceptance", "load_records", "split_halves",
]  # fmt: skip
