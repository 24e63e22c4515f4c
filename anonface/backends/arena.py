"""Keep large buffers inside the process on glibc.

glibc hands every large buffer back to the kernel when it is freed, so each convolution pays for fresh zeroed pages:
a 1024-px render takes several times longer. Serving such buffers from the heap and never trimming it removes that cost.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # <malloc.h>
_INT_MAX = 2**31 - 1


def keep_large_buffers() -> bool:
    """Tell glibc's allocator to reuse large buffers; False where there is no glibc (then nothing changes)."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _INT_MAX), (_M_TOP_PAD, 64 << 20))
    return all(mallopt(name, value) == 1 for name, value in settings)
