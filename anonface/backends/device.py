"""The device that networks run on, what happens when its memory is full, and pictures as tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from anonface.errors import DeviceError, UsageError

KINDS = "choose auto, cpu, cuda, cuda:N or mps"


def choose_device(name: str) -> torch.device:
    """The device a user asked for; ``auto`` is CUDA where there is one, else the CPU.

    Raises:
        DeviceError: this machine lacks the device. Another is never taken instead.
        UsageError: there is no such kind of device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"there is no device {name!r}", KINDS) from None
    if device.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"device {name!r} is not supported", KINDS)
    offered = devices()
    if device.type != "cpu" and f"{device.type}:{device.index or 0}" not in offered:
        raise DeviceError(
            f"this machine has no device {name!r}", f"it has {', '.join(offered)}; --device cpu works everywhere"
        )
    return device


def devices() -> list[str]:
    """The devices of this machine that networks can run on."""
    cuda = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return ["cpu", *cuda, *(["mps:0"] if torch.backends.mps.is_available() else [])]


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
