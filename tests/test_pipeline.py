"""One photo in memory, on real detector, landmarks and networks."""

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from anonface.crypto.keys import CONSISTENT_SALT, Argon2, Key, salted_nonce
from anonface.errors import ContainerError, DeviceError, NoFaceError, UsageError
from anonface.faces import align
from anonface.faces.detect import build_detector
from anonface.faces.locate import face_in
from anonface.pipeline import Engine
from anonface.record import sealing
from anonface.record.anf1 import Header, Seal, decode, encode
from anonface.watermark import cipher

KEY, OTHER = (Key(bytes([i]) * 32) for i in (1, 2))

pytestmark = pytest.mark.usefixtures("unsearched")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    """A public-domain portrait (Eileen Collins, NASA)."""
    from skimage.data import astronaut

    return np.ascontiguousarray(astronaut())


@pytest.fixture(scope="module")
def anonymized(engine, photo):
    return engine.anonymize(photo, KEY)


def test_the_face_changes_and_nothing_else(photo, anonymized):
    changed = (anonymized.pixels != photo).any(2)
    rows, columns = np.nonzero(changed)
    assert changed.sum() > 2000
    assert rows.max() < 220 and columns.min() > 140 and columns.max() < 300
    assert [face.kind for face in anonymized.faces] == ["synth"]


def test_a_rim_changes_with_the_face_where_the_backend_says_so(engine, photo, monkeypatch):
    quad = engine._locate(photo, ())[0].quad
    changing = {}
    for margin in ("everywhere", "beyond", "none"):
        monkeypatch.setattr(engine.backend, "margin", margin)
        changing[margin] = engine._cut(photo, quad, engine.parser).soft > 0
    wide, beyond, narrow = changing.values()
    assert wide[beyond].all() and beyond[narrow].all()
    assert wide.sum() > beyond.sum() > 1.05 * narrow.sum()


def test_a_new_face_is_brought_into_the_photos_light_unless_the_backend_does_so(engine, photo, monkeypatch):
    monkeypatch.setattr(engine.backend, "anonymize", lambda faces, masks, keys: (faces - 0.4).clamp(-1, 1))
    monkeypatch.setattr(engine.backend, "write_watermark", lambda *_: None)
    darker = {}
    for matches_light in (True, False):
        monkeypatch.setattr(engine.backend, "matches_light", matches_light)
        shown = engine.anonymize(photo, KEY).pixels
        where = (shown != photo).any(2)
        darker[matches_light] = float(photo[where].mean() - shown[where].mean())
    assert darker[True] > 25 > 10 > darker[False]


def test_dark_glasses_stay_and_that_is_said(engine, photo, monkeypatch):
    quad, worn = engine._locate(photo, ())[0].quad, photo.copy()
    mesh = align.landmarks468(photo, face_in(quad))
    left, right = (mesh[rows, :2] for rows in (align.EYES[:16], align.EYES[16:]))
    for eye in (left, right):
        size = (np.ptp(eye[:, 0]) * np.array([1.0, 0.8])).astype(int).tolist()
        cv2.ellipse(worn, eye.mean(0).astype(int).tolist(), size, 0, 0, 360, (15, 15, 18), -1, cv2.LINE_AA)
    cv2.line(worn, *(eye.mean(0).astype(int).tolist() for eye in (left, right)), (15, 15, 18), 3, cv2.LINE_AA)
    monkeypatch.setattr(engine.backend, "anonymize", lambda faces, masks, keys: -faces)
    monkeypatch.setattr(engine.backend, "write_watermark", lambda *_: None)
    plain, hidden = engine.anonymize(photo, KEY), engine.anonymize(worn, KEY)
    for eye in (left, right):
        x, y = eye.mean(0).astype(int)
        assert np.array_equal(hidden.pixels[y, x], worn[y, x]) and not np.array_equal(plain.pixels[y, x], photo[y, x])
    assert plain.notes == () and len(hidden.notes) == 1
    assert hidden.notes[0].startswith("face 0: what hides the eyes stays")


