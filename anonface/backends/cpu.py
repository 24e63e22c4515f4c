"""What slows networks on a CPU by default, and how it is switched off; and which numbers a device multiplies fastest.

**Large buffers.** glibc hands every large buffer back to the kernel when it is freed, so each convolution pays for
fresh zeroed pages: a 1024-px render takes several times longer. Serving such buffers from the heap and never trimming
it removes that cost.

**Denormals.** A loss that is felt through a soft mask or a bell has gradients that fade below 1e-38, where a processor
computes in microcode and a convolution takes ten times as long.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator

import torch

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


def multiplies_bfloat16_faster(device: torch.device | str) -> bool:
    """Whether the device has units for it: CUDA, and CPUs with AMX (five times as fast there)."""
    kind = torch.device(device).type
    return kind == "cuda" or (kind == "cpu" and bool(torch.cpu.get_capabilities().get("amx_bf16")))


def mixed_precision(device: torch.device | str) -> torch.autocast:
    """bfloat16 for what can bear it, on devices that multiply it faster."""
    return torch.autocast(torch.device(device).type, torch.bfloat16, enabled=multiplies_bfloat16_faster(device))


@contextlib.contextmanager
def denormals_flushed() -> Iterator[None]:
    """Within it, numbers below 1e-38 are zero to the calling thread; afterwards they are what they were before."""
    before = not bool(torch.tensor(1e-38) * 0.1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
