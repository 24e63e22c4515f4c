"""Seals: what went in comes out, under the right key alone, and no damage or trick ever brings out anything else."""

import io
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import second
from fake import FakeEngine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from anonface import anonymize, recover
from anonface.api import rekey, strip
from anonface.batch.task import Anonymizing, Opened
from anonface.crypto.keys import CONSISTENT_SALT, Key
from anonface.errors import (
    AnonfaceError,
    ContainerError,
    KeyFileError,
    LimitError,
    OutputError,
    UsageError,
    WrongKeyError,
)
from anonface.images import Photo, size_of
from anonface.record import anf1, carriers, sealing
from anonface.record.anf1 import FaceEntry, Header, decode, encode
from anonface.record.sealing import Contents, padded_size, region, seal, unseal

KEY, OTHER = (Key(bytes([n]) * 32) for n in (1, 2))
QUAD = ((2.0, 2.0), (2.0, 9.5), (9.5, 9.5), (9.5, 2.0))
HEADER = Header(
    backend="fake",
    parameters={"refine": 1},
    flow_salt=bytes(range(16)),
    consistent=False,
    kdf=None,
    weights_digest=bytes(32),
    canvas=(40, 32),
    faces=(FaceEntry(QUAD),),
)


@pytest.fixture(autouse=True)
def room(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def opened(record, key=KEY):
    return unseal(decode(record), anf1.payload(record), key)


def noise(shape=(32, 40, 3), seed=0):
    return np.random.default_rng(seed).integers(1, 255, shape, np.uint8)


def saved(pixels, format="png", **options):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format, **options)
    return buffer.getvalue()


# --- In and out ------------------------------------------------------------------------------------------------------


contents = st.builds(
    Contents,
    tier=st.just("file"),
    binding=st.binary(min_size=32, max_size=32),
    suffix=st.from_regex(sealing.SUFFIX, fullmatch=True),
    data=st.binary(max_size=200) | st.sampled_from([bytes(16_338 + n) for n in range(4)] + [bytes(100_000)]),
    withheld=st.booleans(),
)


@given(contents)
def test_round_trip(inner):
    record = seal(HEADER, KEY, inner)
    back = opened(record)
    assert replace(back, data=bytes(back.data)) == inner
    with pytest.raises(WrongKeyError):
        opened(record, OTHER)
    assert len(inner.data) < 16 or inner.data[:64] not in anf1.payload(record).tobytes()


def test_every_seal_is_fresh_and_its_length_says_little():
    inner = Contents("file", data=b"the very same original")
    one, two = seal(HEADER, KEY, inner), seal(HEADER, KEY, inner)
    assert decode(one).seal.salt != decode(two).seal.salt != HEADER.flow_salt
    assert decode(one).seal.check != decode(two).seal.check
    assert bytes(anf1.payload(one)) != bytes(anf1.payload(two))
    sizes = {len(seal(HEADER, KEY, Contents("file", data=bytes(n)))) for n in range(60_000, 62_000, 10)}
    assert len(sizes) <= 3


@given(st.integers(2, 2**40))
def test_padding(size):
    assert size <= padded_size(size) <= max(1.12 * size, size + 1)
    assert padded_size(padded_size(size)) == padded_size(size)


@pytest.mark.parametrize("suffix", ["", ".jpg", ".JPEG", ".heic"])
def test_suffixes_kept(suffix):
    assert sealing.of_file(b"x", suffix, bytes(32)).suffix == suffix


@pytest.mark.parametrize("suffix", [".é", "./x", ".a b", ".jpg\n", "." + "a" * 16, "."])
def test_suffixes_left_out(suffix):
    assert sealing.of_file(b"x", suffix, bytes(32)).suffix == ""


def test_unsealed_records_hold_nothing():
    assert opened(encode(HEADER), OTHER) == Contents("none")


# --- Face pixels -----------------------------------------------------------------------------------------------------


def test_the_region():
    inside = region(HEADER)
    rows, columns = np.nonzero(inside)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (1, 10, 1, 10) and inside.sum() == 100
    outside = ((-9.0, -9.0), (-9.0, -5.0), (-5.0, -5.0), (-5.0, -9.0))
    far = ((90.0, 90.0), (90.0, 95.0), (95.0, 95.0), (95.0, 90.0))
    assert not region(replace(HEADER, faces=(FaceEntry(outside), FaceEntry(far)))).any()
    huge = ((-900.0, -900.0), (-900.0, 900.0), (900.0, 900.0), (900.0, -900.0))
    assert region(replace(HEADER, faces=(FaceEntry(huge),))).all()


