from collections.abc import Iterator

import yaml
from readme import HERE, read


def experiments() -> Iterator[list[str]]:
    """Of the page beside this file."""
    yield ["experiment", "CPU minutes", "data", "last run with", "on"]
    known = yaml.safe_load((HERE / "experiments.yaml").read_text(encoding="utf-8"))["again"]
    stamps = {row["experiment"]: row for row in read("stamps.csv")}
    for name, each in known.items():
        title = (HERE / name / "README.md").read_text(encoding="utf-8").splitlines()[0][2:]
        stamp = stamps.get(name)
        made = f"{stamp['version']} ({stamp['commit'][:8]})" if stamp else "before stamps"
        places = sorted({file.partition("/")[0] for file in each.get("data", [])})
        yield [
            f"[{name}]({name}): {title}",
            f"{each['cpu_minutes']:g}" + (" *" if "by_name" in each else ""),
            *(", ".join(places), made, stamp["date"] if stamp else ""),
        ]
