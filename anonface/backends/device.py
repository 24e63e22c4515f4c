"""The device that networks run on, what happens when its memory is full, and pictures as tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

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


def to_tensor(crops: NDArray[np.uint8]) -> torch.Tensor:
    """uint8 [B, R, R, 3] -> [B, 3, R, R] in [-1, 1]."""
    return torch.from_numpy(crops).permute(0, 3, 1, 2).float() / 127.5 - 1


def to_pixels(image: torch.Tensor) -> NDArray[np.uint8]:
    """[3, R, R] in [-1, 1] -> uint8 [R, R, 3]."""
    levels = ((image.detach().cpu().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    return np.ascontiguousarray(levels.permute(1, 2, 0).numpy())
