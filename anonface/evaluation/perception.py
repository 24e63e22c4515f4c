"""LPIPS, the perceptual distance between two pictures of a face, where the user brings AlexNet's weights."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anonface import torchvision_adapter, weights
from anonface.errors import WeightsError

Pixels = NDArray[np.uint8]


class Lpips:
    """LPIPS 0.1 on AlexNet (Zhang et al. 2018), by the package ``lpips``.

    Raises:
        WeightsError: AlexNet's file is not there.
        ImportError: the package is not installed.
    """

    name = "LPIPS, AlexNet"

    def __init__(self) -> None:
        backbone, heads = weights.tensors("alexnet"), weights.tensors("lpips-alex")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the package names torchvision's arguments as older versions did
            network = torchvision_adapter.load("lpips").LPIPS(
                net="alex", pretrained=False, pnet_rand=True, verbose=False
            )
        weights.fit(network, lpips_state(network, backbone, heads), source="alexnet and lpips-alex")
        self._network: nn.Module = network.requires_grad_(False).eval()

    @torch.inference_mode()
    def __call__(self, a: Pixels, b: Pixels) -> float:
        """The distance of two aligned faces, uint8 [256, 256, 3]; 0 for equal ones."""
        return float(self._network(*(torch.from_numpy(x).permute(2, 0, 1)[None].float() / 127.5 - 1 for x in (a, b))))


def lpips_state(network: nn.Module, backbone: Mapping[str, Tensor], heads: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """torchvision's AlexNet and the released heads, under the names of package ``lpips``.

    There a slice names its layers by their number in ``features``, and every head appears twice.

    Raises:
        WeightsError: one of them is not in the files.
    """
    state = {}
    for name, value in network.state_dict().items():
        first, *rest = name.split(".")
        if first == "scaling_layer":
            state[name] = value
            continue
        source = f"features.{'.'.join(rest[1:])}" if first == "net" else name.replace("lins.", "lin")
        found = (backbone if first == "net" else heads).get(source)
        if found is None:
            raise WeightsError(f"there is no {source!r} in the weights of LPIPS", "name torchvision's own AlexNet file")
        state[name] = found
    return state
