from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from anonface.errors import UsageError, WeightsError
from anonface.faces import align, parse
from anonface.faces.detect import Pixels, Points

SIZE = 256


@pytest.fixture(scope="module")
def crop(portrait: Pixels, mesh: Points) -> Pixels:
    return np.asarray(align.crop(portrait, align.ffhq_quad(mesh), SIZE), np.uint8)


@pytest.fixture(scope="module")
def landmarks(mesh: Points) -> Points:
    return align.transform(align.photo_to_crop(align.ffhq_quad(mesh), SIZE), mesh[:, :2])


def overlap(a: parse.Mask, b: parse.Mask) -> float:
    return float(np.minimum(a, b).sum() / np.maximum(a, b).sum())


def at(mask: parse.Mask, points: Points) -> parse.Mask:
    columns, rows = np.floor(points).astype(int).T
    return mask[rows, columns]


def test_the_features_are_in_and_the_background_is_out(crop: Pixels, landmarks: Points) -> None:
    mask = parse.face_mask(crop, landmarks, SIZE)
    assert mask.dtype == np.float32 and mask.shape == (SIZE, SIZE) and set(np.unique(mask)) == {0.0, 1.0}
    assert at(mask, landmarks[parse.BROWS + parse.EYES + parse.NOSE + parse.LIPS]).all()
    assert mask[:20].sum() == mask[-10:].sum() == mask[:, :20].sum() == mask[:, -20:].sum() == 0
    assert 0.15 < mask.mean() < 0.4


@pytest.mark.parametrize("size", [64, 512, 1024])
def test_the_mask_has_the_same_shape_at_any_size(crop: Pixels, landmarks: Points, size: int) -> None:
    mask = parse.face_mask(crop, landmarks, size)
    back = cv2.resize(mask, (SIZE, SIZE), interpolation=cv2.INTER_AREA if size > SIZE else cv2.INTER_LINEAR)
    assert overlap(back, parse.face_mask(crop, landmarks, SIZE)) > 0.95


def test_hair_over_the_forehead_stays_out(crop: Pixels, landmarks: Points) -> None:
    fringed = crop.copy()
    lid = round(landmarks[parse.BROWS, 1].min()) - 6
    fringed[:lid] = (40, 30, 25)
    mask = parse.face_mask(fringed, landmarks, SIZE)
    before = parse.face_mask(crop, landmarks, SIZE)
    assert mask[: lid - 6].sum() < 0.05 * before[: lid - 6].sum()
    assert overlap(mask[lid + 6 :], before[lid + 6 :]) > 0.95


def test_an_implausible_refinement_falls_back_to_the_outline(crop: Pixels, landmarks: Points) -> None:
    noise = np.random.default_rng(0).integers(0, 256, crop.shape, np.uint8)
    mask = parse.face_mask(noise, landmarks, SIZE)
    outline = parse._polygon(parse.outline(landmarks), SIZE)
    assert overlap(mask, outline) > 0.9


def test_the_mask_survives_jpeg_and_jitter(crop: Pixels, landmarks: Points) -> None:
    _, encoded = cv2.imencode(".jpg", crop, [cv2.IMWRITE_JPEG_QUALITY, 70])
    decoded = np.asarray(cv2.imdecode(encoded, cv2.IMREAD_COLOR), np.uint8)
    jitter = landmarks + np.random.default_rng(0).normal(0, 0.5, landmarks.shape)
    assert overlap(parse.face_mask(decoded, jitter, SIZE), parse.face_mask(crop, landmarks, SIZE)) > 0.97


def test_the_outline_is_lowered_on_the_forehead_alone(landmarks: Points) -> None:
    lowered, oval = parse.outline(landmarks), parse.outline(landmarks, 0.0)
    assert np.array_equal(oval, landmarks[align.OVAL])
    assert (lowered[:, 1] >= oval[:, 1] - 0.5).all() and lowered[0, 1] > oval[0, 1] + 5
    assert np.allclose(lowered[18], oval[18])  # the chin


def test_unknown_parser(crop: Pixels, landmarks: Points) -> None:
    with pytest.raises(UsageError, match="magic"):
        parse.face_mask(crop, landmarks, SIZE, "magic")


@pytest.mark.parametrize("name", ["bisenet", "parsenet"])
def test_a_missing_network_is_said_to_be_missing(
    name: str, crop: Pixels, landmarks: Points, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANONFACE_CACHE", str(tmp_path))
    monkeypatch.setenv("ANONFACE_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("ANONFACE_OFFLINE", "1")
    with pytest.raises(WeightsError, match=name):
        parse.face_mask(crop, landmarks, SIZE, name)


@pytest.mark.parametrize(("name", "classes"), [("bisenet", parse.BISENET_FACE), ("parsenet", parse.PARSENET_FACE)])
def test_classes_become_a_mask(
    name: str, classes: list[int], crop: Pixels, landmarks: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def striped(pixels: torch.Tensor) -> tuple[torch.Tensor]:
        """One column of 16 px a class, 19 classes, background to the right."""
        assert pixels.shape == (1, 3, 512, 512) and pixels.abs().max() < 3
        labels = torch.zeros(512, 512, dtype=torch.long)
        labels[:, : 19 * 16] = torch.arange(19).repeat_interleave(16)
        return (torch.nn.functional.one_hot(labels, 19).permute(2, 0, 1)[None].float(),)

    monkeypatch.setattr(parse, "_network", lambda asked: {name: striped}[asked])
    mask = parse.face_mask(crop, landmarks, 512, name)
    centres = np.arange(19) * 16 + 8
    assert [index for index in range(19) if mask[256, centres[index]]] == classes
