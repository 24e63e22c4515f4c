from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from anonface.errors import UsageError, WeightsError
from anonface.faces import align, parse
from anonface.faces.detect import Pixels, Points
from anonface.models.face_parser import CLASSES

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


@pytest.mark.parametrize("parser", ["trained", "landmarks"])
def test_the_features_are_in_and_the_background_is_out(crop: Pixels, landmarks: Points, parser: str) -> None:
    mask = parse.face_mask(crop, landmarks, SIZE, parser)
    assert mask.dtype == np.float32 and mask.shape == (SIZE, SIZE) and set(np.unique(mask)) == {0.0, 1.0}
    assert at(mask, landmarks[align.EYES + parse.NOSE + align.LIPS]).all()
    assert at(mask, landmarks[parse.BROWS]).mean() > 0.7  # a fringe hangs into them
    assert mask[:20].sum() == mask[-10:].sum() == mask[:, :20].sum() == mask[:, -20:].sum() == 0
    assert 0.15 < mask.mean() < 0.4


@pytest.mark.parametrize("size", [64, 512, 1024])
def test_the_mask_has_the_same_shape_at_any_size(crop: Pixels, landmarks: Points, size: int) -> None:
    mask = parse.face_mask(crop, landmarks, size)
    back = cv2.resize(mask, (SIZE, SIZE), interpolation=cv2.INTER_AREA if size > SIZE else cv2.INTER_LINEAR)
    assert overlap(back, parse.face_mask(crop, landmarks, SIZE)) > 0.95


@pytest.mark.parametrize("beyond", [False, True])
def test_the_rim_is_narrow_and_holds_skin_and_hair_alone(crop: Pixels, landmarks: Points, beyond: bool) -> None:
    mask, outlined = parse.face_mask(crop, landmarks, SIZE), landmarks if beyond else None
    wide = parse.with_margin(mask, crop, outlined)
    assert set(np.unique(wide)) == {0.0, 1.0} and (wide >= mask).all()
    assert 1.05 < wide.sum() / mask.sum() < 1.3
    reach = cv2.distanceTransform(np.asarray(1 - mask, np.uint8), cv2.DIST_L2, 5)[wide > 0].max()
    assert 3 < reach < 1.5 * parse.RIM * np.sqrt(mask.sum() * 4 / np.pi)
    hidden = crop.copy()
    hidden[mask == 0] = (0, 255, 0)
    bare = parse.with_margin(mask, hidden, outlined)  # what is neither stays
    assert bare.sum() < mask.sum() + 0.3 * (wide.sum() - mask.sum())


def test_what_hides_a_face_has_no_rim(crop: Pixels, landmarks: Points) -> None:
    mask = parse.face_mask(crop, landmarks, SIZE)
    wide = parse.with_margin(mask, crop, landmarks)
    x, y = (int(v) for v in landmarks[parse.NOSE_TIP, :2])
    strand = np.s_[y : y + 10, x - 8 : x + 8]
    mask[strand] = 0  # what lies there is skin in the crop, and would be a rim if it lay beyond the outline
    assert np.array_equal(parse.with_margin(mask, crop, landmarks) == 1, (wide == 1) & ~_box(strand))
    assert parse.with_margin(mask, crop)[strand].mean() > 0.5  # as it does where a rim may run anywhere


def _box(where: tuple[slice, slice]) -> np.ndarray:
    box = np.zeros((SIZE, SIZE), bool)
    box[where] = True
    return box


@pytest.mark.parametrize("beyond", [False, True])
def test_the_rim_has_no_holes_of_single_pixels(crop: Pixels, landmarks: Points, beyond: bool) -> None:
    mask = parse.face_mask(crop, landmarks, SIZE)
    x, y = (int(v) for v in landmarks[parse.NOSE_TIP, :2])
    mask[y - 20 : y - 18, x : x + 2] = 0
    mask[y : y + 30, x - 10 : x + 10] = 0  # as large as something before the face
    crop = crop.copy()
    crop[mask == 0] = (0, 255, 0)
    wide = parse.with_margin(mask, crop, landmarks if beyond else None)
    assert wide[y - 20 : y - 18, x : x + 2].all() and not wide[y + 10 : y + 20, x - 3 : x + 3].any()


@pytest.mark.parametrize("beyond", [False, True])
@pytest.mark.parametrize("size", [128, 512])
def test_the_rim_has_the_same_shape_at_any_size(crop: Pixels, landmarks: Points, size: int, beyond: bool) -> None:
    first, wide = (
        parse.with_margin(parse.face_mask(crop, landmarks, one), crop, landmarks * (one / SIZE) if beyond else None)
        for one in (SIZE, size)
    )
    back = cv2.resize(wide, (SIZE, SIZE), interpolation=cv2.INTER_AREA if size > SIZE else cv2.INTER_LINEAR)
    assert overlap(back, first) > 0.95


