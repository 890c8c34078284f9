"""The version of specsim, written into every result; pyproject.toml reads it from here."""

from importlib.metadata import PackageNotFoundError, metadata

__version__ = "0.1.0"

DISTRIBUTION = "llm-specsim"
"""Its name on PyPI; `specsim` there is another project, which uses the same package name."""
_SUMMARY = "A discrete-event simulator of LLM serving with speculative decoding"


def foreign() -> str | None:
    """Return what is wrong if the other project `specsim` is installed here, else None."""
    try:
        found = metadata("specsim")
    except PackageNotFoundError:
        return None
    if found["Summary"] == _SUMMARY:  # ours, from before it was renamed
        return None
    return (
        f"another project is installed here under the name specsim (version {found['Version']}), "
        f"and its files take the place of ours; pip uninstall specsim, then pip install "
        f"--force-reinstall {DISTRIBUTION}"
    )
