"""The default generator with its weights: the released network, its mapping, and the heads trained here."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Protocol

from anonface import weights
from anonface.backends.cpu import keep_large_buffers, multiplies_bfloat16_faster
from anonface.models.mobile_stylegan import Details, MappingNetwork, MobileStyleGAN, Window

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FINEST_HEAD = 512  # px; shrunk to a smaller head's size, its picture is better than that head's
GENERATOR_FILES = ("generator", "mapping", "generator-heads")


class DraftRenderer(Protocol):
    """:meth:`MobileStyleGAN.synthesize`, or an approximation of it."""

    def __call__(
        self, w_plus: Tensor, size: int, window: Window | None = None, details: Details | None = None
    ) -> Tensor: ...


def load_generator(device: torch.device | str = "cpu", heads: bool = True) -> MobileStyleGAN:
    """The synthesis network, frozen. Without ``heads`` it can render 1024 px only.

    Raises:
        WeightsError: a file is missing or wrong.
    """
    keep_large_buffers()
    generator = MobileStyleGAN()
    state = {**weights.tensors("generator")}
    if heads:
        state |= {f"heads.{name}": tensor for name, tensor in weights.tensors("generator-heads").items()}
    else:
        state |= {f"heads.{name}": tensor for name, tensor in generator.heads.state_dict().items()}
    weights.fit(generator, state, source="generator")
    return generator.requires_grad_(False).eval().to(device)


def draft_renderer(generator: MobileStyleGAN, device: torch.device | str = "cpu") -> DraftRenderer:
    """``generator.synthesize`` for use inside optimisations: two thirds of the time where the device multiplies
    bfloat16 faster, 51 dB from the full result."""
    if not multiplies_bfloat16_faster(device):
        return generator.synthesize
    coarse = copy.deepcopy(generator).bfloat16()

    def draft(w_plus: Tensor, size: int, window: Window | None = None, details: Details | None = None) -> Tensor:
        some = {side: (a.bfloat16(), b.bfloat16()) for side, (a, b) in (details or {}).items()}
        return coarse.synthesize(w_plus.bfloat16(), size, window, some).float()

    return draft


def load_mapping(device: torch.device | str = "cpu") -> MappingNetwork:
    """StyleGAN2-FFHQ's mapping network f, frozen."""
    mapping = MappingNetwork()
    weights.load(mapping, "mapping")
    return mapping.requires_grad_(False).eval().to(device)