@pytest.mark.parametrize("parser", ["trained", "landmarks"])
def test_hair_over_the_forehead_stays_out(crop: Pixels, landmarks: Points, parser: str) -> None:
    fringed = crop.copy()
    lid = round(landmarks[parse.BROWS, 1].min()) - 6
    fringed[:lid] = (40, 30, 25)
    mask = parse.face_mask(fringed, landmarks, SIZE, parser)
    before = parse.face_mask(crop, landmarks, SIZE, "landmarks")
    assert mask[: lid - 6].sum() < 0.05 * before[: lid - 6].sum()
    assert mask[lid + 6 :].sum() > 0.85 * before[lid + 6 :].sum()


def test_an_implausible_refinement_falls_back_to_the_outline(crop: Pixels, landmarks: Points) -> None:
    noise = np.random.default_rng(0).integers(0, 256, crop.shape, np.uint8)
    outline = parse._polygon(parse.outline(landmarks), SIZE)
    for parser in ("trained", "landmarks"):
        assert overlap(parse.face_mask(noise, landmarks, SIZE, parser), outline) > 0.9


def painted_over(
    crop: Pixels, landmarks: Points, thing: parse.Mask, colour: tuple[int, int, int], parser: str
) -> float:
    """The share of a thing before the face that the mask would change."""
    covered = crop.copy()
    covered[thing > 0] = colour
    mask = parse.face_mask(covered, landmarks, SIZE, parser)
    within = thing * parse._polygon(parse.outline(landmarks), SIZE)
    assert within.sum() > 0.005 * SIZE**2
    return float((mask * within).sum() / within.sum())


def test_a_microphone_before_the_mouth_stays(crop: Pixels, landmarks: Points) -> None:
    thing = np.zeros((SIZE, SIZE), np.uint8)
    place = tuple(int(v) for v in landmarks[14])
    cv2.circle(thing, place, 16, (1,), -1)
    cv2.line(thing, place, (place[0] + 30, SIZE), (1,), 16)
    mic = thing.astype(np.float32)
    assert painted_over(crop, landmarks, mic, (35, 35, 40), "trained") < 0.3
    assert painted_over(crop, landmarks, mic, (35, 35, 40), "landmarks") > 0.6


def test_dark_glasses_stay(crop: Pixels, landmarks: Points) -> None:
    thing = np.zeros((SIZE, SIZE), np.uint8)
    for eye in (align.EYE_LEFT, align.EYE_RIGHT):
        centre = tuple(int(v) for v in landmarks[eye].mean(0))
        cv2.ellipse(thing, centre, (27, 18), 0, 0, 360, (1,), -1)
    cv2.line(
        thing, *(tuple(int(v) for v in landmarks[eye].mean(0)) for eye in (align.EYE_LEFT, align.EYE_RIGHT)), (1,), 4
    )
    glasses = thing.astype(np.float32)
    assert painted_over(crop, landmarks, glasses, (15, 15, 18), "trained") < 0.3
    assert painted_over(crop, landmarks, glasses, (15, 15, 18), "landmarks") > 0.6


def test_what_hides_a_face_leads_out_of_it_or_floats() -> None:
    mask, floats, oval = (np.zeros((64, 64), np.float32) for _ in range(3))
    mask[10:50, 10:50], oval[10:50, 10:50] = 0.9, 1
    mask[20:22, 20:22] = mask[30:40, 14:24] = mask[30:40, 30:40] = mask[15:25, 40:50] = 0.2
    mask[60:62, 60:62] = 0.8
    floats[20:22, 20:22] = floats[30:40, 30:40] = 0.7
    plausible = parse._plausible(mask, floats, oval, 20)
    assert plausible[21, 21] > 0.5 > plausible[61, 61]  # specks
    assert plausible[35, 18] > 0.5 > plausible[35, 35]  # a hand amid the face, and glasses
    assert plausible[20, 45] < 0.5  # a hand from outside


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


@pytest.mark.parametrize(("light", "seen"), [(150, True), (40, False)])
def test_eyes_are_face_behind_clear_lenses_but_not_behind_dark_ones(landmarks: Points, light: int, seen: bool) -> None:
    pixels = np.full((SIZE, SIZE, 3), 180, np.uint8)
    glasses, face = np.zeros((2, SIZE, SIZE), bool)
    left, right = (landmarks[rows, :2].mean(0) for rows in (align.EYES[:16], align.EYES[16:]))
    top, bottom = int(left[1]) - 40, int(left[1]) + 40
    glasses[top:bottom, int(left[0]) - 50 : int(right[0]) + 50] = True
    face[bottom : bottom + 50] = True
    pixels[glasses] = light
    lenses = parse._clear_lenses(pixels, landmarks[:, :2], glasses, face)
    assert at(lenses, landmarks[align.EYES, :2]).all() == seen and lenses.any() == seen
    bridge = np.array([(left + right) / 2])
    assert not at(lenses, bridge).any() and not lenses[~glasses].any()


