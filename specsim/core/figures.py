"""Numbers in sentences and tables, by one rule for all of them."""

from math import isclose, isnan


def figures(value: float, digits: int = 4) -> str:
    """Return a number to so many significant digits, all whole ones among them: 0.1235, 12,346."""
    if abs(value) >= 10**digits - 0.5:
        return f"{value:,.0f}"
    return f"{value:,.{digits}g}"


def percent(share: float, digits: int = 1, *, sign: bool = False) -> str:
    """Return a share in percent: 41.4 %, or signed, +41.4 %; ``-`` of what has none.

    What rounds to 0 has no minus.
    """
    if isnan(share):
        return "-"
    plus = "+" if sign else ""
    text = f"{share:{plus}.{digits}%}".replace("%", " %")
    return text if text.strip("-0. %") else text.replace("-", plus)


_MOST_DIGITS = 6


def digits_beside(limit: float, share: float) -> int:
    """Return the decimals with which `percent` shows a limit as it is, and a share on its side.

    The share's sign does not count. At least one.
    """
    for digits in range(1, _MOST_DIGITS):
        most, size = (round(100 * abs(each), digits) for each in (limit, share))
        if isclose(most, 100 * limit) and (size > most) == (abs(share) > limit):
            return digits
    return _MOST_DIGITS
