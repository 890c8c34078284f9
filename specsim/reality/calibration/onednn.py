"""oneDNN, which multiplies matrices on a CPU: it compiles a kernel for every number of tokens.

That takes some milliseconds each time, as long as the step itself; a server that has run for a
while has them all. So every number of tokens is run once before anything is measured, and the
kernels are kept.
"""

import os

__all__ = ["keep_kernels"]

_CAPACITY = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"  # 1024 unless told
_NUM_KERNELS = "8192"  # four matrix shapes times as many tokens as the steps of our plans have


def keep_kernels() -> None:
    """Have oneDNN keep enough of them; call this before the first matrix is multiplied."""
    os.environ.setdefault(_CAPACITY, _NUM_KERNELS)