def test_a_change_outside_the_faces_is_never_sealed_as_if_it_came_back():
    original = noise()
    for y, x in ((0, 0), (31, 39), (11, 5), (5, 11)):
        changed = original.copy()
        changed[y, x, 0] ^= 1
        with pytest.raises(ValueError, match="outside"):
            sealing.of_pixels(HEADER, original, changed, None)
    inside = noise()
    inside[5, 5, 0] ^= 1
    back = sealing.mended(HEADER, sealing.of_pixels(HEADER, original, inside, None), inside, None)
    assert (back == original).all() and (inside != original).any()


@pytest.mark.parametrize(("y", "x"), [(0, 0), (0, 39), (31, 0), (31, 39), (11, 5), (5, 11)])
def test_a_pixel_outside_the_faces_is_bound(y, x):
    original, hidden = noise(), noise()
    hidden[1:11, 1:11] = 0
    inner = sealing.of_pixels(HEADER, original, hidden, None)
    hidden[2, 2] = 77  # inside, where the original is put back anyway
    assert (sealing.mended(HEADER, inner, hidden, None) == original).all()
    hidden[y, x, 2] ^= 1
    with pytest.raises(ContainerError, match="does not belong"):
        sealing.mended(HEADER, inner, hidden, None)


# --- Whole files -----------------------------------------------------------------------------------------------------

INPUTS = {
    "jpeg": lambda p: saved(p, "jpeg", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0", comment=b"where it was taken"),
    "jpg": lambda p: saved(p, "jpeg", progressive=True) + b"a video behind the picture",
    "png": lambda p: saved(p, "png", dpi=(72, 72)),
    "PNG": lambda p: saved(np.dstack([p, p[..., 0]]), "png"),
    "webp": lambda p: saved(p, "webp", lossless=True),
    "tiff": lambda p: saved(p, "tiff"),
    "bmp": lambda p: saved(p, "bmp"),
    "ppm": lambda p: saved(p, "ppm"),
}
OUTPUTS = ("png", "webp", "jpg")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(sorted(INPUTS)),
    output=st.sampled_from(OUTPUTS),
    tier=st.sampled_from(["file", "face"]),
    consistent=st.booleans(),
    beside=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
    size=st.tuples(st.integers(16, 60), st.integers(16, 60)),
)
def test_what_is_sealed_comes_back(tmp_path, kind, output, tier, consistent, beside, seed, size):
    """Formats x tiers x modes: recover(anonymize(x)) == x."""
    photo, hidden = tmp_path / f"photo.{kind}", tmp_path / f"photo.anon.{output}"
    data = INPUTS[kind](noise((*size, 3), seed))
    photo.write_bytes(data)
    sidecar = tmp_path / "photo.anf" if beside else None
    options = dict(engine=FakeEngine, seal=tier, consistent=consistent, sidecar=sidecar, overwrite=True)
    if output == "jpg" and (tier == "face" or kind == "PNG"):
        with pytest.raises(UsageError):
            anonymize(photo, KEY, hidden, **options)
        return
    before = anonymize(photo, KEY, hidden, **options)
    assert data not in hidden.read_bytes()
    target = tmp_path / ("back.png" if tier == "face" else f"back.{kind}")
    back = recover(hidden, KEY, target, sidecar=sidecar, overwrite=True, engine=None)
    assert (back.tier, back.verified, back.file) == (tier, "yes", target) and len(back.faces) == len(before.faces)
    if tier == "file":
        assert target.read_bytes() == data == back.original
    with Image.open(photo) as one, Image.open(target) as two:
        assert (np.asarray(one.convert("RGB")) == np.asarray(two.convert("RGB"))).all()
        assert (np.asarray(two.convert("RGB")) == back.pixels).all()
        if kind == "PNG":
            assert (np.asarray(one.getchannel("A")) == np.asarray(two.getchannel("A"))).all()
    assert (before.pixels != back.pixels).any()
    with pytest.raises(WrongKeyError):
        recover(hidden, OTHER, tmp_path / "never.png", sidecar=sidecar, engine=None)
    assert not (tmp_path / "never.png").exists()


