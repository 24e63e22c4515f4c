"""What the library offers: a photo in any form, in both directions, typed, and listed."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fake import FakeEngine
from PIL import Image

import anonface
from anonface import Key, anonymize, detect, recover
from anonface.errors import OutputError, UsageError

EXAMPLE = Path(__file__).parents[1] / "examples" / "small.jpg"
KEY = Key.from_bytes(bytes(range(32)))
FORMS = {
    "path": lambda file: file,
    "bytes": Path.read_bytes,
    "open file": lambda file: io.BytesIO(file.read_bytes()),
    "PIL image": Image.open,
    "array": lambda file: np.asarray(Image.open(file)),
}


class Looking:
    """A detector that finds nothing, and remembers where it looked."""

    def __init__(self):
        self.seen = []

    def detect(self, pixels):
        self.seen.append(pixels)
        return []


@pytest.mark.parametrize("form", FORMS)
def test_a_photo_in_any_form_gives_the_same(form, tmp_path, monkeypatch):
    looking = Looking()
    monkeypatch.setattr("anonface.faces.detect.build_detector", lambda name: looking)
    original = np.random.default_rng(0).integers(1, 255, (32, 40, 3), np.uint8)
    photo, hidden = tmp_path / "a.png", tmp_path / "a.anon.png"
    Image.fromarray(original).save(photo)
    given = FORMS[form]
    expected = anonymize(photo, KEY, engine=FakeEngine(), consistent=True)
    made = anonymize(given(photo), KEY, hidden, engine=FakeEngine(), consistent=True, seal="face")
    assert (made.pixels == expected.pixels).all() and (made.pixels != original).any()
    assert detect(given(photo)) == [] and (looking.seen[0] == original).all()
    back = recover(given(hidden), KEY, engine=FakeEngine(), header=made.header)
    assert (back.pixels == original).all() and len(back.faces) == 1


@pytest.mark.parametrize(
    ("kind", "options", "made"), [("JPEG", {}, "JPEG"), ("JPEG", {"seal": "none"}, "PNG"), ("TIFF", {}, "PNG")]
)
def test_from_bytes_to_bytes(kind, options, made):
    Image.new("RGB", (40, 32), (120, 60, 40)).save(photo := io.BytesIO(), kind)
    hidden, back = io.BytesIO(), io.BytesIO()
    result = anonymize(photo.getvalue(), KEY, hidden, engine=FakeEngine(), **options)
    assert Image.open(hidden).format == made and "array" not in repr(result)
    result = recover(hidden.getvalue(), KEY, back, engine=FakeEngine())
    if options:
        assert Image.open(back).format == "PNG" and result.tier == "none"
    else:
        assert back.getvalue() == photo.getvalue() == result.original
    assert "array" not in repr(result) and len(repr(result)) < 1000


def test_an_output_that_is_open_has_the_format_of_its_name(tmp_path):
    Image.new("RGB", (40, 32), (120, 60, 40)).save(tmp_path / "a.jpg")
    with (tmp_path / "b.png").open("wb") as file:
        anonymize(tmp_path / "a.jpg", KEY, file, engine=FakeEngine())
    assert Image.open(tmp_path / "b.png").format == "PNG"
    with (tmp_path / "c").open("wb") as file:
        recover(tmp_path / "b.png", KEY, file, engine=FakeEngine())
    assert (tmp_path / "c").read_bytes() == (tmp_path / "a.jpg").read_bytes()
    with (tmp_path / "d.jpg").open("wb") as file, pytest.raises(UsageError, match="JPEG changes the pixels"):
        anonymize(tmp_path / "a.jpg", KEY, file, engine=FakeEngine(), seal="face")
    with (tmp_path / "d").open("w") as file, pytest.raises(OutputError, match="cannot be written"):
        anonymize(tmp_path / "a.jpg", KEY, file, engine=FakeEngine())


@pytest.mark.slow
def test_the_forms_of_a_real_photo():
    made = [anonymize(FORMS[form](EXAMPLE), KEY, engine=_fast(), consistent=True) for form in ("open file", "array")]
    assert (made[0].faces == made[1].faces) and made[0].faces[0].kind == "synth"
    for hidden in made:
        back = recover(Image.fromarray(hidden.pixels), KEY, engine=_fast(), header=hidden.header)
        error = np.square(back.pixels.astype(float) - np.asarray(Image.open(EXAMPLE))).mean()
        assert 10 * np.log10(255**2 / error) > 23  # dB


def _fast():
    from anonface.pipeline import Engine

    _fast.engine = getattr(_fast, "engine", None) or Engine()
    return _fast.engine


def test_the_package_is_typed():
    assert all(getattr(anonface, name) for name in dir(anonface))
    assert (Path(anonface.__file__).parent / "py.typed").exists()


USER = """
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anonface import Engine, Key, anonymize, detect, recover
from anonface.errors import AnonfaceError


def through(file: Path, key: Key) -> NDArray[np.uint8]:
    engine = Engine(backend="ifadit", device="cpu")
    pixels: NDArray[np.uint8] = np.asarray(Image.open(file).convert("RGB"))
    faces = detect(file)
    print([(face.index, face.box, face.obstacle) for face in faces])
    try:
        for photo in (file, str(file), file.read_bytes(), io.BytesIO(b""), Image.open(file), pixels):
            hidden = anonymize(photo, key, engine=engine, seal="none", boxes=[(1, 2, 3, 4)], faces="largest")
            back = recover(hidden.pixels, key, engine=engine, header=hidden.header)
            print(back.verified, back.tier, back.original, [report.kind for report in hidden.faces])
        with file.open("rb") as stream:
            anonymize(stream, key, "photo.anon.jpg", quality=90)
            anonymize(stream, key, io.BytesIO())
            recover(stream, key, io.BytesIO())
    except AnonfaceError as error:
        print(error.message, error.hint, error.exit_code)
    return recover("photo.anon.jpg", Key.from_file("my.key")).pixels


key = Key.generate()
reveal_type(through(Path("a.jpg"), key))
"""


@pytest.mark.slow
def test_a_users_project_passes_mypy(tmp_path):
    file = tmp_path / "user.py"
    file.write_text(USER)
    check = ["-m", "mypy", "--strict", "--follow-imports=silent", "--ignore-missing-imports", "--cache-dir=.mypy_cache"]
    root = Path(anonface.__file__).parents[1]
    done = subprocess.run([sys.executable, *check, file], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ndarray" in done.stdout  # mypy knows the types, and has not taken all for Any
    file.write_text(USER.replace("key = Key.generate()", 'key = "my.key"'))
    done = subprocess.run([sys.executable, *check, file], cwd=root, capture_output=True, text=True)
    assert done.returncode == 1 and 'expected "Key"' in done.stdout
