"""Synthetic artifacts."""

import pytest
import torch
import torch.nn.functional as F

from anonface.training import degradation
from anonface.training.degradation import ARTIFACTS, with_artifacts


@pytest.fixture(scope="module")
def pictures() -> torch.Tensor:
    noise = torch.rand(2, 12, 3, 128, 128, generator=torch.Generator().manual_seed(1)) * 2 - 1
    return 3 * F.avg_pool2d(noise.flatten(0, 1), 9, 1, 4).unflatten(0, (2, 12))


@pytest.fixture(scope="module")
def masks() -> torch.Tensor:
    masks = torch.zeros(12, 1, 128, 128)
    masks[:, :, 30:100, 35:95] = 1
    return masks


def test_artifacts_lie_within_the_mask_and_their_map(pictures, masks):
    whole, others = pictures
    worse, where = with_artifacts(whole, others, masks, torch.Generator().manual_seed(3))
    off = (worse - whole).abs().amax(1, keepdim=True)
    assert float(where.min()) >= 0 and float(where.max()) <= 1 and bool((where <= masks).all())
    assert float(off[where < 0.01].max()) < 0.05
    assert bool((off.amax((1, 2, 3)) > 0.1).all())
    again, _ = with_artifacts(whole, others, masks, torch.Generator().manual_seed(4))
    assert bool(((again - worse).abs().amax((1, 2, 3)) > 0.05).all())


def test_without_a_face_nothing_changes(pictures, masks):
    whole, others = pictures
    none, nowhere = with_artifacts(whole, others, 0 * masks, torch.Generator().manual_seed(3))
    assert torch.equal(none, whole) and float(nowhere.max()) == 0


@pytest.mark.parametrize("artifact", ARTIFACTS, ids=lambda artifact: artifact.__name__.strip("_"))
def test_every_artifact_changes_a_picture(artifact, pictures, masks, monkeypatch):
    monkeypatch.setattr(degradation, "ARTIFACTS", (artifact,))
    monkeypatch.setattr(degradation, "RIMMED", 0)
    whole, others = pictures
    worse, where = with_artifacts(whole, others, masks, torch.Generator().manual_seed(3))
    assert bool(((worse - whole).abs().amax((1, 2, 3)) > 0.03).all()) and 0 < float(where.mean()) < 0.2


def test_rims_surround_both_eyes():
    rims, about = degradation._rims(256, torch.Generator().manual_seed(2))
    for eye in (98, 158):
        assert float(rims[0, 123, eye]) < 0.01 and float(rims[0, 90:160, eye].max()) > 0.3
    assert bool((about >= rims - 1e-6).all()) and float(about.mean()) > 2 * float(rims.mean())
