"""For which numbers of tokens vLLM captures CUDA graphs."""

USUAL_LARGEST, BLACKWELL_LARGEST = 512, 1024
"""Tokens of the largest graph by default at most; the latter on B200, B300 and their like."""


def capture_sizes(largest: int) -> tuple[int, ...]:
    """Return the numbers of tokens that vLLM captures graphs for, if it is told the largest.

    vLLM 0.19 and 0.32 ``config/vllm.py``: 1, 2, 4, then every 8 up to 256, then every 16.
    """
    sizes = (1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16))
    return tuple(size for size in sizes if size <= largest)


def default_largest(max_num_seqs: int, decode_len: int = 1, most: int = USUAL_LARGEST) -> int:
    """Return the tokens of vLLM's largest graph by default: twice those of a step of decodes alone.

    One has `decode_len` with its drafts (0.32 ``config/vllm.py _set_cudagraph_sizes``); up to 0.12
    it was 1, whatever the drafts (pull request 30330).
    """
    return min(2 * decode_len * max_num_seqs, most)
