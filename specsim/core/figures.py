"""Numbers in sentences and tables, by one rule for all of them."""


def figures(value: float, digits: int = 4) -> str:
    """Return a number to so many significant digits, all whole ones among them: 0.1235, 12,346."""
    if abs(value) >= 10**digits - 0.5:
        return f"{value:,.0f}"
    return f"{value:,.{digits}g}"


def percent(share: float, digits: int = 1, *, sign: bool = False) -> str:
    """Return a share in percent: 41.4 %, or with its sign, +41.4 %."""
    return f"{share:{'+' if sign else ''}.{digits}%}".replace("%", " %")
