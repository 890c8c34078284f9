"""One colour and one marker per policy, the same in every chart, on the page and on paper.

Chosen so that any two stay apart in normal vision, protanopia, deuteranopia and tritanopia (OKLab
distance of at least 0.07, after Machado, Oliveira and Fernandes 2009), at a contrast of at least
3 to the background. The marker says the same once more, for print without colour.
"""

from typing import NamedTuple


class Style(NamedTuple):
    """How a policy is drawn."""

    light: str
    """Colour on a light background."""
    dark: str
    """Colour on a dark background, of the same hue."""
    symbol: str
    """Marker, in plotly's words."""


BASELINE = Style("#3b424c", "#c6ccd6", "circle")
"""No speculation: grey, because all else is compared with it."""

_COLOURS = (
    ("#4c6ec8", "#84a7fd"),
    ("#c48326", "#fbbe73"),
    ("#7b1b79", "#b555b1"),
    ("#921502", "#cf5440"),
    ("#1c40bc", "#4b7afa"),
    ("#ac5d1a", "#e89458"),
    ("#864e7a", "#be83b1"),
)
_SYMBOLS = (
    *("square", "diamond", "triangle-up", "cross", "triangle-down", "pentagon", "x", "hexagon"),
    *("star", "triangle-left", "triangle-right"),
)


def styles(is_baseline: list[bool]) -> list[Style]:
    """Return the style of each policy; markers differ where colours repeat, up to 77 policies.

    Args:
        is_baseline: Whether each policy is no speculation.
    """
    found, used = [], 0
    for baseline in is_baseline:
        if baseline:
            found.append(BASELINE)
            continue
        colour = _COLOURS[used % len(_COLOURS)]
        found.append(Style(*colour, _SYMBOLS[used % len(_SYMBOLS)]))
        used += 1
    return found
