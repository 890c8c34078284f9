"""Who serves a request."""

from types import SimpleNamespace

from specsim.routing.least_outstanding import LeastOutstanding


def test_the_replica_with_the_fewest_requests_is_chosen() -> None:
    loads = [
        SimpleNamespace(num_running=3, num_waiting=0),
        SimpleNamespace(num_running=1, num_waiting=1),
    ]
    assert LeastOutstanding().choose(loads, None) == 1
    assert LeastOutstanding(waiting_weight=4).choose(loads, None) == 0


def test_of_equals_the_first() -> None:
    loads = [SimpleNamespace(num_running=1, num_waiting=0)] * 3
    assert LeastOutstanding().choose(loads, None) == 0
