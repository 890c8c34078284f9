"""Numbers in sentences and tables, by one rule for all of them."""


def figures(value: float, digits: int = 4) -> str:
    """Return a number to so many significant digits, all whole ones among them: 0.1235, 12,346."""
    if abs(value) >= 10**digits - 0.5:
        return f"{value:,.0f}"
    return f"{value:,.{digits}g}"
