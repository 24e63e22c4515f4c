"""The default generator with its weights: the released network, its mapping, and the heads trained here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anonface import weights
from anonface.backends.arena import keep_large_buffers
from anonface.models.mobile_stylegan import MappingNetwork, MobileStyleGAN

if TYPE_CHECKING:
    import torch

FINEST_HEAD = 512  # px; it draws better than the smaller one, whose size a shrunk picture of it has
GENERATOR_FILES = ("generator", "mapping", "generator-heads")


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


def load_mapping(device: torch.device | str = "cpu") -> MappingNetwork:
    """StyleGAN2-FFHQ's mapping network f, frozen."""
    mapping = MappingNetwork()
    weights.load(mapping, "mapping")
    return mapping.requires_grad_(False).eval().to(device)
