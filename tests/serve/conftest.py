"""A server for all tests of a file."""

from collections.abc import Iterator

import pytest

pytest.importorskip("aiohttp")
from serving import Served, serving


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving() as found:
        yield found
