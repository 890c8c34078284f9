"""Changes of what is valid: of values, of bytes, of files."""

import copy
import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

from fuzz_values import FRAGMENTS, NASTY


def put(config: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted field."""
    *parents, name = path.split(".")
    for parent in parents:
        config = config.setdefault(parent, {})
    config[name] = value


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) in some nested values."""
    found: list[tuple[Any, Any]] = []
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in inside:
        found.append((value, key))
        if isinstance(each, dict | list):
            found += places(each)
    return found


def mutated(value: Any, rng: random.Random) -> Any:
    """Return nested values with one to three of them replaced, left out or added."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2))):
        spots = places(value)
        if not spots:
            break
        holder, key = rng.choice(spots)
        action = rng.random()
        number = holder[key]
        is_small = isinstance(number, int | float) and abs(number) < 2**70
        if is_small and rng.random() < 0.6:
            holder[key] *= rng.choice((-1, 0, 0.5, 2, 3, 10, 1000, 1e9, 1e-9))
            if isinstance(holder[key], float) and holder[key].is_integer():
                holder[key] = int(holder[key])
        elif action < 0.7:
            holder[key] = copy.deepcopy(rng.choice(NASTY))
        elif action < 0.8:
            del holder[key]
        elif action < 0.9:
            holder[key] = _reshaped(number, rng)
        elif isinstance(holder, dict):
            holder[rng.choice(("x", "", "kind", "seed", "1"))] = copy.deepcopy(rng.choice(NASTY))
    return value


def _reshaped(value: Any, rng: random.Random) -> Any:
    """Return a value of another form: in a list, as text, without its list, one of it twice."""
    forms = [[value], {"x": value}, str(value)[:5000] if not isinstance(value, int) else "7"]
    if isinstance(value, list) and value:
        forms += [value[0], [*value, value[-1]], value[::-1], value * 3]
    if isinstance(value, dict) and value:
        forms += [list(value), list(value.values()), {name: value for name in value}]
    return copy.deepcopy(rng.choice(forms))


def torn(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with some of them changed, left out or added."""
    for _ in range(rng.choice((1, 1, 1, 2))):
        at = rng.randrange(len(data) + 1)
        action = rng.random()
        if action < 0.3:
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        elif action < 0.5:
            data = data[:at] + rng.choice(FRAGMENTS) + data[at:]
        elif action < 0.65:
            data = data[:at]
        elif action < 0.8:
            data = data[:at] + data[at + rng.randrange(1, 40) :]
        else:
            word = str(rng.choice(NASTY))[:5000].encode("utf-8", "replace")
            data = data[:at] + word + data[at:]
    return data


def as_json(value: Any) -> bytes:
    """Return values as JSON, or as near to it as they come."""
    try:
        return json.dumps(value).encode()
    except ValueError:
        return b'{"prompt_len": ' + b"9" * 5000 + b"}"


def nudged(value: Any, rng: random.Random) -> Any:
    """Return values of which one to four are others of their kind, so that most remain valid."""
    value = copy.deepcopy(value)
    spots = [spot for spot in places(value) if not isinstance(spot[0][spot[1]], str | dict | None)]
    for holder, key in rng.choices(spots, k=rng.choice((1, 1, 2, 4))) if spots else ():
        held = holder[key]
        if isinstance(held, bool):
            holder[key] = not held
        elif isinstance(held, int):
            holder[key] = rng.choice((0, 1, 2, 3, held // 2, held * 2, held + 1, held - 1, 400))
        elif isinstance(held, float):
            holder[key] = held * rng.choice((0.0, 1e-6, 0.1, 0.5, 1.01, 2.0, 10.0, 1e6))
        elif isinstance(held, list) and held:
            holder[key] = rng.choice(
                ([], held[:1], held[1:], held * 2, held[::-1], [*held, held[0]])
            )
    return value


def odd_file(path: Path, rng: random.Random) -> None:
    """Put in the place of a file what is none, or one in another form."""
    data = path.read_bytes()
    path.unlink()
    choice = rng.randrange(8)
    if choice == 0:
        path.symlink_to(path.name)
    elif choice == 1:
        path.symlink_to("nothing")
    elif choice == 2:
        path.mkdir()
    elif choice == 3:
        os.mkfifo(path)
    elif choice == 4:
        path.write_bytes(gzip.compress(data, mtime=0))
    elif choice == 5:
        path.write_bytes(data.decode("utf-8", "replace").encode("utf-16"))
    elif choice == 6:
        path.write_bytes(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"))
    else:
        path.write_bytes(b"")