class GreyEngine(FakeEngine):
    """Grey photos stay grey, as the real engine leaves them."""

    def anonymize(self, pixels, key, **options):
        result = super().anonymize(pixels, key, **options)
        return replace(result, pixels=result.pixels[..., :1].repeat(3, 2))


@pytest.mark.parametrize("sidecar", [None, "a.anf"])
@pytest.mark.parametrize("mode", ["L", "LA"])
@pytest.mark.parametrize(("carrier", "back"), [("png", "png"), ("webp", "png"), ("png", "webp")])
def test_grey_photos_come_back_as_such(mode, carrier, back, sidecar):
    """Not by way of WebP, which has no grey."""
    original = Image.fromarray(noise()[..., : len(mode)].squeeze())
    assert original.mode == mode
    original.save("a.png")
    hidden = f"hidden.{carrier}"
    anonymize("a.png", KEY, hidden, seal="face", engine=GreyEngine, sidecar=sidecar)
    recover(hidden, KEY, f"back.{back}", engine=None, sidecar=sidecar)
    with Image.open(hidden) as between, Image.open(f"back.{back}") as again:
        assert (np.asarray(again.convert("RGBA")) == np.asarray(original.convert("RGBA"))).all()
        assert (np.asarray(between.convert("RGBA")) != np.asarray(original.convert("RGBA"))).any()
        if "webp" not in (carrier, back):
            assert between.mode == again.mode == mode and (np.asarray(again) == np.asarray(original)).all()


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
def test_a_second_reader_agrees_on_every_mode(mode):
    pixels = noise()
    if mode[0] == "L":
        pixels = pixels[..., :1].repeat(3, 2)
    Image.fromarray(np.dstack([pixels, noise()[..., 0]])).convert(mode).save("a.png")
    anonymize("a.png", KEY, "hidden.png", seal="face", engine=GreyEngine if mode[0] == "L" else FakeEngine)
    with Image.open("hidden.png") as between:
        assert between.mode == mode
    _, contents = second.recover(Path("hidden.png").read_bytes(), bytes([1]) * 32)
    assert contents["pixels"] == pixels.tobytes()


def put(name="photo.jpg", data=None, **options):
    Path(name).write_bytes(saved(noise(), "jpeg") if data is None else data)
    anonymize(name, KEY, "hidden.png", engine=FakeEngine, **options)
    return Path(name).read_bytes(), Path("hidden.png").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("tier", "output"), [("file", "png"), ("file", "jpg"), ("file", "webp"), ("face", "png")])
def test_every_byte_flipped_in_turn(tier, output):
    """The identical original, or a refusal; never another original."""
    small = np.full((16, 16, 3), 120, np.uint8)
    Path("photo.png").write_bytes(saved(small))
    anonymize("photo.png", KEY, f"hidden.{output}", engine=FakeEngine, seal=tier)
    original, hidden = Path("photo.png").read_bytes(), Path(f"hidden.{output}").read_bytes()
    same = refused = 0
    for at in range(len(hidden)):
        damaged = bytearray(hidden)
        damaged[at] ^= 1 << at % 8
        Path("damaged").write_bytes(damaged)
        try:
            back = recover("damaged", KEY, engine=None)
        except AnonfaceError as error:
            assert error.exit_code in (4, 7, 8, 11), error
            refused += 1
        else:
            assert back.original == original if tier == "file" else (back.pixels == small).all()
            same += 1
    assert refused > len(hidden) / 2
    record = carriers.extract(hidden)
    assert refused >= len(record) and same + refused == len(hidden)


def test_a_jpeg_carries_a_large_original_over_many_segments():
    original, _ = put("photo.png", saved(noise((400, 500, 3))))
    anonymize("photo.png", KEY, "hidden.jpg", engine=FakeEngine)
    hidden = Path("hidden.jpg").read_bytes()
    assert len(original) > 9 * 65_536 and hidden.count(b"ANONFACE\0") > 9
    assert recover("hidden.jpg", KEY, engine=None).original == original
    assert (np.asarray(Image.open("hidden.jpg")) == np.asarray(Image.open(io.BytesIO(carriers.strip(hidden))))).all()


