"""Training by several processes on one machine: each takes rows of its own, and gradients are averaged.

`torchrun --nproc-per-node N -m anonface train ...` starts them and tells each its number by environment variables.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn


def join() -> tuple[int, int]:
    """This process's number and how many there are: (0, 1) where torchrun did not start it."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return 0, 1
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return dist.get_rank(), count


@torch.no_grad()
def share_weights(modules: Iterable[nn.Module]) -> None:
    """Give all processes the first one's parameters and buffers."""
    for module in modules:
        for value in module.state_dict().values():
            dist.broadcast(value, 0)


@torch.no_grad()
def average_gradients(parameters: Sequence[nn.Parameter], count: int) -> None:
    """The mean over all processes, in place."""
    grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    for parameter, mean in zip(parameters, (flat / count).split([grad.numel() for grad in grads]), strict=True):
        parameter.grad = mean.view_as(parameter)


def any_of(flag: bool) -> bool:
    """Whether a flag is set in any process."""
    told: Tensor = torch.tensor(float(flag))
    dist.all_reduce(told, dist.ReduceOp.MAX)
    return bool(told)