def test_a_grey_photo_stays_grey(engine, photo, anonymized):
    grey = photo[..., 1:2].repeat(3, 2)
    hidden = engine.anonymize(grey, KEY, consistent=True)
    back = engine.recover(hidden.pixels, KEY)
    for before, after in ((grey, hidden.pixels), (hidden.pixels, back.pixels)):
        assert (before != after).sum() > 2000 and np.ptp(after, axis=2).max() == 0
    assert np.ptp(anonymized.pixels, axis=2).max() > 50


def test_what_is_sealed_covers_all_that_changed(engine, photo, anonymized):
    wide = np.concatenate([photo, np.full((512, 100, 3), 90, np.uint8)], axis=1)[:, 60:]  # another place in the photo
    for original, result in ((photo, anonymized), (wide, engine.anonymize(wide, KEY, boxes=[(500, 400, 60, 90)]))):
        contents = sealing.of_pixels(result.header, original, result.pixels, None)
        assert len(contents.data) < original.size
        assert np.array_equal(sealing.mended(result.header, contents, result.pixels, None), original)


def test_the_header_says_what_recovery_needs(engine, photo, anonymized):
    header = decode(encode(anonymized.header))
    assert header == anonymized.header
    assert header.backend == "inpaint" and {**header.parameters, "nonces": ""} == {"parser": "trained", "nonces": ""}
    assert len(bytes.fromhex(str(header.parameters["nonces"]))) == 8
    assert header.canvas == (512, 512) and header.weights_digest == engine.backend.digest()


def test_every_photo_has_its_salt_unless_consistent(engine, photo, anonymized):
    again = engine.anonymize(photo, KEY)
    assert again.header.flow_salt != anonymized.header.flow_salt
    assert not np.array_equal(again.pixels, anonymized.pixels)


@pytest.fixture(scope="module")
def sealed(engine, photo):
    """A photo into whose record an original is going to be sealed."""
    return engine.anonymize(photo, KEY, sealed=True)


@pytest.mark.slow
def test_consistent_photos_show_the_same_person_and_say_it_under_nonces_of_their_own(engine, photo, monkeypatch):
    said: list[tuple[bytes, str]] = []
    encrypt = cipher.encrypt
    with monkeypatch.context() as spied:
        spied.setattr(
            cipher, "encrypt", lambda v, key, name: said.append((key.derive("x"), name)) or encrypt(v, key, name)
        )
        first, second = (engine.anonymize(photo, KEY, consistent=True) for _ in range(2))
    assert len({key for key, _ in said}) == 2 and len(said) == len(set(said)) > 2  # no stream is used twice
    apart = np.abs(first.pixels.astype(int) - second.pixels)
    assert first.header.parameters["nonces"] != second.header.parameters["nonces"] and apart.any() and apart.mean() < 1
    monkeypatch.setattr("anonface.pipeline.fresh_nonce", lambda: bytes(8))
    first, second = (engine.anonymize(photo, KEY, consistent=True) for _ in range(2))
    assert np.array_equal(first.pixels, second.pixels)


def test_a_record_that_was_changed_is_known_to_the_key_and_to_it_alone(engine, sealed):
    """A seal that was taken away, above all. Under another key nothing is said: nobody is to see that it was wrong."""
    header, seal = sealed.header, Seal("file", bytes(16), bytes(32))
    assert header.parameters["sealed"] is True
    bare = {name: value for name, value in header.parameters.items() if name != "sealed"}
    for forged in (replace(header, parameters=bare), replace(header, parameters={**header.parameters, "free": "age"})):
        with pytest.raises(ContainerError, match="record was changed since the photo was made"):
            engine.recover(sealed.pixels, KEY, forged)
    assert engine.recover(sealed.pixels, OTHER, replace(header, parameters=bare)).notes == ()
    assert engine.recover(sealed.pixels, KEY, header).notes == ()  # what a call returned is as it was made
    kdf = Argon2(bytes(16), 64, 1, 1)  # rekeying changes these, and vouches for them by the seal
    assert engine.recover(sealed.pixels, KEY, replace(header, kdf=kdf, seal=seal, producer="9.9")).notes == ()