def test_a_record_of_another_photo_is_refused():
    _, first = put("a.png", saved(noise(seed=1)))
    _, second = put("b.png", saved(noise(seed=2)), overwrite=True)
    Path("spliced.png").write_bytes(carriers.embed(first, carriers.extract(second)))
    with pytest.raises(ContainerError, match="does not belong to this picture"):
        recover("spliced.png", KEY, engine=None)
    one, two = (carriers.extract(data) for data in (first, second))
    crossed = encode(decode(one), [bytes(anf1.payload(two))])
    Path("crossed.png").write_bytes(carriers.embed(first, crossed))
    with pytest.raises(ContainerError, match="not sealed together"):
        recover("crossed.png", KEY, engine=None)


def test_a_picture_saved_again_keeps_its_original_in_a_sidecar():
    original, _ = put(sidecar="record.anf")
    Image.open("hidden.png").convert("L").save("again.jpg")
    with pytest.raises(ContainerError, match="carries no anonface record"):
        recover("again.jpg", KEY, engine=None)
    assert recover("again.jpg", KEY, sidecar="record.anf", engine=None).original == original


@pytest.mark.parametrize("size", [None, (40, 30)])
def test_a_sidecar_of_another_photo_is_refused(size):
    """Its original would pass for the picture's own."""
    original, _ = put(sidecar="record.anf")
    other = Image.fromarray(noise(seed=9))
    other.resize(size or other.size).save("other.png")
    with pytest.raises(ContainerError, match=r"belongs to another photo than 'other\.png'") as caught:
        recover("other.png", KEY, "never.png", sidecar="record.anf", engine=None)
    assert caught.value.exit_code == 8 and "itself as --sidecar" in caught.value.hint and not Path("never.png").exists()
    assert recover("record.anf", KEY, sidecar="record.anf", engine=None).original == original


@pytest.mark.parametrize("place", ["inside", "beside"])
def test_a_seal_that_was_taken_away_is_missed(place):
    """By whoever did not hide that there was one; whoever did is told by the faces (tests/test_pipeline.py)."""
    _, hidden = put(sidecar="record.anf")
    header = decode(Path("record.anf").read_bytes())
    bare = encode(replace(header, parameters={**header.parameters, "sealed": True}, seal=None))
    Path("bare.png").write_bytes(carriers.embed(hidden, bare))
    Path("bare.anf").write_bytes(bare)
    with pytest.raises(ContainerError, match="encrypted original was removed"):
        recover("bare.png", KEY, "never.png", sidecar="bare.anf" if place == "beside" else None, engine=FakeEngine)
    assert not Path("never.png").exists()


def test_a_picture_is_known_again_after_a_resize():
    rng = np.random.default_rng(1)
    smooth = np.asarray(Image.fromarray(rng.integers(0, 256, (9, 12, 3), np.uint8)).resize((160, 120)))
    original, _ = put(data=saved(smooth, "jpeg"), sidecar="record.anf")
    Image.open("hidden.png").resize((80, 60)).save("smaller.jpg")
    assert recover("smaller.jpg", KEY, sidecar="record.anf", engine=None).original == original


def test_a_changed_picture_still_gives_its_original_when_asked_to():
    original, hidden = put()
    Path("edited.png").write_bytes(carriers.embed(saved(noise(seed=9)), carriers.extract(hidden)))
    with pytest.raises(ContainerError, match="does not belong") as caught:
        recover("edited.png", KEY, engine=None)
    assert "--sidecar" in caught.value.hint
    assert recover("edited.png", KEY, sidecar="edited.png", engine=None).original == original


def test_a_decoy_is_what_the_networks_make_of_a_wrong_key():
    original, _ = put()
    back = recover("hidden.png", OTHER, "decoy.png", decoy=True, engine=FakeEngine)
    assert (back.tier, back.verified, back.file) == ("none", "no", Path("decoy.png")) and back.original is None
    assert (np.asarray(Image.open("decoy.png")) == back.pixels).all()
    true = recover("hidden.png", KEY, decoy=True, engine=None)
    assert true.verified == "yes" and true.original == original and (true.pixels != back.pixels).any()


def test_the_networks_alone_on_request():
    put()
    back = recover("hidden.png", KEY, unsealed=True, engine=FakeEngine)
    assert (back.tier, back.verified) == ("none", "yes")
    assert (back.pixels == np.asarray(Image.open("photo.jpg"))).all()


