"""Running out of memory, said in one line."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from specsim.core.errors import CapacityError

__all__ = ["out_of_memory"]


@contextmanager
def out_of_memory(what: str, device: torch.device) -> Iterator[None]:
    """Turn PyTorch's ways of running out of memory into a one-line error.

    Args:
        what: That needs the memory.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise _error(what, device, error) from error
    except RuntimeError as error:
        # Of a CPU's allocator, which has no class of its own.
        if "alloc" not in str(error).lower():
            raise
        raise _error(what, device, error) from error


def _error(what: str, device: torch.device, error: BaseException) -> CapacityError:
    lines = str(error).splitlines() or [type(error).__name__]
    return CapacityError(
        f"{what}: more than the memory of {device} has left ({lines[0][:120]}); choose a smaller "
        "model (--model)"
    )
