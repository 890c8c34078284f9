"""Identity of KV blocks: equal tokens after equal tokens, and nothing else."""

import numpy as np
import pytest

from specsim.core.request import PrefixIds, Request


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int64)


def with_tokens(index: int, prompt: np.ndarray, output: np.ndarray | None = None) -> Request:
    return Request(
        index=index,
        prompt_len=len(prompt),
        output_len=4 if output is None else len(output),
        prompt_token_ids=prompt,
        output_token_ids=output,
    )


def test_shared_prefix_has_shared_keys_and_no_more() -> None:
    one = with_tokens(0, tokens(1, 2, 3, 4, 5, 6)).block_keys(2)
    two = with_tokens(1, tokens(1, 2, 3, 4, 9, 6)).block_keys(2)
    assert list(one[:2]) == list(two[:2])
    assert one[2] != two[2]


def test_a_block_is_known_by_all_tokens_before_it() -> None:
    one = with_tokens(0, tokens(1, 2, 3, 4)).block_keys(2)
    two = with_tokens(1, tokens(9, 2, 3, 4)).block_keys(2)
    assert one[1] != two[1]


def test_output_of_one_turn_is_prefix_of_the_next() -> None:
    first = with_tokens(0, tokens(1, 2, 3), tokens(4, 5, 6)).block_keys(2)
    second = with_tokens(1, tokens(1, 2, 3, 4, 5, 6, 7)).block_keys(2)
    assert list(first[:3]) == list(second[:3])


def test_unknown_output_belongs_to_its_request() -> None:
    one = with_tokens(0, tokens(1, 2)).block_keys(2)
    two = with_tokens(1, tokens(1, 2)).block_keys(2)
    assert one[0] == two[0]
    assert one[1] != two[1]


def test_requests_without_tokens_share_nothing() -> None:
    one, two = (Request(index=i, prompt_len=8, output_len=8).block_keys(4) for i in (0, 1))
    assert len({*one[:4], *two[:4]}) == 8


@pytest.mark.parametrize("block_size", [4, 8, 16])
def test_recorded_prefix_ids_serve_any_block_size(block_size: int) -> None:
    def keys(index: int, *ids: int) -> list[object]:
        request = Request(
            index=index, prompt_len=20, output_len=4, prefix_ids=PrefixIds(ids, block_size=8)
        )
        return list(request.block_keys(block_size))

    one, two = keys(0, 7, 8, 9), keys(1, 7, 5, 6)
    shared = 8 // block_size
    assert one[:shared] == two[:shared]
    assert not set(one[shared:]) & set(two[shared:])