def test_an_original_keeps_its_own_suffix():
    original, _ = put("photo.JPEG")
    assert recover("hidden.png", KEY, "a.png", original_suffix=True, engine=None).file == Path("a.JPEG")
    assert recover("hidden.png", KEY, "b.jpg", engine=None).file == Path("b.jpg")
    assert Path("a.JPEG").read_bytes() == Path("b.jpg").read_bytes() == original
    with pytest.raises(UsageError, match=r"is a \.JPEG"):
        recover("hidden.png", KEY, "c.png", engine=None)
    with pytest.raises(OutputError, match="exists"):
        recover("hidden.png", KEY, "a.png", original_suffix=True, engine=None)
    assert not Path("c.png").exists() and not Path("a.png").exists()


def test_arrays_have_pixels_to_seal():
    anonymize(noise(), KEY, "hidden.png", engine=FakeEngine)
    back = recover("hidden.png", KEY, engine=None)
    assert back.tier == "face" and (back.pixels == noise()).all()


def test_a_result_too_large_to_be_read_again_is_not_written(monkeypatch):
    monkeypatch.setattr("anonface.batch.task.MAX_FILE_BYTES", 5000)
    with pytest.raises(LimitError, match="read again"):
        put("photo.png", saved(noise()))
    assert not Path("hidden.png").exists()


@pytest.mark.parametrize("sidecar", [None, Path("record.anf")])
def test_sealing_holds_the_original_and_its_record_and_no_further_copy(sidecar):
    original, photo = bytes(4_000_000), Photo(noise(), None, None, "jpeg")
    task = Anonymizing(KEY, FakeEngine())
    opened = Opened(Path("photo.jpg"), original, photo)
    treated = task.treat(opened)
    tracemalloc.start()
    files = task.files(opened, treated, Path("hidden.png"), sidecar)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(original) < sum(size_of(content) for _, content in files) < most < 1.06 * len(original)


def test_sealing_faces_holds_no_map_of_the_photo():
    photo = noise((6000, 500, 3))
    hidden = photo.copy()
    hidden[60:190, 20:80] ^= 1
    quad = ((10.0, 50.0), (10.0, 200.0), (90.0, 200.0), (90.0, 50.0))
    header = replace(HEADER, canvas=(500, 6000), faces=(FaceEntry(quad), HEADER.faces[0]))
    strips = [inside for _, inside in sealing._strips(header)]
    assert len(strips) > 2 and np.array_equal(np.concatenate(strips), region(header))
    tracemalloc.start()
    record = seal(header, KEY, sealing.of_pixels(header, photo, hidden, None))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < photo.size // 6  # which is half a map of one byte a pixel
    contents = unseal(decode(record), anf1.payload(record), KEY)
    assert (sealing.mended(header, contents, hidden, None) == photo).all()


@pytest.mark.parametrize("size", [0, 1, 100, 16_311, 16_312, 65_536, 300_000])
def test_the_length_of_a_payload_is_known_beforehand(size, monkeypatch):
    said = []
    monkeypatch.setattr("anonface.record.sealing.encode", lambda *args: said.append(args[2]) or encode(*args))
    record = seal(HEADER, KEY, Contents("file", bytes(32), ".jpg", bytes(size)))
    assert said == [len(anf1.payload(record))]


def test_headers_hold_no_trace_of_the_original():
    """No digest of the original, of its pixels or of the face pixels, and not its exact length."""
    import hashlib
    import struct

    original, hidden = put("photo.png", saved(noise()))
    pixels = noise()
    record = carriers.extract(hidden)
    for plain in (original, pixels.tobytes(), pixels[region(decode(record))].tobytes()):
        for digest in (hashlib.sha256, hashlib.sha512, hashlib.sha1, hashlib.md5):
            assert digest(plain).digest()[:8] not in hidden
    head = record[: len(record) - len(anf1.payload(record))]
    for layout in (">Q", "<Q", ">I", "<I"):
        assert struct.pack(layout, len(original)) not in head


# --- Rekeying and stripping ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", ["file", "face", "none"])
def test_rekeying(tier):
    _, hidden = put(seal=tier)
    rekey(Path("hidden.png"), KEY, OTHER, Path("new.png"))
    new = Path("new.png").read_bytes()
    assert carriers.strip(new) == carriers.strip(hidden) and Path("hidden.png").read_bytes() == hidden
    back = recover("new.png", OTHER, engine=FakeEngine)
    assert back.tier == tier and back.verified == "yes"
    assert (back.pixels == np.asarray(Image.open("photo.jpg"))).all()
    by_networks = recover("new.png", OTHER, unsealed=True, engine=FakeEngine)
    assert (by_networks.pixels == back.pixels).all()  # under the old key's share, which came along
    with pytest.raises(WrongKeyError):
        recover("new.png", KEY, engine=None)
    rekey(Path("new.png"), OTHER, KEY, Path("newer.png"))
    assert (recover("newer.png", KEY, unsealed=True, engine=FakeEngine).pixels == back.pixels).all()


