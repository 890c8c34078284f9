"""What the hardware of a study costs."""

from collections.abc import Mapping
from dataclasses import replace

from specsim.core.errors import SpecsimError
from specsim.profile import load_profile
from specsim.show.report.study import Study

__all__ = ["with_prices"]


def with_prices(
    study: Study, per_gpu_hour: Mapping[str, float], *, currency: str, date: str
) -> Study:
    """Return a study that knows what a replica costs on each hardware.

    Args:
        per_gpu_hour: By GPU, named as in ``profiles/<gpu>.yaml``.
        date: When these prices held.

    Returns:
        Without a price for hardware whose profile is not at hand, or whose GPU is not in the table.
    """
    prices = {}
    for label, name in zip(study.axes[0].labels, study.profiles, strict=True):
        try:
            profile = load_profile(name)
        except SpecsimError:  # the results may come from another computer
            continue
        price = per_gpu_hour.get(profile.gpu)
        if price is not None:
            prices[label] = price * profile.tensor_parallel_size
    return replace(study, prices=prices, currency=currency, price_date=date)
