"""The faults of the two pages of docs at the command line: the exit code, and what is left on the disk afterwards."""

import errno
import hashlib
import json
import os
import pickle
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from fake import SIDE, FakeEngine
from pictures import SRGB, png, png_chunk, saved
from PIL import Image, ImageOps

from anonface import images, pipeline, weights
from anonface.cli import app
from anonface.errors import DeviceError
from anonface.faces import align, parse
from anonface.faces.detect import Face
from anonface.record import anf1, carriers

REAL_ENGINE = pipeline.Engine
PAGES = [Path(__file__).parent.parent / "docs" / name for name in ("faults.md", "faults-keys.md")]

pytestmark = pytest.mark.usefixtures("key")


@pytest.fixture
def anonymize(anonface):
    return lambda *args: anonface("anonymize", "--key-file", "k.bin", *args)


@pytest.fixture
def refused(anonymize):
    """Anonymize, and hold that it ends with that code, one error line, and everything as it was."""

    def run(code, *args, says=""):
        before = state()
        got, out, err = anonymize(*args)
        lines = [line for line in err.splitlines() if line.startswith("anonface: error: ")]
        assert got == code and out == "" and len(lines) == 1 and says in err, err
        assert "Traceback" not in err and state() == before
        return err

    return run


def state(folder="."):
    """Every file of a tree with its bytes, every link with its target."""
    found = sorted(Path(folder).rglob("*"))
    return {str(f): f.readlink() if f.is_symlink() else f.read_bytes() if f.is_file() else None for f in found}


def scene(height=32, width=40):
    return np.random.default_rng(7).integers(1, 255, (height, width, 3), np.uint8)


def put(name, data=None):
    """A photo, or any bytes, under a name of any kind."""
    Path(os.fsdecode(name)).write_bytes(saved(Image.fromarray(scene()), "PNG") if data is None else data)


def pixels(name):
    with Image.open(name) as image:
        return np.asarray(image.convert("RGB"))


def untouched(shape):
    """Where the fake engine paints no face."""
    mask = np.ones(shape[:2], bool)
    mask[:SIDE, :SIDE] = False
    return mask


def child(work):
    """Do something in a process of its own, which ends with the code that it returns."""
    time.sleep(0.05)  # a thread that has just ended may still be in OpenSSL, whose lock the child would inherit
    process = os.fork()
    if process == 0:
        code = 99
        try:
            with open(os.devnull, "w") as nowhere:  # noqa: PTH123
                sys.stdout = sys.stderr = nowhere
                code = work() or 0
        finally:
            os._exit(code)
    return process


