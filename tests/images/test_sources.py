"""Whatever a photo is given as, the library makes the same of it."""

import io
from pathlib import Path

import numpy as np
import pytest
from fake import FakeEngine
from PIL import Image

from anonface import Key, anonymize, recover
from anonface.errors import AnonfaceError, ContainerError, ImageError, OutputError, UsageError
from anonface.images.sources import open_source
from anonface.record.carriers import extract

KEY = Key.from_bytes(bytes(range(32)))
ENGINE = FakeEngine()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.random.default_rng(0).integers(1, 255, (32, 40, 3), np.uint8)).save("a.png")
    return tmp_path


def pixels(name):
    with Image.open(name) as image:
        return np.asarray(image.convert("RGB"))


FILES = {
    "path": Path,
    "str": str,
    "bytes": lambda name: Path(name).read_bytes(),
    "bytearray": lambda name: bytearray(Path(name).read_bytes()),
    "memoryview": lambda name: memoryview(Path(name).read_bytes()),
    "BytesIO": lambda name: io.BytesIO(Path(name).read_bytes()),
    "file": lambda name: Path(name).open("rb"),  # noqa: SIM115
}
PIXELS = {"array": pixels, "PIL": Image.open}


@pytest.mark.parametrize("kind", FILES)
def test_files_come_back_byte_for_byte(here, kind):
    made = anonymize(FILES[kind]("a.png"), KEY, "b.png", engine=ENGINE)
    assert (made.pixels != pixels("a.png")).any() and extract(Path("b.png").read_bytes())
    back = recover(FILES[kind]("b.png"), KEY, "c.png", engine=ENGINE)
    assert back.tier == "file" and back.verified == "yes" and Path("c.png").read_bytes() == Path("a.png").read_bytes()
    anonymize(FILES[kind]("a.png"), KEY, "s.png", engine=ENGINE, stateless=True)
    assert (recover(FILES[kind]("s.png"), KEY, engine=ENGINE, stateless=True).pixels == pixels("a.png")).all()
    with pytest.raises(ContainerError):
        recover(FILES[kind]("s.png"), KEY, engine=ENGINE)
    with pytest.raises(UsageError, match="without --stateless"):
        recover(FILES[kind]("b.png"), KEY, engine=ENGINE, stateless=True)


@pytest.mark.parametrize("kind", PIXELS)
def test_pixels_come_back_exactly(here, kind):
    made = anonymize(PIXELS[kind]("a.png"), KEY, "b.png", engine=ENGINE)
    assert recover("b.png", KEY, engine=ENGINE).tier == "face"
    for back in (
        recover("b.png", KEY, engine=ENGINE),
        recover(PIXELS[kind]("b.png"), KEY, engine=ENGINE, header=made.header),
    ):
        assert (back.pixels == pixels("a.png")).all()


def test_an_original_without_a_name_has_a_suffix(here):
    Image.open("a.png").save("a.jpg")
    anonymize(Path("a.jpg").read_bytes(), KEY, "b.png", engine=ENGINE)
    back = recover("b.png", KEY, "c.png", engine=ENGINE, original_suffix=True)
    assert back.file == Path("c.jpg") and Path("c.jpg").read_bytes() == Path("a.jpg").read_bytes()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I;16"])
def test_pil_images_of_every_mode(here, mode):
    image = Image.open("a.png")
    image = Image.fromarray(np.arange(1280, dtype=np.uint16).reshape(32, 40)) if mode == "I;16" else image.convert(mode)
    _, photo = open_source(image, 10_000)
    assert photo.pixels.shape == (32, 40, 3) and (photo.alpha is not None) == (mode in ("LA", "RGBA"))
    near = np.asarray(image.convert("RGB"), int)
    assert mode == "I;16" or np.abs(near - photo.pixels).max() <= 2
    assert anonymize(image, KEY, f"{mode[0]}.png", engine=ENGINE).faces


def test_a_pil_image_is_turned_as_its_file_is(here):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open("a.png").save("t.jpg", exif=exif)
    _, turned = open_source("t.jpg", 10_000)
    _, same = open_source(Image.open("t.jpg"), 10_000)
    assert turned.pixels.shape == (40, 32, 3) and (turned.pixels == same.pixels).all()


@pytest.mark.parametrize(
    ("source", "kind", "says"),
    [
        (None, UsageError, "a NoneType is no photo"),
        (["a.png"], UsageError, "a list is no photo"),
        (7, UsageError, "a int is no photo"),
        (io.StringIO("text"), UsageError, "gives str, not bytes"),
        (b"", ImageError, "is empty"),
        (b"a.png", ImageError, "is not an image"),
        (b"\x89PNG\r\n\x1a\n", ImageError, "image"),
        (np.zeros((4, 4), np.uint8), ImageError, "must be uint8"),
        (Image.new("F", (4, 4)), ImageError, "mode F"),
    ],
)
@pytest.mark.parametrize("act", [anonymize, recover])
def test_what_is_no_photo_says_what_is_one(here, act, source, kind, says):
    if act is recover and isinstance(source, bytes):
        kind, says = AnonfaceError, r"\w"
    with pytest.raises(kind, match=says) as refused:
        act(source, KEY, engine=ENGINE)
    if kind is UsageError:
        assert "PIL image" in refused.value.hint or "binary mode" in refused.value.hint


def test_the_file_behind_an_open_one_is_never_written_over(here):
    before = Path("a.png").read_bytes()
    for source in (Image.open("a.png"), Path("a.png").open("rb")):  # noqa: SIM115
        with pytest.raises(OutputError, match="input itself"):
            anonymize(source, KEY, "a.png", engine=ENGINE, overwrite=True)
    assert Path("a.png").read_bytes() == before
