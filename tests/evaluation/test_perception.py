import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from skimage import data

from anonface import torchvision_adapter
from anonface.errors import WeightsError
from anonface.evaluation import perception
from anonface.evaluation.perception import (
    Lpips,
    MobileNet,
    available_distances,
    frechet_distance,
    kernel_distance,
    lpips_state,
)


@pytest.fixture(scope="module")
def mobilenet():
    return MobileNet()


@pytest.fixture(scope="module")
def face():
    return np.asarray(Image.fromarray(data.astronaut()[:256, 90:346]))


def blurred(picture, radius):
    return np.asarray(Image.fromarray(picture).filter(ImageFilter.GaussianBlur(radius)))


def test_the_more_a_picture_differs_the_farther_it_is(mobilenet, face):
    far = [mobilenet(face, blurred(face, radius)) for radius in (0, 1, 3, 8)]
    assert far[0] == pytest.approx(0, abs=1e-6)
    assert far == sorted(far) and far[3] > 3 * far[1]
    assert "not LPIPS" in mobilenet.name


def test_sets_are_as_far_apart_as_they_differ(mobilenet):
    rng = np.random.default_rng(0)
    real, same = rng.normal(0, 1, (2, 60, 8)).astype(np.float32)
    other = rng.normal(1, 1, (60, 8)).astype(np.float32)
    assert abs(kernel_distance(real, same)[0]) < 0.2 < kernel_distance(real, other)[0]
    assert kernel_distance(real, other) == kernel_distance(real, other)
    assert frechet_distance(real, same) < 3 < frechet_distance(real, other)
    # the formula for normal distributions of known means and equal variance: 8 * 1^2
    many, shifted = rng.normal(0, 1, (4000, 8)).astype(np.float32), rng.normal(1, 1, (4000, 8)).astype(np.float32)
    assert frechet_distance(many, shifted) == pytest.approx(8, rel=0.1)


def test_features_of_a_face(mobilenet, face):
    assert mobilenet.features(face).shape == (320,)
    assert not np.allclose(mobilenet.features(face), mobilenet.features(blurred(face, 4)))


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


def test_what_is_not_at_hand_is_named():
    found, absent = available_distances()
    assert [distance.name for distance in found] == [MobileNet.name]
    assert absent == ["LPIPS, AlexNet"]
