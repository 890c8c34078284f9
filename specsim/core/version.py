"""The version of specsim, written into every result; pyproject.toml reads it from here."""

__version__ = "0.1.0"
