"""The device that networks run on, and what happens when its memory is full."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from anonface.errors import DeviceError, UsageError


def choose_device(name: str) -> torch.device:
    """The device a user asked for; ``auto`` is CUDA where there is one.

    Raises:
        DeviceError: CUDA was asked for and is not there. It never falls back silently.
        UsageError: there is no such kind of device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"there is no device {name!r}", "choose auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device {name!r} is not supported", "choose auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"{name} was asked for, but this machine has {torch.cuda.device_count()} CUDA devices",
            "--device cpu works everywhere",
        )
    return device


@contextmanager
def clear_memory_errors() -> Iterator[None]:
    """Say what lowers memory when a device runs out of it."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise DeviceError("out of memory while rendering faces", "lower --batch-size, or use --device cpu") from error