def test_a_record_of_another_photo_is_refused_under_any_key(engine, photo, sealed):
    def saying(nonces: str) -> Header:
        return replace(sealed.header, parameters={**sealed.header.parameters, "nonces": nonces})

    for key in (KEY, OTHER):
        with pytest.raises(ContainerError, match="its nonces are not those of its salt"):
            engine.recover(sealed.pixels, key, saying("12345678" * 2))
        with pytest.raises(ContainerError, match="does not belong to this picture"):
            engine.recover(sealed.pixels, key, salted(sealed.header))
    assert "no watermark was read" in engine.recover(photo, KEY, sealed.header).notes[0]
    for nonces in ("", "xy", "1234", "12345678" * 2 + " " + "12345678" * 2):
        with pytest.raises(ContainerError, match="damaged"):
            engine.recover(sealed.pixels, KEY, saying(nonces))


def salted(header: Header, salt: bytes = bytes(16)) -> Header:
    """A record whose salt was changed, with the nonces that follow from it."""
    nonces = " ".join(salted_nonce(salt, header.backend, i).hex() for i in range(len(header.faces)))
    return replace(header, flow_salt=salt, parameters={**header.parameters, "nonces": nonces})


def test_a_record_with_another_salt_mode_or_list_of_faces_is_not_taken_in_silence(engine, sealed):
    """Such a record would make the right key look like a wrong one."""
    header = sealed.header
    same = replace(header, consistent=True, flow_salt=CONSISTENT_SALT)
    for forged in (replace(header, flow_salt=bytes(16)), replace(header, consistent=True), same):
        with pytest.raises(ContainerError, match="its nonces are not those of its salt"):
            engine.recover(sealed.pixels, KEY, forged)
    nonces = bytes.fromhex(str(header.parameters["nonces"]))
    odd = (nonces[:-1] + bytes([nonces[-1] | 1])).hex()
    with pytest.raises(ContainerError, match="does not belong to this picture"):
        engine.recover(sealed.pixels, KEY, replace(same, parameters={**header.parameters, "nonces": odd}))
    covered = tuple(replace(face, kind="mosaic") for face in header.faces)
    for faces in (covered, ()):
        emptied = replace(header, faces=faces, parameters={**header.parameters, "nonces": ""})
        assert "no face that can be recovered" in engine.recover(sealed.pixels, KEY, emptied).notes[0]
    early = replace(salted(header), weights_digest=engine.backend.earlier_digests()[0])
    early = replace(early, parameters=header.parameters)
    assert "an earlier version made it" in engine.recover(sealed.pixels, KEY, early).notes[0]


def test_records_of_version_5_fit(engine, sealed):
    parameters = {name: value for name, value in sealed.header.parameters.items() if name not in ("nonces", "sealed")}
    early = replace(sealed.header, parameters=parameters, weights_digest=engine.backend.earlier_digests()[-1])
    assert engine._fitting(early, sealed.pixels)[0].parameters() == {}
    with pytest.raises(ContainerError, match="record was changed"):  # these pixels are of today
        engine.recover(sealed.pixels, KEY, early)


def test_recovery_runs_with_and_without_a_header(engine, photo, anonymized):
    right = engine.recover(anonymized.pixels, KEY, anonymized.header)
    wrong = engine.recover(anonymized.pixels, OTHER, anonymized.header)
    assert right.verified == wrong.verified == "unknown"
    assert not np.array_equal(right.pixels, wrong.pixels)
    stateless = engine.anonymize(photo, KEY, consistent=True)
    back, strange = (engine.recover(stateless.pixels, key) for key in (KEY, OTHER))
    assert back.faces[0].kind == strange.faces[0].kind == "synth"
    assert back.notes == () and "--stateless under this key by backend 'inpaint'" in strange.notes[0]


