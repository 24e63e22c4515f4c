"""Perceptual distances between two pictures of a face (LPIPS) and between two sets of faces (KID, FID).

LPIPS and FID are defined on features of AlexNet and Inception, whose weights no package registry carries. Without them
MobileNetV2 is used instead, under a name that says so. Its figures cannot be compared with published ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anonface import torchvision_adapter, weights
from anonface.errors import WeightsError
from anonface.models.attribute_encoder import MobileNetV2Features, perceptual

Pixels = NDArray[np.uint8]
Features = NDArray[np.float32]

LARGE = 2048  # faces; FID of smaller sets means little
SUBSETS, SUBSET_SIZE = 100, 50
SEED = 0


class PictureDistance(Protocol):
    """Distance between two aligned faces, uint8 [256, 256, 3]; 0 for equal ones."""

    name: str

    def __call__(self, a: Pixels, b: Pixels) -> float: ...


class MobileNet:
    """A distance between MobileNetV2's features, and the features themselves.

    Raises:
        WeightsError: its weights cannot be had.
    """

    name = "perceptual distance, MobileNetV2 (not LPIPS; seen by a training loss)"
    features_name = "MobileNetV2, seen by a training loss"

    def __init__(self) -> None:
        self._network = MobileNetV2Features()
        state = weights.tensors("mobilenet-v2")
        own = self._network.state_dict()
        weights.fit(self._network, {name: state[name] for name in own}, source="mobilenet-v2")
        self._network.requires_grad_(False).eval()

    @torch.inference_mode()
    def __call__(self, a: Pixels, b: Pixels) -> float:
        return float(perceptual(self._network, _tensor(a), _tensor(b)))

    @torch.inference_mode()
    def features(self, face: Pixels) -> Features:
        """Mean features [320] over the picture, at stride 32."""
        return self._network(_tensor(face))[2].mean((2, 3))[0].numpy()


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
        return float(self._network(_tensor(a), _tensor(b)))


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


def available_distances() -> tuple[list[PictureDistance], list[str]]:
    """Distances whose weights are available, and the names of the others."""
    found: list[PictureDistance] = []
    absent = []
    for make in (Lpips, MobileNet):
        try:
            found.append(make())
        except (WeightsError, ImportError):
            absent.append(make.name)
    return found, absent


def kernel_distance(real: Sequence[Features], made: Sequence[Features]) -> tuple[float, float]:
    """KID (Bińkowski et al. 2018) of two sets of features [n, C]: mean and standard deviation over subsets."""
    kid = torchvision_adapter.load("torchmetrics.image.kid")
    size = min(SUBSET_SIZE, len(real), len(made))
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # that features are kept in memory: these are few
        torch.manual_seed(SEED)
        measure = kid.KernelInceptionDistance(nn.Identity(), subsets=SUBSETS, subset_size=size)
        _fill(measure, real, made)
        mean, deviation = measure.compute()
    return float(mean), float(deviation)


def frechet_distance(real: Sequence[Features], made: Sequence[Features]) -> float:
    """FID (Heusel et al. 2017) of two sets of features [n, C]; see LARGE."""
    features = nn.Identity()
    features.num_features = len(real[0])  # type: ignore[assignment]
    measure = torchvision_adapter.load("torchmetrics.image.fid").FrechetInceptionDistance(features)
    _fill(measure, real, made)
    return float(measure.compute())


def _fill(measure: nn.Module, real: Sequence[Features], made: Sequence[Features]) -> None:
    for features, is_real in ((real, True), (made, False)):
        measure.update(torch.from_numpy(np.stack(features)).float(), real=is_real)  # type: ignore[operator]


def _tensor(face: Pixels) -> Tensor:
    return torch.from_numpy(face).permute(2, 0, 1)[None].float() / 127.5 - 1
