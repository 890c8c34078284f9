"""Prices: what an hour of a GPU costs, from a dated table."""

import datetime
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, field_validator

from specsim.core.errors import ConfigError
from specsim.core.settings import Settings, load_mapping, validated

__all__ = ["Prices"]

_EXAMPLES = Path(__file__).with_name("prices.yaml")


class Prices(Settings):
    """Prices of GPUs."""

    date: str
    """When they held."""
    source: str
    currency: str = Field(default="USD", min_length=1)
    per_gpu_hour: dict[str, Annotated[float, Field(gt=0)]]
    """By GPU, named as in ``profiles/<gpu>.yaml``."""

    @field_validator("date", mode="before")
    @classmethod
    def _as_text(cls, date: Any) -> Any:
        # Without quotes, 2026-11-21 is a date to YAML.
        return date.isoformat() if isinstance(date, datetime.date) else date

    @classmethod
    def load(cls, path: Path | None) -> Self:
        """Return a table of prices.

        Args:
            path: A YAML file; None: the examples that specsim ships.

        Raises:
            ConfigError: The file cannot be read, or a field is missing or wrong.
        """
        path = path or _EXAMPLES
        with validated(str(path), ConfigError):
            return cls.model_validate(load_mapping(path, ConfigError))