@pytest.mark.slow
def test_the_imprint_is_made_for_what_recovery_will_cut(engine, photo, monkeypatch):
    squares, pattern = [], torch.zeros(1, 3, 64, 64)
    pattern[:, :, 28:36, 28:36] = 0.1

    def write_watermark(shown, face, original, mask, key):
        assert shown.shape == face.shape == original.shape and mask.shape == (1, 1, *face.shape[2:])
        assert not torch.equal(shown, face)
        squares.append((original, face))
        return pattern

    monkeypatch.setattr(engine.backend, "write_watermark", write_watermark)
    marked = engine.anonymize(photo, KEY, consistent=True).pixels
    engine.anonymize(photo, KEY)
    monkeypatch.setattr(engine.backend, "write_watermark", lambda *_: None)
    unmarked = engine.anonymize(photo, KEY, consistent=True).pixels
    # without a header recovery looks for the new face, whose landmarks lie elsewhere; with one it cuts the same square
    moved, same = squares[0], squares[-1]
    assert 1e-4 < (moved[0] - moved[1]).abs().mean() < 0.2 and torch.equal(*same)
    raised = (marked.astype(int) - unmarked).max(2) >= 10
    rows, columns = np.nonzero(raised)
    assert 30 < raised.sum() < 1500 and np.ptp(rows) < 40 and np.ptp(columns) < 40


def test_a_header_of_something_else_is_refused(engine, anonymized):
    with pytest.raises(ContainerError, match="backend 'dbaf'"):
        engine.recover(anonymized.pixels, KEY, replace(anonymized.header, backend="dbaf"))
    with pytest.raises(ContainerError, match="other network weights"):
        engine.recover(anonymized.pixels, KEY, replace(anonymized.header, weights_digest=bytes(32)))
    with pytest.raises(ContainerError, match="512x512 px, its record says 500x500"):
        engine.recover(anonymized.pixels, KEY, replace(anonymized.header, canvas=(500, 500)))


def test_no_face_is_said(engine):
    with pytest.raises(NoFaceError):
        engine.anonymize(np.full((200, 300, 3), 128, np.uint8), KEY)


def test_a_face_too_small_is_covered_and_reported(engine, photo):
    import cv2

    small = np.full((300, 300, 3), 200, np.uint8)
    small[100:170, 100:170] = cv2.resize(photo[0:280, 90:370], (70, 70), interpolation=cv2.INTER_AREA)
    result = engine.anonymize(small, KEY)
    assert [face.kind for face in result.faces] == ["mosaic"]
    assert "too small" in result.faces[0].reason
    assert not np.array_equal(result.pixels, small)
    back = engine.recover(result.pixels, KEY, result.header)
    assert np.array_equal(back.pixels, result.pixels)  # a mosaic is not undone


def test_a_box_over_a_detected_face_takes_its_place(engine, photo):
    (found,) = engine._locate(photo, ())
    x, y, w, h = found.box
    named = engine._locate(photo, [(x + 3, y - 2, w, h)])
    assert [face.box for face in named] == [(x + 3, y - 2, w, h)]
    assert len(engine._locate(photo, [(x + 2 * w, y, w, h)])) == 2


class Inverting:
    """An unrefined backend: faces become their negatives."""

    name, resolutions, margin = "inverting", (256,), "none"
    exact, batched, marked, records_masks, matches_light = True, True, False, False, True

    def parameters(self):
        return {}

    def digest(self):
        return bytes(32)

    def anonymize(self, faces, masks, keys):
        return -faces

    def visible(self, masks):
        return masks


@pytest.fixture(scope="module")
def quick():
    """The real detector, landmarks and parser around that backend."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("anonface.pipeline.build", lambda name, device, settings: Inverting())
        return Engine(device="cpu")


def example(name: str) -> Image.Image:
    """Somebody who does not exist."""
    return Image.open(Path(__file__).parents[1] / "examples" / name)


def front() -> tuple[Image.Image, list[tuple[int, int, int, int]]]:
    """A woman's picture before a man's cheek, and where both faces' middles are."""
    photo = Image.new("RGB", (800, 700))
    photo.paste(example("large.jpg").resize((640, 640)), (80, 30))
    photo.paste(example("evening.jpg").crop((120, 130, 520, 600)).resize((100, 118)), (455, 377))
    return photo, [(300, 260, 400, 360), (485, 410, 530, 470)]


def side() -> tuple[Image.Image, list[tuple[int, int, int, int]]]:
    """A man who hides half of a woman's face."""
    photo = Image.new("RGB", (800, 600))
    photo.paste(example("evening.jpg").resize((400, 400)).crop((95, 75, 377, 400)), (100, 150))
    photo.paste(example("large.jpg").resize((400, 400)).crop((94, 66, 372, 430)), (220, 160))
    return photo, [(150, 220, 215, 380), (260, 260, 350, 380)]


