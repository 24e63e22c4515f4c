"""Labels drawn by hand, pasted occluders, and a training step of the face parser."""

import numpy as np
import pytest
import torch

from anonface.models.face_parser import CLASSES, FaceParser
from anonface.training import labels, occluders
from anonface.training.data import HELD_OUT
from anonface.training.labels import SIDE, UNKNOWN, LabelledBank
from anonface.training.loop import step_generator
from anonface.training.occluders import LABEL
from anonface.training.parser import FROZEN, ParserObjective


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
    label[200:, :80] = LABEL["occluder"]
    return image[::-1].copy(), label


def test_strokes_are_read_by_face_and_class():
    hand = labels.read_strokes("# head\n7 hat: P 1,2 30,4 5,60 ; L6 10,10 20.5,20\n7 nobrows:\n9 noauto:\n")
    assert set(hand) == {7, 9}
    first, second = hand[7].strokes
    assert (first.label, first.width, second.width) == (LABEL["hat"], 0, 6)
    assert second.points.tolist() == [[10, 10], [20.5, 20]]
    assert (hand[7].parts, hand[7].brows, hand[9].parts) == (True, False, False)


def test_every_class_but_those_of_landmarks_was_drawn_by_hand():
    hand = labels.read_strokes(labels.STROKES.read_text("utf-8"))
    seen = {stroke.label for face in hand.values() for stroke in face.strokes}
    assert {CLASSES[i] for i in seen} == set(CLASSES) - {"brows", "eyes", "nose", "lips"}
    assert len(hand) > 30
    points = np.concatenate([stroke.points for face in hand.values() for stroke in face.strokes])
    assert points.min() >= 0 and points.max() <= SIDE


def test_strokes_override_labels_of_landmarks():
    turns = np.linspace(0, 2 * np.pi, 468, endpoint=False)
    mesh = 128 + 60 * np.column_stack([np.cos(turns), np.sin(turns)])
    hand = labels.read_strokes("0 occluder: P 120,120 140,120 140,200 120,200\n1 noauto:")
    drawn, empty = (labels.draw_labels(hand[i], mesh) for i in (0, 1))
    assert (drawn[121:199, 121:139] == LABEL["occluder"]).all() and (empty == UNKNOWN).all()
    assert LABEL["lips"] in drawn and UNKNOWN in drawn


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
        assert set(np.unique(now[new])) <= {LABEL["occluder"], LABEL["hair"], LABEL["glasses"], LABEL["hat"]}
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


@pytest.fixture(scope="module")
def bank() -> LabelledBank:
    members = [drawn_face(), other()]
    images = torch.from_numpy(np.stack([(image * 255).astype(np.uint8) for image, _ in members]))
    label = torch.from_numpy(np.stack([label for _, label in members]))
    repeat = HELD_OUT // 2 + 2
    return LabelledBank(images.repeat(repeat, 1, 1, 1), label.repeat(repeat, 1, 1))


@pytest.mark.parametrize("step", [0, 10**6], ids=["coarse", "fine"])
def test_a_step_reaches_backbone_and_pyramid(bank, step):
    torch.manual_seed(0)
    parser = FaceParser()
    objective = ParserObjective(parser, bank, batch=2)
    losses = objective.losses(step_generator(1, step), step)
    assert all(torch.isfinite(v) for v in losses.values()) and 0 <= losses["_face_iou"] <= 1
    (losses["classes"] + losses["face"]).backward()
    assert all(p.grad is None for p in parser.backbone.features[:FROZEN].parameters())
    for part in (parser.backbone.features[FROZEN], parser.lateral[0], parser.smooth[3], parser.classify):
        assert any(p.grad is not None and p.grad.any() for p in part.parameters())


def test_faces_with_rare_classes_are_drawn_more_often(bank):
    odds = ParserObjective(FaceParser(), bank).odds
    assert odds[1] == 3 * odds[0]


def test_a_sample_moves_picture_and_labels_together(bank):
    objective = ParserObjective(FaceParser(), bank)
    image, label = objective.sample(0, torch.Generator().manual_seed(3))
    again, same = objective.sample(0, torch.Generator().manual_seed(3))
    assert torch.equal(image, again) and torch.equal(label, same)
    assert image.shape == (3, SIDE, SIDE) and image.min() >= -1 and image.max() <= 1
    moved = objective.sample(0, torch.Generator().manual_seed(4))[1]
    assert not torch.equal(label, moved)


def test_the_reader_reads_at_its_side():
    reader = labels.FeatureReader(channels=(4, 4, 4, 4), hidden=8)
    features = [torch.randn(2, 4, side, side) for side in (16, 32, 64, 128)]
    reader.standardise(features)
    assert reader(features, torch.zeros(2, 3, SIDE, SIDE)).shape == (2, len(CLASSES), 128, 128)
