"""The identity code's axes: conditions first."""

import torch
import torch.nn.functional as F

from anonface.models.identity import CONDITIONS, KEPT
from anonface.training.identity import code_axes, skin_tone


def labelled_codes(count: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy codes with a binary and two continuous labels, each along its own direction."""
    rng = torch.Generator().manual_seed(2)
    coin = torch.randint(2, (count, 1), generator=rng) * 4.0 - 2
    labels = torch.cat([coin, torch.randn(count, len(CONDITIONS) - 1, generator=rng)], 1)
    directions = F.normalize(torch.randn(len(CONDITIONS), 40, generator=rng), dim=1)
    noise = torch.randn(count, 40, generator=rng) * torch.linspace(1.0, 0.1, 40)
    return F.normalize(noise + labels @ directions, dim=1), labels


def test_axes_are_orthonormal_and_the_rest_is_sorted():
    codes, labels = labelled_codes()
    axes = code_axes(codes, labels)
    assert axes.shape == (40, 40) and torch.allclose(axes @ axes.T, torch.eye(40), atol=1e-5)
    power = (codes @ axes.T).square().mean(0)[KEPT:]
    assert (power.diff() < 1e-6).all()


def test_the_first_coordinates_predict_the_labels_and_the_others_hardly_do():
    codes, labels = labelled_codes()
    turned = codes @ code_axes(codes, labels).T

    def explained(x: torch.Tensor, y: torch.Tensor) -> float:
        x, y = x - x.mean(0), y - y.mean()
        residual = y - x @ torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
        return float(1 - residual.square().sum() / y.square().sum())

    for column, where in enumerate(CONDITIONS.values()):
        everything = explained(turned, labels[:, column])
        assert explained(turned[:, where], labels[:, column]) > 0.9 * everything
        assert explained(turned[:, KEPT:], labels[:, column]) < 0.5 * everything


def test_skin_tone_is_lightness_independent_of_hair_and_background():
    colours = torch.tensor([[255, 255, 255], [224, 172, 105], [141, 85, 36], [0, 0, 0]]) / 127.5 - 1
    faces = torch.rand(4, 3, 128, 128, generator=torch.Generator().manual_seed(4)) * 2 - 1
    faces[:, :, 36:92, 36:92] = colours[:, :, None, None]
    tones = skin_tone(faces)[:, 0]
    assert torch.allclose(tones, torch.tensor([100.0, 73.7, 41.6, 0.0]), atol=0.2)  # OpenCV's CIELAB
