import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from skimage import data

from anonface import torchvision_adapter
from anonface.errors import WeightsError
from anonface.evaluation import perception
from anonface.evaluation.perception import Lpips, lpips_state


@pytest.fixture(scope="module")
def face():
    return np.asarray(Image.fromarray(data.astronaut()[:256, 90:346]))


def blurred(picture, radius):
    return np.asarray(Image.fromarray(picture).filter(ImageFilter.GaussianBlur(radius)))


def published():
    """Random numbers under the names of torchvision's AlexNet and of LPIPS's released heads, and the package's net."""
    network = torchvision_adapter.load("lpips").LPIPS(net="alex", pretrained=False, pnet_rand=True, verbose=False)
    sizes = {0: (64, 3, 11), 3: (192, 64, 5), 6: (384, 192, 3), 8: (256, 384, 3), 10: (256, 256, 3)}
    torch.manual_seed(0)
    backbone = {f"features.{i}.weight": 0.05 * torch.randn(o, c, k, k) for i, (o, c, k) in sizes.items()}
    backbone |= {f"features.{i}.bias": torch.randn(o) for i, (o, _, _) in sizes.items()}
    heads = {f"lin{n}.model.1.weight": torch.rand(1, o, 1, 1) for n, (o, _, _) in enumerate(sizes.values())}
    return network, backbone, heads


def test_lpips_takes_its_backbone_and_heads_from_files(monkeypatch, face):
    network, backbone, heads = published()
    assert lpips_state(network, backbone, heads)["net.slice3.6.weight"] is backbone["features.6.weight"]
    monkeypatch.setattr(perception.weights, "tensors", {"alexnet": backbone, "lpips-alex": heads}.__getitem__)
    distance = Lpips()
    assert distance(face, face) == 0
    assert 0 < distance(face, blurred(face, 1)) < distance(face, blurred(face, 6))
    del backbone["features.8.bias"]
    with pytest.raises(WeightsError, match=r"features\.8\.bias"):
        Lpips()