@pytest.mark.parametrize("scene", [front, side])
def test_overlapping_faces_are_both_changed_and_sealed(quick, scene):
    picture, places = scene()
    photo = np.asarray(picture)
    result = quick.anonymize(photo, KEY)
    assert len(result.faces) >= 2
    for left, top, right, bottom in places:
        part = (slice(top, bottom), slice(left, right))
        assert (result.pixels[part] != photo[part]).any(2).mean() > 0.75
    contents = sealing.of_pixels(result.header, photo, result.pixels, None)
    assert np.array_equal(sealing.mended(result.header, contents, result.pixels, None), photo)


def test_a_close_up_beyond_the_frame_is_covered_whole(quick):
    photo = np.asarray(example("evening.jpg").crop((151, 178, 520, 547)).resize((1200, 1200)))
    result = quick.anonymize(photo, KEY)
    changed = (result.pixels != photo).any(2)
    for left, top, right, bottom in ((130, 310, 380, 480), (680, 300, 980, 470), (300, 820, 800, 1060)):
        assert changed[top:bottom, left:right].mean() > 0.98  # eyes, mouth


def test_a_box_does_not_take_the_place_of_another_face_beside_it(quick):
    photo = np.asarray(side()[0])
    woman, man = (face.box for face in sorted(quick._locate(photo, ()), key=lambda face: face.box[0])[:2])
    located = quick._locate(photo, [woman])
    assert any(np.allclose(face.box, man) for face in located)
    assert any(np.allclose(face.box, woman) for face in located)


def test_what_is_seen_in_the_finished_photo_is_covered_and_said(quick, monkeypatch):
    photo = np.asarray(front()[0])
    first = quick.detector.detect(photo)
    large = max(first, key=lambda face: face.box[2])

    class Forgetful:
        """Overlooks the small face at first."""

        looks = 0

        def detect(self, rgb):
            self.looks += 1
            return [large] if self.looks == 1 else build_detector().detect(rgb)

    monkeypatch.setattr(quick, "detector", Forgetful())
    result = quick.anonymize(photo, KEY)
    assert (result.pixels[410:470, 485:530] != photo[410:470, 485:530]).any(2).mean() > 0.9
    assert result.faces[-1].kind == "mosaic" and "finished photo" in result.faces[-1].reason
    assert "finished photo" in result.notes[-1] and result.header.faces[-1].kind == "mosaic"
    contents = sealing.of_pixels(result.header, photo, result.pixels, None)
    assert np.array_equal(sealing.mended(result.header, contents, result.pixels, None), photo)


@pytest.fixture(scope="module")
def couple(photo):
    """The astronaut, darker, shrunk and as a JPEG, on the left; somebody else, larger, on the right."""
    import cv2

    stranger = cv2.imread(str(Path(__file__).parents[1] / "examples" / "evening.jpg"))
    assert stranger is not None
    side = np.full((512, 512, 3), 90, np.uint8)
    side[150:512, 80:442] = cv2.resize(stranger[:, :, ::-1], (362, 362), interpolation=cv2.INTER_AREA)
    both = np.hstack([(photo * 0.8).astype(np.uint8), side])
    return cv2.imdecode(cv2.imencode(".jpg", both[:, :, ::-1])[1], cv2.IMREAD_COLOR)[:, :, ::-1].copy()


def changed_halves(before, after):
    return [bool((before[:, part] != after[:, part]).any()) for part in (slice(0, 512), slice(512, 1024))]


@pytest.mark.parametrize(
    ("chosen", "kept"), [("all", []), ("largest", [0]), ((0,), [1]), ((1,), [0]), ((1, 0), []), ((1, 1), [0])]
)
def test_which_faces_are_left_as_they_are(engine, couple, chosen, kept):
    found = engine._locate(couple, ())
    areas = [face.box[2] * face.box[3] for face in found]
    assert len(found) == 2 and areas[0] < areas[1]
    assert list(engine._kept(couple, found, chosen)) == kept