def ended(process):
    """Its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


# --- The tables ------------------------------------------------------------------------------------------------------


def rows():
    """(fault, what happens, exit, tests) of every row of the tables."""
    lines = [line for page in PAGES for line in page.read_text("utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [row for row in cells if row[0] != "fault"]


def test_the_tables_name_tests_that_exist():
    assert len({row[0] for row in rows()}) == len(rows()) >= 80
    tests = "".join(file.read_text("utf-8") for file in Path(__file__).parent.rglob("test_*.py"))
    for fault, _, code, names in rows():
        assert set(code.split("/")) <= {
            "0",
            "2",
            "3",
            "4",
            "5",
            "6",
            "7",
            "8",
            "9",
            "10",
            "11",
            "70",
            "130",
            "137",
            "143",
        }
        for name in names.split("; "):
            assert name.startswith("test_") and f"\ndef {name}(" in tests, (fault, name)


# --- Input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("progressive", [False, True])
def test_truncated_jpeg(refused, anonymize, progressive):
    data = saved(Image.fromarray(scene(64, 80)), "JPEG", progressive=progressive)
    put("whole.jpg", data)
    assert anonymize("whole.jpg")[0] == 0
    for part in (0.2, 0.5, 0.8, 0.97):
        put("a.jpg", data[: int(part * len(data))])
        refused(4, "a.jpg", says="truncated")


@pytest.mark.parametrize(
    ("data", "says"), [(b"", "empty"), (b"Dear John,\n" * 9, "not an image"), (bytes(999), "not an")]
)
def test_what_is_no_photo(refused, data, says):
    put("a.jpg", data)
    refused(4, "a.jpg", says=says)


def test_cmyk_jpeg(anonymize):
    put("a.jpg", saved(Image.fromarray(scene()).convert("CMYK"), "JPEG", quality=95))
    code, _, err = anonymize("a.jpg")
    assert code == 0 and "CMYK" in err
    assert Image.open("a.anon.jpg").mode == "RGB"


def test_sixteen_bits(anonymize, refused):
    deep = np.random.default_rng(1).integers(0, 65536, (32, 40, 3), np.uint16)
    put("a.png", cv2.imencode(".png", deep)[1].tobytes())
    code, _, err = anonymize("a.png")
    assert code == 0 and "16 bits" in err
    result = cv2.imread("a.anon.png", cv2.IMREAD_UNCHANGED)
    outside = untouched(deep.shape)
    assert result.dtype == np.uint16 and np.array_equal(result[outside], deep[outside])
    assert (result[~outside] != deep[~outside]).any(1).mean() > 0.9
    put("b.png", png(4, 4, 16, 0, (b"\0" + bytes(8)) * 4, png_chunk(b"tRNS", b"\0\1")))
    refused(4, "b.png", says="8 bits")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(anonymize, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(scene())
    put("a.png", saved(image, "PNG", exif=exif))
    assert anonymize("a.png")[0] == 0
    image.getexif()[0x0112] = orientation
    expected = np.asarray(ImageOps.exif_transpose(image))
    outside = untouched(expected.shape)
    assert np.array_equal(pixels("a.anon.png")[outside], expected[outside])
    assert not Image.open("a.anon.png").getexif()


def test_alpha(anonymize):
    alpha = np.zeros((32, 40), np.uint8)
    alpha[:, 8:] = 255  # a part of the face is hidden, its colours are in the file all the same
    put("a.png", saved(Image.fromarray(np.dstack([scene(), alpha])), "PNG"))
    assert anonymize("a.png")[0] == 0
    result = np.asarray(Image.open("a.anon.png"))
    assert np.array_equal(result[..., 3], alpha)
    hidden = (slice(0, SIDE), slice(0, 8))
    assert (result[hidden][..., :3] != scene()[hidden]).any(2).mean() > 0.9


def test_palette_grey_and_one_bit(anonymize):
    image = Image.fromarray(scene())
    for name, kind in (("p", image.quantize(16)), ("l", image.convert("L")), ("b", image.convert("1"))):
        put(f"{name}.png", saved(kind, "PNG"))
        assert anonymize(f"{name}.png")[0] == 0
        outside = untouched((32, 40))
        assert np.array_equal(pixels(f"{name}.anon.png")[outside], np.asarray(kind.convert("RGB"))[outside])


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "AVIF", "TIFF"])
def test_animations(refused, kind):
    frames = [Image.fromarray(np.roll(scene(), n, 0)) for n in range(3)]
    put("a.png", saved(frames[0], kind, save_all=True, append_images=frames[1:]))
    refused(4, "a.png", says="animated")


def test_trailers(anonymize):
    first, second = (Image.fromarray(scene()[::step]) for step in (1, -1))
    video = b"ftypmp42" * 100
    put("a.jpg", saved(first, "JPEG") + video)
    put("b.png", saved(first, "PNG") + video)
    put("c.jpg", saved(first, "MPO", save_all=True, append_images=[second]))
    for name, note in (("a.jpg", "800 bytes behind"), ("b.png", "800 bytes behind"), ("c.jpg", "1 further pictures")):
        code, _, err = anonymize(name)
        assert code == 0 and note in err
        result = Path(f"{name[0]}.anon{name[1:]}").read_bytes()
        assert video not in result and b"MPF" not in result


def lean(*args):
    """Run a command line in 200 MiB more of memory than this process has; its exit code."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])

    def work():
        most = pages * resource.getpagesize() + (200 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        return app.run(["anonymize", "--key-file", "k.bin", *args])

    return ended(child(work))


def squeezed(width, height, depth, colour):
    """A PNG of one colour whose every row is there."""
    pack, row = zlib.compressobj(9), bytes(1 + width * depth * {0: 1, 2: 3}[colour] // 8)
    rows = b"".join([*(pack.compress(row) for _ in range(height)), pack.flush()])
    head = png(width, height, depth, colour, b"")
    start = head.index(b"IDAT") - 4
    return head[:start] + png_chunk(b"IDAT", rows) + png_chunk(b"IEND", b"")


def test_bomb_of_pixels(refused):
    put("a.png", squeezed(20_000, 10_000, 8, 0))
    assert Path("a.png").stat().st_size < 250_000
    refused(11, "a.png")
    assert lean("a.png") == 11


def test_a_hundred_megapixels(refused, anonymize):
    put("a.png", squeezed(10_000, 10_000, 1, 0))
    refused(11, "a.png", says="--max-pixels")
    put("b.png", squeezed(100, 90, 8, 2))
    refused(11, "b.png", "--max-pixels", "8999")
    assert anonymize("b.png", "--max-pixels", "9000")[0] == 5  # it is black


@cache
def zeros():
    """256 MiB of them, compressed."""
    pack = zlib.compressobj(9)
    return b"".join([*(pack.compress(bytes(1 << 20)) for _ in range(256)), pack.flush()])


@pytest.mark.parametrize("chunk", [b"iTXtkey\0\1\0\0\0", b"zTXtkey\0\0", b"iCCPname\0\0"])
def test_bombs_in_metadata(refused, chunk):
    put("a.png", png(4, 4, 8, 2, (b"\0" + bytes(12)) * 4, png_chunk(chunk[:4], chunk[4:] + zeros())))
    assert Path("a.png").stat().st_size < 300_000
    refused(11, "a.png", says="unfolds")
    assert lean("a.png") == 11


# --- Faces -----------------------------------------------------------------------------------------------------------


def test_no_face(refused):
    put("a.png", saved(Image.new("RGB", (40, 32)), "PNG"))
    refused(5, "a.png", says="no face")


def comes_back(anonymize, anonface):
    """Whether the photo a.png comes back exactly, by the file and by the pixels of its faces."""
    for tier in ("file", "face"):
        assert anonymize("a.png", "--seal", tier, "--overwrite")[0] == 0
        assert (pixels("a.anon.png") != scene()).any()
        assert anonface("recover", "a.anon.png", "--key-file", "k.bin", "--overwrite")[0] == 0
        assert np.array_equal(pixels("a.recovered.png"), scene())


def test_overlapping_faces(anonymize, anonface, monkeypatch):
    monkeypatch.setattr(FakeEngine, "PLACES", ((0, 0), (SIDE // 2, SIDE // 4)))
    put("a.png")
    comes_back(anonymize, anonface)


def test_face_at_the_border(anonymize, anonface, monkeypatch):
    monkeypatch.setattr(FakeEngine, "PLACES", ((40 - SIDE // 2, 32 - SIDE // 4),))
    put("a.png")
    comes_back(anonymize, anonface)


class Inverting:
    """A backend that turns faces into their negatives and remembers the keys."""

    name, resolutions = "inverting", (64,)
    exact, batched, marked, records_masks, matches_light = False, True, False, False, False
    margin = "none"

    def __init__(self):
        self.streams = []

    def parameters(self):
        return {}

    def digest(self):
        return bytes(32)

    def anonymize(self, faces, masks, keys):
        self.streams += [key.stream("test", 16) for key in keys]
        return -faces

    def visible(self, masks):
        return masks


@pytest.fixture
def crowd(monkeypatch):
    """The real pipeline with 50 faces in a grid, found without networks."""

    def square(face):
        x, y, w, h = face.box
        return np.array([(x, y), (x, y + h), (x + w, y + h), (x + w, y)], float)

    class Grid:
        def detect(self, photo):
            return [
                Face((20.0 + 60 * x, 20.0 + 60 * y, 40.0, 40.0), np.zeros((5, 2)), 1.0)
                for y in range(5)
                for x in range(10)
            ]

    backend = Inverting()
    monkeypatch.setattr(pipeline, "Engine", REAL_ENGINE)
    monkeypatch.setattr(pipeline, "build_detector", lambda name: Grid())
    monkeypatch.setattr(pipeline, "build", lambda name, device, settings: backend)
    monkeypatch.setattr(align, "mesh468", lambda photo, face: square(face))
    monkeypatch.setattr(align, "landmarks468", lambda photo, face: square(face))
    monkeypatch.setattr(align, "ffhq_quad", lambda mesh: mesh)
    monkeypatch.setattr(align, "obstacle", lambda face, mesh, shape: None)
    monkeypatch.setattr(parse, "face_mask", lambda crop, mesh, size, parser: np.ones((size, size), np.float32))
    monkeypatch.setattr(parse, "hides_eyes", lambda mask, mesh: False)
    return backend


def changed(before, after):
    """Per face of the grid, the share of its pixels that are others."""
    different = (before != after).any(2)
    return [different[30 + 60 * y : 50 + 60 * y, 30 + 60 * x : 50 + 60 * x].mean() for y in range(5) for x in range(10)]


def test_fifty_faces(anonymize, crowd):
    photo = scene(330, 640)
    put("a.png", saved(Image.fromarray(photo), "PNG"))
    code, out, _ = anonymize("a.png", "--json")
    assert code == 0
    faces = json.loads(out)["photos"][0]["faces"]
    assert [(face["index"], face["kind"]) for face in faces] == [(n, "synth") for n in range(50)]
    assert len(crowd.streams) == len(set(crowd.streams)) == 50
    assert min(changed(photo, pixels("a.anon.png"))) > 0.9


def test_a_face_too_small(anonymize, crowd, monkeypatch):
    monkeypatch.setattr(align, "obstacle", lambda face, mesh, shape: "too small" if face.box[0] < 30 else None)
    photo = scene(330, 640)
    put("a.png", saved(Image.fromarray(photo), "PNG"))
    code, out, err = anonymize("a.png", "--json")
    assert code == 0 and "50 faces: 5 covered by a mosaic (too small), 45 replaced" in err
    kinds = [face["kind"] for face in json.loads(out)["photos"][0]["faces"]]
    assert kinds == (["mosaic"] + ["synth"] * 9) * 5 and len(crowd.streams) == 45
    result = pixels("a.anon.png")
    assert min(changed(photo, result)) > 0.9
    cell = result[35:45, 35:45].reshape(-1, 3)
    assert len(np.unique(cell, axis=0)) <= 9 < len(np.unique(photo[35:45, 35:45].reshape(-1, 3), axis=0))


# --- Output ----------------------------------------------------------------------------------------------------------


def test_read_only_folder(refused, monkeypatch):
    monkeypatch.setattr("anonface.pipeline.Engine", None)  # found before an engine is made
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        put("a.png")
        Path(folder).chmod(0o555)
        user = os.getuid()
        if user == 0:
            monkeypatch.setattr(os, "access", lambda path, mode, access=os.access: as_nobody(access, path, mode))
        refused(10, "a.png", "-o", f"{folder}/b.png", says="not writable")
        refused(10, "a.png", "-o", f"{folder}/new/", says="not writable")
        assert os.listdir(folder) == []  # noqa: PTH208


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EACCES, "that you may write to"),
        (errno.EPERM, "that you may write to"),
        (errno.EROFS, "read-only"),
        (errno.ENOSPC, "free some space"),
        (errno.ENOENT, "choose another folder"),
        (errno.EIO, "write elsewhere"),
    ],
)
def test_a_folder_that_takes_no_file(refused, monkeypatch, number, hint):
    """Found before an engine is made, whatever its permissions say."""
    monkeypatch.setattr("anonface.pipeline.Engine", None)
    put("a.png")
    opened = os.open

    def refusing(path, flags, mode=0o777, **options):
        if flags & os.O_CREAT and "out" in Path(path).parts:
            raise OSError(number, os.strerror(number))
        return opened(path, flags, mode, **options)

    monkeypatch.setattr(os, "open", refusing)
    Path("out").mkdir()
    for args in (["-o", "out/b.png"], ["-o", "out/"], ["-o", "out/new/"], ["--report", "out/r.json"]):
        err = refused(10, "a.png", *args, says="not writable")
        assert (os.strerror(number) in err) is (number != errno.ENOENT) and hint in err.splitlines()[-1]


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no /proc here")
def test_a_folder_of_the_kernel(refused, monkeypatch):
    monkeypatch.setattr("anonface.pipeline.Engine", None)
    put("a.png")
    for output in ("/proc/b.png", "/proc/new/"):
        err = refused(10, "a.png", "-o", output, says="'/proc' is not writable: no file can be made there")
        assert "hint: choose another folder" in err and "No such file" not in err


def as_nobody(call, *args):
    os.setresuid(65534, 65534, 0)
    try:
        return call(*args)
    finally:
        os.setresuid(0, 0, 0)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("room_for", [0, 1, 4096, 20_000])
def test_disk_full(room, overwrite, room_for):
    """A limit on file sizes fails as a full disk does: at a write, in the middle of the file."""
    put("a.png", saved(Image.fromarray(scene(200, 200)), "PNG"))
    if overwrite:
        put("a.anon.png", b"old")
    before = state()

    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (room_for, room_for))
        return app.run(["anonymize", "--key-file", "k.bin", "a.png", *["--overwrite"] * overwrite])

    assert ended(child(work)) == 10
    assert state() == before
    assert app.run(["anonymize", "--key-file", "k.bin", "a.png", *["--overwrite"] * overwrite]) == 0
    assert Path("a.anon.png").stat().st_size > 20_000


def test_the_input_as_output(refused, monkeypatch):
    monkeypatch.setattr("anonface.pipeline.Engine", None)
    put("a.png")
    Path("hard.png").hardlink_to("a.png")
    Path("soft.png").symlink_to("a.png")
    Path("here").symlink_to(".")
    for output in ("a.png", "./a.png", "here/a.png", "hard.png", "soft.png"):
        refused(10, "a.png", "-o", output, "--overwrite")
    refused(10, "soft.png", "-o", "a.png", "--overwrite", says="input itself")
    refused(10, "a.png", "--sidecar", "hard.png", "--overwrite", says="input itself")


def test_output_is_a_link(refused):
    put("a.png")
    put("other.png", b"precious")
    Path("b.png").symlink_to("other.png")
    Path("c.png").symlink_to("nowhere.png")
    for name in ("b.png", "c.png"):
        refused(10, "a.png", "-o", name, says="symbolic link")
        refused(10, "a.png", "-o", name, "--overwrite", says="symbolic link")


def test_output_exists(refused, anonymize):
    put("a.png")
    put("a.anon.png", b"precious")
    refused(10, "a.png", says="--overwrite")
    assert anonymize("a.png", "--overwrite")[0] == 0
    assert Path("a.anon.png").read_bytes() != b"precious"


# --- Names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["png", "webp", "jpeg"])
def test_a_name_that_is_not_utf8(anonymize, kind):
    put(b"caf\xe9\xff.png")
    code, out, err = anonymize(os.fsdecode(b"caf\xe9\xff.png"), "--format", kind, "--json")
    assert code == 0 and json.loads(out)["exit"] == 0 and err.encode() and err.isascii()
    made = os.fsencode(json.loads(out)["photos"][0]["output"])
    assert made.startswith(b"caf\xe9\xff.anon.") and images.read_photo(images.read_file(made)).format == kind


def test_odd_names(anonymize, refused):
    names = ["-x.png", "two\nlines.png", "a\x1b[31mb.png", " .png", "--help.png", "'\"$(x).png"]
    for name in names:
        put(name)
    for name in names:
        code, _, err = anonymize("-o", "out/", "--", name)
        assert code == 0 and "\x1b" not in err and len(err.splitlines()) == 2
    assert sorted(os.listdir("out")) == sorted(f"{name[:-4]}.anon.png" for name in names)  # noqa: PTH208
    put("no\nphoto.png", b"text")
    assert len(refused(4, "no\nphoto.png").splitlines()) == 2


# --- Crashes and races -----------------------------------------------------------------------------------------------


def kills(*args):
    """What killed.py saw: of every kill the exit code, what the target held, how many temporary files were left."""
    script = Path(__file__).parent / "killed.py"
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a killed process loses nothing that it handed over
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        run = [sys.executable, script, *args]
        done = subprocess.run(run, check=True, capture_output=True, text=True, cwd=folder)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("links", ["links", "nolinks"])
@pytest.mark.parametrize("old", ["none", "old"])
def test_killed_at_every_line(old, links):
    seen = kills("lines", old, links)
    assert len(seen) > 30 and [code for code, _, _ in seen] == [-signal.SIGKILL] * (len(seen) - 1) + [0]
    states = [state for _, state, _ in seen]
    assert states == [old] * states.count(old) + ["new"] * states.count("new")  # once there it stays
    assert states[0] == old and states[-1] == "new" and max(left for _, _, left in seen) == 1 > seen[-1][2]


@pytest.mark.parametrize("old", ["none", "old"])
def test_killed_at_random(old):
    seen = kills("random", old, "links")
    assert len(seen) == 200 and {old} <= {state for _, state, _ in seen} <= {old, "new"}
    assert -signal.SIGKILL in {code for code, _, _ in seen}


@pytest.mark.slow
def test_killed_anywhere_in_a_run():
    chance = random.Random(6)
    put("a.png", saved(Image.fromarray(scene(300, 300)), "PNG"))
    args = ["anonymize", "--key-file", "k.bin", "a.png", "-o", "out.png", "--sidecar", "out.anf"]
    before, started = state(), time.monotonic()
    assert ended(child(lambda: app.run(args))) == 0
    whole, complete = time.monotonic() - started, 0
    for _ in range(20):
        for file in [*Path().glob("out.*"), *Path().glob(".anonface-*.tmp")]:
            file.unlink()
        process = child(lambda: app.run(args))
        time.sleep(chance.uniform(0, 1.2 * whole))
        os.kill(process, signal.SIGKILL)
        ended(process)
        after = {name: data for name, data in state().items() if not name.startswith(".anonface-")}
        made = after.pop("out.png", None)
        record = after.pop("out.anf", None)
        assert after == before
        if made:
            complete += 1
            assert images.read_photo(made).pixels.shape == (300, 300, 3)
            assert record
    assert complete < 20


def test_two_writers():
    put("a.png", saved(Image.fromarray(scene(200, 200)), "PNG"))
    for _ in range(5):
        Path("out.png").unlink(missing_ok=True)
        writers = [child(lambda: app.run(["anonymize", "--key-file", "k.bin", "a.png", "-o", "out.png"])) for _ in "ab"]
        assert sorted(ended(writer) for writer in writers) == [0, 10]
        assert images.read_photo(Path("out.png").read_bytes()).pixels.shape == (200, 200, 3)
        assert not list(Path().glob(".anonface-*.tmp"))


def test_input_changes(anonymize, refused, monkeypatch):
    class Meddling(FakeEngine):
        def anonymize(self, photo, key, **options):
            put("a.png", saved(Image.fromarray(255 - scene()), "PNG"))
            return super().anonymize(photo, key, **options)

    put("a.png")
    with monkeypatch.context() as patched:
        patched.setattr("anonface.pipeline.Engine", Meddling)
        assert anonymize("a.png")[0] == 0
    outside = untouched((32, 40))
    assert np.array_equal(pixels("a.anon.png")[outside], scene()[outside])  # of the photo that was read
    put("b.png")
    real = os.fstat

    def growing(descriptor):
        found = real(descriptor)
        if found.st_ino == Path("b.png").stat().st_ino:
            with Path("b.png").open("ab") as file:
                file.write(b"more")
        return found

    before = state()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", growing)
        code, _, err = anonymize("b.png")
    assert code == 4 and "changed while it was read" in err
    assert state().keys() == before.keys()


def test_two_inputs_one_output(refused):
    put("a.png")
    put("a.jpg")
    refused(2, "a.png", "a.jpg", says="also the output of")


# --- Weights and keys ------------------------------------------------------------------------------------------------


@pytest.fixture
def own_weights(tmp_path, monkeypatch):
    """The user's own folder of weights, and nothing else to take them from."""
    folder = tmp_path / "weights"
    folder.mkdir()
    monkeypatch.setenv("ANONFACE_WEIGHTS", str(folder))
    monkeypatch.setenv("ANONFACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ANONFACE_OFFLINE", "1")
    return folder


def loading(load):
    """An engine that loads something when it is made."""

    class Loading(FakeEngine):
        def __init__(self, *settings, **more):
            load()

    return Loading


class Bomb:
    """Unpickled without care, it makes a folder."""

    def __init__(self, canary):
        self.canary = str(canary)

    def __reduce__(self):
        return os.mkdir, (self.canary,)


def test_weights_with_a_wrong_hash(refused, own_weights, monkeypatch):
    (own_weights / "SynthesisNetwork.bin").write_bytes(b"not these")
    (own_weights / "SynthesisNetwork.xml").write_bytes(b"nor these")
    monkeypatch.setattr("anonface.weights.loading.load_checkpoint", lambda *_: pytest.fail("parsed"))
    monkeypatch.setattr("anonface.pipeline.Engine", loading(lambda: weights.tensors("generator")))
    put("a.png")
    refused(9, "a.png", says="sha256")


def test_pickle_bomb(refused, tmp_path, monkeypatch):
    file, canary = tmp_path / "net.pth", tmp_path / "canary"
    torch.save({"state_dict": {"weight": torch.zeros(2)}, "opts": Bomb(canary)}, file)
    monkeypatch.setattr("anonface.pipeline.Engine", loading(lambda: weights.load_checkpoint(file)))
    put("a.png")
    refused(9, "a.png", says="not opened")
    assert not canary.exists()
    pickle.loads(pickle.dumps(Bomb(canary)))
    assert canary.exists()  # it was live


@pytest.mark.parametrize(
    ("data", "says"),
    [(b"", "empty"), (b"0123456789", "32 bytes"), (b"AFK1-" + b"A" * 58, "checksum"), (b"AFK1-AAAA", "short")],
)
def test_unusable_keys(refused, data, says):
    put("a.png")
    good = Path("k.bin").read_bytes()
    if data.endswith(b"A" * 58):
        data = good[:10] + (b"B" if good[10:11] == b"A" else b"A") + good[11:]
    put("bad.key", data)
    Path("bad.key").chmod(0o600)
    refused(6, "a.png", "--key-file", "bad.key", says=says)


def test_a_key_that_others_can_read(refused, anonymize):
    put("a.png")
    Path("k.bin").chmod(0o644)
    refused(6, "a.png", "--strict-keys", says="read by others")
    code, _, err = anonymize("a.png")
    assert code == 0 and "warning" in err and Path("a.anon.png").exists()


@pytest.mark.parametrize("tier", ["file", "face"])
def test_wrong_key_sealed(anonymize, anonface, tier):
    put("a.png")
    anonface("keygen", "other.key")
    assert anonymize("a.png", "--seal", tier)[0] == 0
    before = state()
    code, out, err = anonface("recover", "a.anon.png", "--key-file", "other.key")
    assert code == 7 and out == "" and "--decoy" in err and state() == before
    code, _, err = anonface("recover", "a.anon.png", "--key-file", "other.key", "--decoy", "-o", "b.png")
    assert code == 7 and "is a decoy" in err and (pixels("b.png") != scene()).any()


@pytest.mark.parametrize("tier", ["file", "face"])
def test_flipped_bytes(anonymize, anonface, tier):
    put("a.png")
    assert anonymize("a.png", "--seal", tier, "--sidecar", "a.anf")[0] == 0
    record = Path("a.anf").read_bytes()
    header = int.from_bytes(record[5:9])
    for at in (4, 20, header - 1, header, header + 40, len(record) - 1):
        put("b.anf", record[:at] + bytes([record[at] ^ 1]) + record[at + 1 :])
        before = state()
        code, out, _ = anonface("recover", "a.anon.png", "--sidecar", "b.anf", "--key-file", "k.bin")
        assert code == 8 and out == "" and state() == before, at
    assert anonface("recover", "a.anon.png", "--sidecar", "a.anf", "--key-file", "k.bin")[0] == 0


@pytest.mark.parametrize("tier", ["file", "face"])
def test_a_payload_of_another_photo(anonymize, anonface, tier):
    for name, picture in (("a", scene()), ("b", scene()[::-1])):
        put(f"{name}.png", saved(Image.fromarray(picture), "PNG"))
        assert anonymize(f"{name}.png", "--seal", tier)[0] == 0
    first, second = (Path(f"{name}.anon.png").read_bytes() for name in "ab")
    one, two = carriers.extract(first), carriers.extract(second)
    put("spliced.png", carriers.embed(first, two))
    put("crossed.png", carriers.embed(first, anf1.encode(anf1.decode(one), [bytes(anf1.payload(two))])))
    before = state()
    for name in ("spliced.png", "crossed.png"):
        assert anonface("recover", name, "--key-file", "k.bin")[0] == 8 and state() == before


def test_newer_records(anonymize, anonface):
    """Of a version to come; of another backend, which :mod:`test_pipeline` tries with the real engine."""
    put("a.png")
    assert anonymize("a.png", "--sidecar", "a.anf")[0] == 0
    record = bytearray(Path("a.anf").read_bytes())
    size = int.from_bytes(record[5:9])
    record[4] = 9
    record[size - 32 : size] = hashlib.sha256(record[: size - 32]).digest()
    put("b.anf", bytes(record))
    before = state()
    code, _, err = anonface("recover", "a.anon.png", "--sidecar", "b.anf", "--key-file", "k.bin")
    assert code == 8 and "record version 9" in err and "or newer" in err and state() == before


def test_wrong_key_unsealed(anonymize, anonface):
    put("a.png")
    anonface("keygen", "other.key")
    assert anonymize("a.png", "--seal", "none")[0] == 0
    code, out, _ = anonface("recover", "a.anon.png", "--key-file", "other.key", "-o", "b.png", "--json")
    assert code == 0 and json.loads(out)["photos"][0]["verified"] == "unknown"
    assert (pixels("b.png") != scene()).any()
    assert anonface("recover", "a.anon.png", "--key-file", "k.bin", "-o", "c.png")[0] == 0
    assert np.array_equal(pixels("c.png"), scene())


def test_hostile_argon2(refused, monkeypatch):
    """A wrapped key that asks for 2 GiB; a photo's record goes through the same check."""
    vectors = json.loads((Path(__file__).parent / "vectors" / "keys.json").read_text())
    hostile = {vector["name"]: bytes.fromhex(vector["data"]) for vector in vectors["rejections"]}
    put("a.png")
    put("hostile.key", hostile["wrapped, 2 GiB"])
    Path("hostile.key").chmod(0o600)
    monkeypatch.setenv("ANONFACE_PASSPHRASE", "correct horse")
    refused(11, "a.png", "--key-file", "hostile.key", says="memory")
    assert lean("a.png", "--key-file", "hostile.key") == 11


# --- What is lost ----------------------------------------------------------------------------------------------------


def test_record_stripped(anonymize, anonface):
    put("a.png")
    assert anonymize("a.png")[0] == 0
    Image.open("a.anon.png").save("b.anon.png")
    before = state()
    code, out, err = anonface("recover", "b.anon.png", "--key-file", "k.bin")
    assert code == 8 and out == "" and "--sidecar" in err and "--stateless" in err
    assert state() == before


def test_out_of_memory(refused, monkeypatch):
    class Greedy(FakeEngine):
        def anonymize(self, photo, key, **options):
            raise MemoryError

    put("a.png")
    monkeypatch.setattr("anonface.pipeline.Engine", Greedy)
    err = refused(70, "a.png")
    assert "--batch-size" in err and "--max-pixels" in err


def test_device_lost(refused, monkeypatch):
    devices = []

    class Losing(FakeEngine):
        def __init__(self, backend, device, *settings, **more):
            devices.append(device)
            self.device_name = device

        def anonymize(self, photo, key, **options):
            raise DeviceError("the device was lost")

    put("a.png")
    monkeypatch.setattr("anonface.pipeline.Engine", Losing)
    monkeypatch.setattr("anonface.backends.device.choose_device", torch.device)
    refused(70, "a.png", "--device", "cuda:0", says="lost")
    assert devices == ["cuda:0"]


def test_a_crash_leaves_no_memory_on_the_disk(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["anonface", "--version"])

    def work():
        resource.setrlimit(resource.RLIMIT_CORE, (4096, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with pytest.raises(SystemExit):
            app.main()
        return resource.getrlimit(resource.RLIMIT_CORE)[0] == 0

    assert ended(child(work)) == 1


# --- Canaries --------------------------------------------------------------------------------------------------------

OPENED: list[str] = []
sys.addaudithook(
    lambda event, args: (
        OPENED.append(os.fsdecode(args[0]))
        if event == "open"
        and isinstance(args[0], str | bytes)
        and (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        else None
    )
)


def exif_with(canary):
    """Every kind of EXIF directory, a thumbnail among them."""
    exif = Image.Exif()
    for tag in (0x010E, 0x010F, 0x0110, 0x0131, 0x0132, 0x013B, 0x8298, 0xC62F):  # from description to serial number
        exif[tag] = canary
    exif[0x011A], exif[0x0112] = 72, 6
    taken = exif.get_ifd(0x8769)
    taken.update({0x9003: canary, 0x927C: canary.encode(), 0x9286: canary.encode(), 0xA431: canary, 0xA430: canary})
    taken[0x8827] = 400
    exif.get_ifd(0x8825).update({1: "N", 27: canary.encode(), 29: canary})
    return exif


def icc_with(canary):
    """The profile, its description and a private tag replaced."""
    marked = bytearray(SRGB)
    where = SRGB.index(b"mluc") + 28
    marked[where : where + 16] = canary[:8].encode("utf-16-be")
    return bytes(marked) + canary.encode()


def segment(marker, data):
    return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data


def planted(kind, canary):
    """A photo of that kind with the canary in every slot that it has for words, and behind its end."""
    image, word = Image.fromarray(scene(64, 80)), canary.encode()
    common = {"exif": exif_with(canary), "icc_profile": icc_with(canary)}
    if kind == "JPEG":
        first = saved(image, "MPO", save_all=True, append_images=[image.rotate(90)], **common)
        extra = segment(0xE0, b"JFXX\0\x10" + word) + segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + word)
        extra += segment(0xE1, b"http://ns.adobe.com/xmp/extension/\0" + word) + segment(0xE4, word)
        extra += segment(0xED, b"Photoshop 3.0\x008BIM\x04\x04\0\0" + word) + segment(0xFE, word)
        return first[:2] + extra + first[2:] + word
    if kind == "PNG":
        data = saved(image, "PNG", **common)
        chunks = [
            b"tEXtComment\0" + word,
            b"zTXtk\0\0" + zlib.compress(word),
            b"iTXtk\0\0\0\0\0" + word,
            b"prVt" + word,
        ]
        chunks.append(b"iTXtXML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(word))
        extra = b"".join(png_chunk(chunk[:4], chunk[4:]) for chunk in chunks)
        return data[:33] + extra + data[33:-12] + extra + data[-12:] + word
    if kind == "WEBP":
        data = saved(image, "WEBP", xmp=word, lossless=True, **common)
        chunk = b"prVt" + struct.pack("<I", len(word)) + word
        return data[:4] + struct.pack("<I", len(data) - 8 + len(chunk)) + data[8:] + chunk + word
    if kind == "TIFF":
        tags = {tag: canary for tag in (270, 271, 272, 305, 306, 315, 316, 33432, 65000)}
        data = saved(
            image, "TIFF", tiffinfo={**tags, 700: word, 33723: word, 34377: word}, icc_profile=icc_with(canary)
        )
        return data + word
    if kind == "GIF":
        return saved(image.quantize(16), "GIF", comment=word) + word
    box = struct.pack(">I4s", 8 + len(word), b"mpvd") + word
    if kind == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
        return saved(image, kind, xmp=word, **common) + box
    return saved(image, kind, xmp=word, **common) + box


def traces(data):
    """A file's bytes, and what its compressed parts unfold to."""
    parts = [data]
    for at in (match.start() for match in re.finditer(rb"\x78[\x01\x5e\x9c\xda]", data)):
        try:
            parts.append(zlib.decompressobj().decompress(data[at:], 1 << 16))
        except zlib.error:
            continue
    return parts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "slots"), [("JPEG", 20), ("PNG", 18), ("WEBP", 13), ("TIFF", 12), ("GIF", 2), ("AVIF", 12), ("HEIF", 12)]
)
def test_canaries(anonface, kind, slots, room, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    canary = os.urandom(8).hex()
    data = planted(kind, canary)
    words = [canary.encode(), canary[:8].encode("utf-16-be"), canary[8:].encode("utf-16-le"), canary[:8].encode()]
    assert sum(part.count(words[0]) for part in traces(data)) >= slots
    put("a.in", data)
    OPENED.clear()
    said = []
    for output in ("b.png", "b.webp", "b.jpg"):
        for options in ([], ["--keep-metadata"], ["--sidecar", "b.anf"]):
            run = ["--debug", "anonymize", "--key-file", "k.bin", "a.in", "-o", output, "--overwrite", "--json"]
            code, *texts = anonface(*run, "--report", "b.json", *options)
            assert code == 0 and json.loads(texts[0]) == json.loads(Path("b.json").read_text())
            said += [text.encode() for text in texts]
            results = [file.read_bytes() for file in Path().iterdir() if file.name.startswith("b.")]
            for result in [*results, *said]:
                assert not [word for part in traces(result) for word in words if word in part]
    assert json.loads(texts[0])["exit"] == 0 and len(results) >= 3
    written = {Path(name).name for name in OPENED if not name.startswith("/dev/")}
    assert written and all(re.fullmatch(r"\.anonface-[0-9a-f]{16}\.tmp", name) for name in written)
    assert {Path(name).resolve().parent for name in OPENED if not name.startswith("/dev/")} == {room.resolve()}
    assert list((tmp_path / "tmp").iterdir()) == [] and sorted(state()) == [
        "a.in",
        "b.anf",
        "b.jpg",
        "b.json",
        "b.png",
        "b.webp",
        "k.bin",
    ]


def test_canaries_in_what_is_refused(anonface):
    """Nor does an error message or a report repeat what is in a file."""
    canary = os.urandom(8).hex()
    args = ["--key-file", "k.bin", "a.in", "-o", "b.png", "--json", "--report", "r.json", "--overwrite"]
    for kind in ("JPEG", "PNG", "WEBP", "TIFF", "GIF", "AVIF"):
        data = planted(kind, canary)
        put("a.in", data[: len(data) // 2])
        code, out, err = anonface("--debug", "anonymize", *args)
        said = out + err + Path("r.json").read_text()
        assert code == 4 and '"code": 4' in said and canary not in said and canary[:8] not in said


@pytest.mark.parametrize("tier", ["file", "face"])
def test_canaries_of_a_recovery(anonface, anonymize, tier):
    """The original comes back with all that it held, and nothing else says any of it."""
    canary = os.urandom(8).hex()
    put("a.jpg", planted("JPEG", canary))
    assert anonymize("a.jpg", "--seal", tier)[0] == 0
    args = [f"a.anon.{'jpg' if tier == 'file' else 'png'}", "--key-file", "k.bin", "--json", "--report", "r.json"]
    code, out, err = anonface("--debug", "recover", *args)
    said = out + err + Path("r.json").read_text()
    assert code == 0 and canary not in said and canary[:8] not in said
    (back,) = (Path(entry["output"]).read_bytes() for entry in json.loads(out)["photos"])
    assert (canary.encode() in back) is (tier == "file")


def test_keep_metadata_keeps_how_it_was_taken(anonymize):
    put("a.jpg", planted("JPEG", os.urandom(8).hex()))
    for output in ("b.png", "b.webp", "b.jpg"):
        assert anonymize("a.jpg", "-o", output)[0] == 0
        assert not Image.open(output).getexif()
        assert anonymize("a.jpg", "-o", output, "--keep-metadata", "--overwrite")[0] == 0
        exif = Image.open(output).getexif()
        assert exif.get_ifd(0x8769) == {0x8827: 400} and set(exif) == {0x011A, 0x8769}


# --- Names that lead astray ------------------------------------------------------------------------------------------


def test_results_stay_below_the_folder_that_was_named(anonymize, room, monkeypatch):
    """Photos above the working folder, named by ``..``, have their results in the folder of -o all the same."""
    put("x.png")
    (room / "work").mkdir()
    monkeypatch.chdir(room / "work")
    put("x.png", own := saved(Image.fromarray(scene()[:, ::-1]), "PNG"))
    put("y.png")
    key = ("--key-file", "../k.bin", "--overwrite", "--name", "{stem}{suffix}")
    code, _, err = anonymize("../x.png", "y.png", "-o", "out", *key)
    assert code == 0, err
    assert Path("x.png").read_bytes() == own
    assert sorted(str(file) for file in Path("out").rglob("*.png")) == ["out/work/y.png", "out/x.png"]


def test_two_results_of_one_name_are_not_one_file(anonymize, anonface):
    for name in ("a.anon.png", "a.anon.webp"):
        put(f"{name}.jpg", saved(Image.fromarray(scene(height=30 + len(name))), "JPEG"))
    Path("in").mkdir()
    for name in ("a.anon.png", "a.anon.webp"):
        assert anonymize(f"{name}.jpg", "-o", f"in/{name}")[0] == 0
    code, _, err = anonface(
        "recover", "in", "-o", "back", "--name", "{stem}{suffix}", "--overwrite", "--key-file", "k.bin"
    )
    assert code == 3 and "is the result of" in err, err
    assert [file.name for file in Path("back").glob("*.jpg")] == ["a.jpg"]


def test_a_pipe_in_a_folder_is_no_photo(anonymize):
    Path("album").mkdir()
    put("album/a.png")
    os.mkfifo("album/b.jpg")
    code, _, err = anonymize("album", "-o", "out")
    assert code == 0, err
    assert [file.name for file in Path("out").iterdir()] == ["a.anon.png"]


@pytest.mark.parametrize("command", ["anonymize", "recover", "strip", "rekey"])
def test_an_empty_name_is_no_photo(anonface, command):
    keys = ("--old-key-file", "k.bin", "--new-key-file", "k.bin") if command == "rekey" else ("--key-file", "k.bin")
    code, _, err = anonface(command, "", *(() if command == "strip" else keys))
    assert code == 2 and "bug" not in err, err


def test_neither_a_folder_nor_an_empty_file_is_skipped_as_a_result(anonymize):
    put("a.png")
    put("b.png")
    Path("a.anon.png").mkdir()
    Path("b.anon.png").touch()
    for name in ("a.png", "b.png"):
        code, _, err = anonymize(name, "--skip-existing")
        assert code == 10, err
    assert Path("b.anon.png").read_bytes() == b""