def test_an_eye_that_no_glasses_cover_stays_as_the_parser_saw_it(landmarks: Points) -> None:
    pixels, face = np.full((SIZE, SIZE, 3), 180, np.uint8), np.ones((SIZE, SIZE), bool)
    assert not parse._clear_lenses(pixels, landmarks[:, :2], ~face, face).any()


def test_glasses_reach_below_the_eyes_and_shadows_of_brows_do_not(
    crop: Pixels, landmarks: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = SIZE // 2
    rows, columns = np.indices((side, side)) + 0.5
    lids, brows = landmarks[align.EYES, 1].max() / 2, landmarks[parse.BROWS, 1].min() / 2
    left, right = (landmarks[parse.BROWS, 0].min() / 2, landmarks[parse.BROWS, 0].max() / 2)
    across = (columns > left) & (columns < right)
    shadow = across & (rows > brows) & (rows < lids - 3)
    glasses = across & (rows > brows) & (rows < lids + 8)
    strand = (abs(columns - (left + right) / 2) < 3) & (rows < brows - 8)

    def mask(seen: NDArray[np.bool_]) -> parse.Mask:
        """Of a face that is all skin, save where glasses are seen; in doubt the parser takes them for skin."""
        shares = np.zeros((len(CLASSES), side, side), np.float32)
        shares[CLASSES.index("skin")] = 0.25
        shares[CLASSES.index("glasses")] = 0.75 * seen
        shares /= shares.sum(0)
        monkeypatch.setattr(parse, "_parsed", lambda crop: (crop, shares))
        return parse.face_mask(crop, landmarks, SIZE)

    plain, eyes = mask(np.zeros_like(shadow)), landmarks[align.EYES]
    middle = np.array([landmarks[168, :2]])  # between the eyes, where no lens is
    assert at(plain, eyes).all() and np.array_equal(mask(shadow), plain)
    assert not at(mask(glasses), middle).any()
    hair = cv2.resize(strand.astype(np.float32), (SIZE, SIZE)) > 0.9
    assert plain[hair].any() and not mask(shadow | strand)[hair].any()


@pytest.mark.parametrize(("rims", "stay"), [(2, False), (6, True)])
def test_rims_stay_whole_or_not_at_all(
    rims: int, stay: bool, crop: Pixels, landmarks: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = SIZE // 2
    rows, columns = np.indices((side, side)) + 0.5
    worn, lens = np.zeros((2, side, side), bool)
    for eye in (align.EYES[:16], align.EYES[16:]):
        x, y = landmarks[eye, :2].mean(0) / 2
        worn |= np.maximum(abs(columns - x), abs(rows - y)) < 14
        lens |= np.maximum(abs(columns - x), abs(rows - y)) < 14 - rims
    shares = np.zeros((len(CLASSES), side, side), np.float32)
    shares[CLASSES.index("lens")] = lens
    shares[CLASSES.index("glasses")] = worn & ~lens
    shares[CLASSES.index("skin")] = ~worn
    monkeypatch.setattr(parse, "_parsed", lambda crop: (crop, shares.copy()))
    mask = parse.face_mask(crop, landmarks, side)
    assert mask[lens].mean() > 0.9
    replaced = mask[worn & ~lens].mean()
    assert replaced < 0.3 if stay else replaced > 0.99
    if stay:  # nor is a dark lens replaced whose upper part seems a clear one
        upper = lens & (rows < landmarks[align.EYES, 1].mean() / 2)
        shares[CLASSES.index("lens")], shares[CLASSES.index("glasses")] = upper, worn & ~upper
        monkeypatch.setattr(parse, "_parsed", lambda crop: (np.where(worn[..., None], crop // 8, crop), shares.copy()))
        dark = parse.face_mask(cv2.resize(crop, (side, side)), landmarks / 2, side)
        assert upper.sum() > 50 and dark[upper].mean() < 0.3


def test_whose_eyes_a_mask_leaves_out(landmarks: Points) -> None:
    whole = np.ones((SIZE, SIZE), np.float32)
    one, both = whole.copy(), whole.copy()
    for mask, rows in ((one, align.EYES[:16]), (both, align.EYES)):
        (left, top), (right, bottom) = landmarks[rows, :2].min(0), landmarks[rows, :2].max(0)
        mask[int(top) - 5 : int(bottom) + 5, int(left) - 5 : int(right) + 5] = 0
    assert [parse.hides_eyes(mask, landmarks) for mask in (whole, one, both)] == [False, False, True]