def test_a_face_that_is_left_is_not_in_the_header(engine, couple):
    left = engine._locate(couple, ())[0].box[0] < 512
    result = engine.anonymize(couple, KEY, faces=(1,))
    assert changed_halves(couple, result.pixels) == [not left, left]
    assert [(face.index, face.kind) for face in result.faces] == [(0, "kept"), (1, "synth")]
    assert len(result.header.faces) == 1
    back = engine.recover(result.pixels, KEY, decode(encode(result.header)))
    assert changed_halves(result.pixels, back.pixels) == [not left, left]


@pytest.mark.parametrize(("batched", "begun"), [(False, [1, 2]), (True, [1])])
def test_work_on_a_face_is_told_as_it_begins(engine, photo, monkeypatch, batched, begun):
    told = []
    monkeypatch.setattr(engine, "watch", lambda *what: told.append(what))
    monkeypatch.setattr(engine.backend, "batched", batched)
    for work in ("anonymize", "recover"):
        monkeypatch.setattr(engine.backend, work, lambda faces, masks, keys: faces)
    monkeypatch.setattr(engine.backend, "write_watermark", lambda *_: None)
    twins = np.hstack([photo, photo])
    header = engine.anonymize(twins, KEY).header
    rendering = [("rendering", number, 2) for number in begun]
    assert told == [*rendering, ("watermarking", 1, 2), ("watermarking", 2, 2)]
    told.clear()
    engine.recover(twins, KEY, header)
    assert told == rendering


def test_a_number_that_no_face_has(engine, couple):
    with pytest.raises(UsageError, match="no face 2: the photo has 2"):
        engine.anonymize(couple, KEY, faces=(0, 2))


def test_people_to_keep_are_known_again(photo, couple):
    friend = Engine(keep=[("astronaut.png", photo)])
    result = friend.anonymize(couple, KEY, consistent=True)
    assert changed_halves(couple, result.pixels) == [False, True]
    assert sorted(face.kind for face in result.faces) == ["kept", "synth"]
    back = friend.recover(result.pixels, KEY)
    assert changed_halves(result.pixels, back.pixels) == [False, True]


def test_portraits_of_people_to_keep(photo, couple):
    with pytest.raises(UsageError, match=r"'both\.png' shows 2 faces"):
        Engine(keep=[("both.png", couple)])
    with pytest.raises(UsageError, match=r"'none\.png' shows 0 faces"):
        Engine(keep=[("none.png", np.full((200, 200, 3), 99, np.uint8))])


def test_a_photo_without_a_face_may_pass(engine):
    grey = np.full((200, 300, 3), 128, np.uint8)
    result = engine.anonymize(grey, KEY, faceless=True)
    assert np.array_equal(result.pixels, grey) and result.faces == []
    assert np.array_equal(engine.recover(grey, KEY, decode(encode(result.header))).pixels, grey)


def test_a_large_face_is_rendered_at_its_own_resolution(engine, photo):
    import cv2

    from anonface.faces import align

    large = cv2.resize(photo[0:280, 90:370], (1400, 1400), interpolation=cv2.INTER_CUBIC)
    located = engine._locate(large, ())
    assert align.crop_size(located[0].quad) == 1024


def test_memory_errors_say_what_lowers_it(engine, photo, monkeypatch):
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(engine.backend, "anonymize", full)
    with pytest.raises(DeviceError, match="out of memory") as caught:
        engine.anonymize(photo, KEY)
    assert "--batch-size" in caught.value.hint


def test_a_painted_face_is_covered_and_not_repainted_in_part(engine, monkeypatch):
    """Its parser takes the paint for something before the face, and most of the face would stay."""
    from PIL import Image

    with Image.open(Path(__file__).parents[1] / "examples" / "large.jpg") as picture:
        plain = np.asarray(picture.convert("RGB").resize((300, 300)))
    painted = plain.astype(float)
    painted[:, 150:] = 0.35 * painted[:, 150:] + 0.65 * np.array([0, 150, 40])
    monkeypatch.setattr(engine.backend, "anonymize", lambda faces, masks, keys: -faces)
    monkeypatch.setattr(engine.backend, "write_watermark", lambda *_: None)
    kinds = [engine.anonymize(pixels.astype(np.uint8), KEY).faces[0] for pixels in (plain, painted)]
    assert [(face.kind, face.reason) for face in kinds] == [("synth", ""), ("mosaic", "mostly hidden")]
