"""Pasted occluders, and a training step of the face parser."""

import numpy as np
import pytest
import torch

from anonface.models.face_parser import CLASSES, FaceParser
from anonface.training import occluders
from anonface.training.loop import step_generator
from anonface.training.masks import BEHIND, KEPT, LABEL, SIDE, UNKNOWN, WORN, LabelledPhotos, allowed
from anonface.training.parser import FROZEN, RARE_TIMES, ParserObjective, _partial_cross_entropy


def drawn_face() -> tuple[np.ndarray, np.ndarray]:
    """A face of ellipses, in one colour a class, on noise."""
    import cv2

    label = np.zeros((SIDE, SIDE), np.uint8)
    for name, centre, axes in (
        ("hair", (128, 110), (90, 100)),
        ("skin", (128, 140), (62, 80)),
        ("eyes", (100, 125), (12, 6)),
        ("eyes", (156, 125), (12, 6)),
        ("lips", (128, 185), (20, 8)),
    ):
        cv2.ellipse(label, centre, axes, 0, 0, 360, LABEL[name], -1)
    colours = np.random.default_rng(0).uniform(0.2, 0.9, (len(CLASSES), 3)).astype(np.float32)
    noise = np.random.default_rng(1).normal(0, 0.02, (SIDE, SIDE, 3))
    return (colours[label] + noise).clip(0, 1).astype(np.float32), label


def other() -> tuple[np.ndarray, np.ndarray]:
    image, label = drawn_face()
    label[200:, :80] = LABEL["hat"]
    return image[::-1].copy(), label


@pytest.mark.parametrize("index", range(len(occluders.DRAWERS)), ids=lambda i: occluders.DRAWERS[i].__name__)
def test_each_occluder_covers_a_part_of_the_picture_with_its_label(index, monkeypatch):
    shares = tuple(float(i == index) for i in range(len(occluders.DRAWERS)))
    monkeypatch.setattr(occluders, "SHARES", shares)
    changed = 0
    for seed in range(8):
        image, label = drawn_face()
        covered, now = occluders.occlude(image.copy(), label, other, np.random.default_rng(seed))
        assert covered.shape == image.shape and covered.dtype == np.float32 and np.isfinite(covered).all()
        assert now.dtype == np.uint8 and now.max() < len(CLASSES)
        new = now != label
        changed += bool(new.any())
        assert set(np.unique(now[new])) <= {
            LABEL["occluder"],
            LABEL["hair"],
            LABEL["glasses"],
            LABEL["hat"],
            LABEL["lens"],
        }
        assert not new.any() or np.abs(covered - image)[new].mean() > 0.01
    assert changed >= 4


def test_shadows_change_no_label(monkeypatch):
    monkeypatch.setattr(occluders, "DRAWERS", (lambda *_: None,))
    monkeypatch.setattr(occluders, "SHARES", (1.0,))
    image, label = drawn_face()
    results = [occluders.occlude(image.copy(), label, other, np.random.default_rng(seed)) for seed in range(20)]
    assert all(np.array_equal(now, label) for _, now in results)
    assert any(np.abs(shadowed - image).max() > 0.05 for shadowed, _ in results)


def test_a_picture_without_a_face_is_left_alone():
    image, label = drawn_face()
    same, now = occluders.occlude(image, np.zeros_like(label), other, np.random.default_rng(0))
    assert np.array_equal(same, image) and not now.any()


def test_clear_glass_is_a_lens_and_its_rim_glasses(monkeypatch):
    """Behind a clear lens the face is replaced, behind a dark one it stays hidden."""
    monkeypatch.setattr(occluders, "DRAWERS", (occluders._spectacles,))
    monkeypatch.setattr(occluders, "SHARES", (1.0,))
    kinds = set()
    for seed in range(12):
        image, label = drawn_face()
        _, now = occluders.occlude(image, label, other, np.random.default_rng(seed))
        seen = {name: int((now == LABEL[name]).sum()) for name in ("lens", "glasses")}
        kinds.add("clear" if seen["lens"] > 300 else "dark" if seen["glasses"] > 300 else "none")
        assert not (seen["lens"] > 300 and seen["glasses"] > 3000)
    assert kinds >= {"clear", "dark"}


def test_what_a_label_leaves_open_is_right_either_way():
    table, weight = allowed(), torch.ones(len(CLASSES) + 2)
    shown = torch.full((1, len(CLASSES), 1, 3), -20.0)
    for column, name in enumerate(("occluder", "lens", "skin")):
        shown[0, LABEL[name], 0, column] = 0
    for labels, wrong in (((BEHIND, WORN, LABEL["skin"]), 0), ((LABEL["skin"], LABEL["skin"], UNKNOWN), 20)):
        loss = _partial_cross_entropy(shown, torch.tensor([[labels]]), table, weight)
        assert float(loss) == pytest.approx(wrong, abs=0.01)


@pytest.fixture(scope="module")
def photos() -> LabelledPhotos:
    members = [drawn_face(), other()]
    images = torch.from_numpy(np.stack([(image * 255).astype(np.uint8) for image, _ in members]))
    label = torch.from_numpy(np.stack([label for _, label in members]))
    repeat = KEPT // 2 + 2
    return LabelledPhotos(images.repeat(repeat, 1, 1, 1), label.repeat(repeat, 1, 1))


@pytest.mark.parametrize("step", [0, 10**6], ids=["coarse", "fine"])
def test_a_step_reaches_backbone_and_pyramid(photos, step):
    torch.manual_seed(0)
    parser = FaceParser()
    objective = ParserObjective(parser, photos, batch=2)
    losses = objective.losses(step_generator(1, step), step)
    assert all(torch.isfinite(v) for v in losses.values()) and 0 <= losses["_face_iou"] <= 1
    (losses["classes"] + losses["face"]).backward()
    assert all(p.grad is None for p in parser.backbone.features[:FROZEN].parameters())
    for part in (parser.backbone.features[FROZEN], parser.lateral[0], parser.smooth[3], parser.classify):
        assert any(p.grad is not None and p.grad.any() for p in part.parameters())


def test_faces_with_rare_classes_are_drawn_more_often(photos):
    odds = ParserObjective(FaceParser(), photos).odds
    assert odds[1] == RARE_TIMES * odds[0]


def test_a_sample_moves_picture_and_labels_together(photos):
    objective = ParserObjective(FaceParser(), photos)
    image, label = objective.sample(0, torch.Generator().manual_seed(3))
    again, same = objective.sample(0, torch.Generator().manual_seed(3))
    assert torch.equal(image, again) and torch.equal(label, same)
    assert image.shape == (3, SIDE, SIDE) and image.min() >= -1 and image.max() <= 1
    moved = objective.sample(0, torch.Generator().manual_seed(4))[1]
    assert not torch.equal(label, moved)
