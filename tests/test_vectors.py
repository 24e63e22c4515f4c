"""Every published vector through three doors: the package, its command line, and the second implementation."""

import base64
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import second
from fake import FakeEngine
from PIL import Image

from anonface import anonymize, errors, recover
from anonface.api import rekey
from anonface.cli import app
from anonface.crypto.keys import Argon2, Key
from anonface.record import anf1, carriers, sealing
from anonface.watermark.nonce import encode as numbers_of_nonce

HERE = Path(__file__).parent / "vectors"
KEYS, CONTAINERS, SEALED = (json.loads((HERE / f"{name}.json").read_text()) for name in ("keys", "container", "sealed"))
OPENED = [vector for vector in SEALED if vector["expect"]["exit"] == 0]
REFUSED = [vector for vector in SEALED if vector["expect"]["exit"] != 0]


def unpacked(vector):
    """Image, sidecar or None."""
    return base64.b64decode(vector["data"]), vector["sidecar"] and base64.b64decode(vector["sidecar"])


def named(vectors):
    return pytest.mark.parametrize("vector", vectors, ids=[vector["name"] for vector in vectors])


@pytest.fixture(autouse=True)
def room(tmp_path, monkeypatch):
    """An empty folder, no networks, nobody at the keyboard."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("anonface.pipeline.Engine", None)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.delenv("ANONFACE_PASSPHRASE", raising=False)
    return tmp_path


def run(*args):
    return app.run([str(arg) for arg in args])


def test_there_are_enough_and_most_are_refusals():
    everything = [
        *SEALED,
        *CONTAINERS["accepted"],
        *CONTAINERS["rejected"],
        *(v for part in KEYS.values() for v in part),
    ]
    refusals = [*REFUSED, *CONTAINERS["rejected"], *KEYS["rejections"]]
    assert len(everything) >= 150 and len(refusals) >= 0.75 * len(everything)


# --- What must open --------------------------------------------------------------------------------------------------


def in_library(vector):
    image, sidecar = unpacked(vector)
    Path("photo.anon.png").write_bytes(image)
    if sidecar:
        Path("photo.anf").write_bytes(sidecar)

    def key(header):
        if vector["passphrase"]:
            assert header.kdf
            return Key.from_passphrase(vector["passphrase"], header.kdf)
        return Key(bytes.fromhex(vector["key"]))

    return recover("photo.anon.png", key, sidecar="photo.anf" if sidecar else None)


def in_command_line(vector):
    image, sidecar = unpacked(vector)
    Path("photo.anon.png").write_bytes(image)
    options = []
    if sidecar:
        Path("photo.anf").write_bytes(sidecar)
        options += ["--sidecar", "photo.anf"]
    if vector["passphrase"]:
        Path("pass").write_text(vector["passphrase"])
        options += ["--passphrase-file", "pass"]
    else:
        Path("k.bin").write_bytes(bytes.fromhex(vector["key"]))
        Path("k.bin").chmod(0o600)
        options += ["--key-file", "k.bin"]
    return run("recover", "photo.anon.png", "-o", "out/", *options)


def in_second(vector):
    image, sidecar = unpacked(vector)
    if not vector["passphrase"]:
        return second.recover(image, bytes.fromhex(vector["key"]), sidecar)
    header = second.parse(second.extract(sidecar or image))[0]
    return second.recover(image, second.argon2id(vector["passphrase"], *header["passphrase"]), sidecar)


@named([vector for vector in OPENED if vector["expect"]["tier"] != "none"])
def test_what_comes_back(vector):
    expect = vector["expect"]
    original = base64.b64decode(expect["original"])

    result = in_library(vector)
    assert (result.tier, result.verified) == (expect["tier"], "yes")
    brought = result.original if expect["tier"] == "file" else result.pixels.tobytes()
    assert brought == original

    assert in_command_line(vector) == 0
    (file,) = Path("out").iterdir()
    if expect["tier"] == "file":
        assert file.name == f"photo.recovered{expect['suffix']}" and file.read_bytes() == original
    else:
        assert np.asarray(Image.open(file).convert("RGB")).tobytes() == original

    _, contents = in_second(vector)
    assert contents["tier"] == expect["tier"] and contents["suffix"] == expect["suffix"]
    assert contents["data" if expect["tier"] == "file" else "pixels"] == original


@named(OPENED)
def test_the_networks_key(vector):
    image, sidecar = unpacked(vector)
    record = carriers.extract(sidecar or image)
    header = anf1.decode(record)
    key = (
        Key.from_passphrase(vector["passphrase"], header.kdf)
        if vector["passphrase"]
        else Key(bytes.fromhex(vector["key"]))
    )
    contents = sealing.unseal(header, anf1.payload(record), key)
    carried = contents.network_key and contents.network_key.to_bytes().hex()
    assert ("withheld" if contents.withheld else carried or "own") == vector["expect"]["networks"]
    _, theirs = in_second(vector)
    assert theirs["prk"] == (contents.network_key and contents.network_key.to_bytes())
    assert theirs["networks"] == (2 if contents.withheld else 1 if carried else 0)
    if contents.withheld:
        with pytest.raises(errors.KeyFileError, match="earlier key"):
            sealing.network_key(contents, key)


@pytest.mark.parametrize(
    ("tier", "output", "size"),
    [("file", "png", 5), ("file", "webp", 70), ("file", "jpg", 300), ("face", "png", 30), ("none", "png", 30)],
)
def test_what_the_package_writes_the_second_implementation_reads(tier, output, size):
    master, after = bytes(range(32)), bytes(range(3, 35))
    pixels = np.random.default_rng(size).integers(1, 255, (size + 16, size + 20, 3), np.uint8)
    Image.fromarray(pixels).save("photo.png")
    original = Path("photo.png").read_bytes()
    anonymize("photo.png", Key(master), f"hidden.{output}", engine=FakeEngine, seal=tier)
    rekey(Path(f"hidden.{output}"), Key(master), Key(after), Path(f"rekeyed.{output}"))
    flow_salt = second.parse(second.extract(Path(f"hidden.{output}").read_bytes()))[0]["flow_salt"]
    for name, key, prk in (("hidden", master, None), ("rekeyed", after, second.prk_of(master, flow_salt))):
        _, contents = second.recover(Path(f"{name}.{output}").read_bytes(), key)
        if tier == "none":
            assert contents is None if name == "hidden" else contents["prk"] == prk
            continue
        assert contents["tier"] == tier and contents["prk"] == prk
        if tier == "file":
            assert contents["data"] == original and contents["suffix"] == ".png"
        else:
            assert contents["pixels"] == pixels.tobytes()
    with pytest.raises(second.Refused):
        second.unseal(second.extract(Path(f"rekeyed.{output}").read_bytes()), master)


# --- What must be refused --------------------------------------------------------------------------------------------


@pytest.mark.slow
@named(REFUSED)
def test_what_is_refused(vector, capsys):
    expect = vector["expect"]
    with pytest.raises(errors.AnonfaceError, match=expect["says"]) as caught:
        in_library(vector)
    assert type(caught.value).__name__ == expect["error"] and caught.value.exit_code == expect["exit"]
    assert caught.value.message.isprintable()

    assert in_command_line(vector) == expect["exit"]
    assert "Traceback" not in capsys.readouterr().err
    assert not Path("out").exists()

    with pytest.raises(second.Refused) as refused:
        in_second(vector)
    assert refused.value.code == expect["exit"]


EXITS = {name: getattr(errors, name).exit_code for name in ("ContainerError", "LimitError", "KeyFileError")}


@named(CONTAINERS["rejected"])
def test_records_refused_without_a_key(vector):
    record = bytes.fromhex(vector["record"]) + bytes(vector.get("zeros", 0))
    Path("x.anf").write_bytes(record)
    assert run("inspect", "x.anf") == EXITS[vector["error"]]
    with pytest.raises(second.Refused) as refused:
        second.parse(record)
    assert refused.value.code == EXITS[vector["error"]]


@named(CONTAINERS["accepted"])
def test_records_read_without_a_key(vector, capsys):
    record = bytes.fromhex(vector["record"])
    Path("x.anf").write_bytes(record)
    assert run("inspect", "x.anf", "--json") == 0
    assert vector["fields"].items() <= json.loads(capsys.readouterr().out).items()
    header, payload, _ = second.parse(record)
    fields = vector["fields"]
    assert header["backend"] == fields["backend"] and header["parameters"] == fields["parameters"]
    assert header["flow_salt"].hex() == fields["flow_salt"] and list(header["canvas"]) == fields["canvas"]
    assert header["producer"] == fields["producer"] and header["consistent"] == fields["consistent"]
    assert header["weights"].hex() == fields["weights_sha256"] and len(payload) == fields["payload_bytes"]
    assert (header["seal"][0] if header["seal"] else "none") == fields["tier"]
    assert header["passphrase"] == (
        fields["passphrase"] and (bytes.fromhex(fields["passphrase"]["salt"]), *list(fields["passphrase"].values())[1:])
    )
    assert [(kind, corners) for kind, corners in header["faces"]] == [
        (face["kind"], [value for corner in face["quad"] for value in corner]) for face in fields["faces"]
    ]


@named(KEYS["rejections"])
def test_keys_refused(vector):
    Path("k.bin").write_bytes(bytes.fromhex(vector["data"]))
    Path("k.bin").chmod(0o600)
    Path("photo.png").touch()
    options = []
    if vector["passphrase"] is not None:
        Path("pass").write_text(vector["passphrase"])
        options = ["--passphrase-file", "pass"]
    assert run("recover", "photo.png", "--key-file", "k.bin", *options) == EXITS[vector["error"]]
    with pytest.raises(second.Refused) as refused:
        second.master_of(bytes.fromhex(vector["data"]), vector["passphrase"])
    assert refused.value.code == EXITS[vector["error"]]


def test_keys_and_streams_of_the_second_implementation():
    for vector in KEYS["text"]:
        assert second.master_of(vector["text"].encode()).hex() == vector["master"]
        assert second.to_text("AFK1-", bytes.fromhex(vector["master"])) == vector["text"]
    for vector in KEYS["wrapped"]:
        assert second.master_of(vector["text"].encode(), vector["passphrase"]).hex() == vector["master"]
    for vector in KEYS["passphrases"]:
        kdf = Argon2(bytes.fromhex(vector["salt"]), vector["memory_kib"], vector["iterations"], vector["lanes"])
        costs = (kdf.memory_kib, kdf.iterations, kdf.lanes)
        assert second.argon2id(vector["passphrase"], kdf.salt, *costs).hex() == vector["master"]
    for vector in KEYS["streams"]:
        prk = second.prk_of(bytes.fromhex(vector["master"]), bytes.fromhex(vector["salt"]))
        key = second.subkey(prk, vector["purpose"], vector["backend"], vector["index"])
        assert key.hex() == vector["key"] and second.stream(key, 64).hex() == vector["stream"]
        assert np.allclose(second.signed_unit(key, 8), vector["signed_unit"], atol=1e-7)
        assert np.allclose(second.normal(key, 8), vector["normal"], rtol=1e-13, atol=1e-15)


def test_payload_keys_and_nonces_of_the_second_implementation():
    for vector in KEYS["payloads"]:
        master, salt, nonce = (bytes.fromhex(vector[name]) for name in ("master", "salt", "nonce"))
        prk = second.payload_prk(second.prk_of(master, salt), nonce)
        assert second.subkey(prk, vector["purpose"], vector["backend"], vector["index"]).hex() == vector["key"]
        own = Key(master).face(salt, vector["backend"], vector["index"]).payload(nonce)
        assert own.derive(vector["purpose"]).hex() == vector["key"]
        assert second.coded_nonce(nonce) == vector["coded"]
        said = "".join("01"[value < 0] for value in numbers_of_nonce(nonce).tolist())
        assert said == vector["coded"]


def test_the_second_implementation_and_the_writer_share_nothing_with_the_package():
    code = "import sys, second, make_vectors; assert not [name for name in sys.modules if name.startswith('anonface')]"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
    for name in ("second", "make_vectors"):
        assert "import anonface" not in (Path(__file__).parent / f"{name}.py").read_text()


def test_the_published_file_is_what_the_writer_writes():
    code = "import json, make_vectors as m\nm.write_all()\nprint(json.dumps(m.vectors))\n"
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent, capture_output=True)
    assert json.loads(done.stdout) == SEALED
