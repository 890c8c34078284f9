from collections.abc import Iterator
from math import expm1

from readme import read

from specsim.core.figures import percent


def servers() -> Iterator[list[str]]:
    """Each server, by what others were off by."""
    yield ["server", "loads", "typically slower by", "stated, either way", "inside"]
    for row in read("model-error/servers.csv", role="left out"):
        off, half = (expm1(float(row[name])) for name in ("typical_error", "half_width"))
        inside = ("no", "yes")[int(row["inside"])]
        name = row["server"].removesuffix("_sxm")
        yield [name, row["loads"], percent(off, sign=True), percent(half), inside]