def test_rekeying_gives_no_way_to_other_photos():
    put()
    rekey(Path("hidden.png"), KEY, OTHER, Path("new.png"))
    record = carriers.extract(Path("new.png").read_bytes())
    carried = opened(record, OTHER).network_key
    assert carried.to_bytes() == KEY.photo(decode(record).flow_salt).to_bytes()
    with pytest.raises(ValueError, match="its own salt"):
        carried.face(CONSISTENT_SALT, "fake", 0)


def test_rekeying_consistent_photos_withholds_what_would_open_all_of_them():
    original, _ = put(consistent=True)
    rekey(Path("hidden.png"), KEY, OTHER, Path("new.png"))
    assert recover("new.png", OTHER, engine=None).original == original
    with pytest.raises(KeyFileError, match="earlier key"):
        recover("new.png", OTHER, unsealed=True, engine=FakeEngine)
    put(consistent=True, seal="none", overwrite=True)
    with pytest.raises(UsageError, match="consistent"):
        rekey(Path("hidden.png"), KEY, OTHER, Path("no.png"))
    assert not Path("no.png").exists()


def test_rekeying_needs_the_old_key_and_a_sound_record():
    _, hidden = put()
    with pytest.raises(WrongKeyError):
        rekey(Path("hidden.png"), OTHER, KEY, Path("no.png"))
    Path("stripped.png").write_bytes(carriers.strip(hidden))
    with pytest.raises(ContainerError):
        rekey(Path("stripped.png"), KEY, OTHER, Path("no.png"))
    assert not Path("no.png").exists()


def test_rekeying_a_sidecar():
    original, _ = put(sidecar="record.anf")
    rekey(Path("record.anf"), KEY, OTHER, Path("new.anf"))
    assert recover("hidden.png", OTHER, sidecar="new.anf", engine=None).original == original


def test_stripping():
    _, hidden = put()
    strip(Path("hidden.png"), Path("bare.png"))
    bare = Path("bare.png").read_bytes()
    assert carriers.extract(bare) is None and len(bare) < len(hidden)
    assert (np.asarray(Image.open("bare.png")) == np.asarray(Image.open("hidden.png"))).all()
    for target in ("bare.png", "hidden.png"):
        with pytest.raises(OutputError):
            strip(Path("hidden.png"), Path(target))
    with pytest.raises(ContainerError, match="carries no"):
        strip(Path("bare.png"), Path("barer.png"))
    at = hidden.index(b"anFC") + 30
    Path("damaged.png").write_bytes(hidden[:at] + b"?" + hidden[at + 1 :])
    strip(Path("damaged.png"), Path("mended.png"))
    assert Path("mended.png").read_bytes() == bare


# --- Secrecy ---------------------------------------------------------------------------------------------------------


def test_secrets_show_in_no_error_and_no_repr():
    _, hidden = put()
    record = carriers.extract(hidden)
    rekey(Path("hidden.png"), KEY, OTHER, Path("new.png"))
    inner = opened(carriers.extract(Path("new.png").read_bytes()), OTHER)
    secret = inner.network_key.to_bytes()
    assert repr(secret)[2:12] not in repr(inner.network_key) and secret.hex() not in repr(inner.network_key)
    with pytest.raises(WrongKeyError) as caught:
        opened(record, OTHER)
    said = f"{caught.value!r} {caught.value.message} {caught.value.hint} {caught.value.__cause__!r}"
    assert "02" * 8 not in said and "\\x02" not in said


def test_nothing_of_the_networks_is_loaded_for_a_sealed_original():
    put()
    Path("k").write_bytes(b"\1" * 32)
    Path("k").chmod(0o600)
    code = (
        "import sys; from anonface.cli import app\n"
        "assert app.run(['recover', 'hidden.png', '--key-file', 'k']) == 0\n"
        "assert not {'torch', 'cv2', 'PIL'} & set(sys.modules), {'torch', 'cv2', 'PIL'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert Path("hidden.recovered.jpg").read_bytes() == Path("photo.jpg").read_bytes()
