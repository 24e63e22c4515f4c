"""Keys: golden vectors (made by code that shares nothing with the package), secrecy, and separation of the streams."""

import copy
import json
import math
import pickle
import re
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anonface import errors
from anonface.crypto import keys, passphrases
from anonface.crypto.keys import CONSISTENT_SALT, Argon2, Key, fresh_salt, loose_permissions, write_key_file
from anonface.errors import KeyFileError, LimitError, OutputError

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "keys.json").read_text())
MASTER, SALT = bytes(range(32)), bytes(range(16, 32))
CHEAP = {"memory_kib": 64, "iterations": 1, "lanes": 2}


@pytest.mark.parametrize("vector", VECTORS["text"])
def test_text_form(vector: dict) -> None:
    key = Key(bytes.fromhex(vector["master"]))
    assert key.to_text() == vector["text"]
    for text in (vector["text"], vector["text"].lower(), f" {vector['text']}\r\n"):
        assert Key.from_bytes(text.encode()) == key
    assert Key.from_bytes(bytes.fromhex(vector["master"])) == key


@pytest.mark.parametrize("vector", VECTORS["streams"], ids=lambda v: f"{v['purpose']}-{v['backend']}-{v['index']}")
def test_streams(vector: dict) -> None:
    face = Key(bytes.fromhex(vector["master"])).face(bytes.fromhex(vector["salt"]), vector["backend"], vector["index"])
    purpose = vector["purpose"]
    assert face.derive(purpose).hex() == vector["key"]
    assert face.stream(purpose, 64).hex() == vector["stream"]
    unit, normal = face.signed_unit(purpose, 8), face.normal(purpose, 8)
    assert unit.dtype == np.float32 and unit.tolist() == np.array(vector["signed_unit"], np.float32).tolist()
    assert normal.dtype == np.float64 and np.allclose(normal, vector["normal"], rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("vector", VECTORS["passphrases"], ids=lambda v: ascii(v["passphrase"]))
def test_passphrases(vector: dict) -> None:
    kdf = Argon2(bytes.fromhex(vector["salt"]), vector["memory_kib"], vector["iterations"], vector["lanes"])
    assert Key.from_passphrase(vector["passphrase"], kdf) == Key(bytes.fromhex(vector["master"]))


@pytest.mark.parametrize("vector", VECTORS["wrapped"], ids=lambda v: v["passphrase"])
def test_wrapped_form(vector: dict) -> None:
    kdf = Argon2(bytes.fromhex(vector["salt"]), vector["memory_kib"], vector["iterations"], vector["lanes"])
    key = Key(bytes.fromhex(vector["master"]))
    assert key.wrap(vector["passphrase"], kdf) == vector["text"]
    assert Key.from_bytes(vector["text"].encode(), vector["passphrase"]) == key


@pytest.mark.parametrize("vector", VECTORS["rejections"], ids=lambda v: v["name"])
def test_rejections(vector: dict, tmp_path: Path) -> None:
    data = bytes.fromhex(vector["data"])
    file = tmp_path / "key\n"
    file.write_bytes(data)
    for read in (lambda: Key.from_bytes(data, vector["passphrase"]), lambda: Key.from_file(file, vector["passphrase"])):
        with pytest.raises(getattr(errors, vector["error"]), match=vector["says"]) as caught:
            read()
        assert type(caught.value).__name__ == vector["error"]
        assert caught.value.message.isprintable()


def test_a_key_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", "nul\0"):
        with pytest.raises(KeyFileError, match="cannot be read"):
            Key.from_file(path)
    big = tmp_path / "big"
    big.write_bytes(bytes(100_000))
    with pytest.raises(KeyFileError, match="more than 4096"):
        Key.from_file(big)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_key_or_refused(data: bytes) -> None:
    try:
        key = Key.from_bytes(data)
    except KeyFileError:
        return
    assert Key.from_bytes(key.to_text().encode()) == key


@given(st.binary(min_size=32, max_size=32), st.integers(0, 62), st.sampled_from("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567-18"))
def test_a_mistyped_key_is_refused(master: bytes, place: int, letter: str) -> None:
    text = Key(master).to_text()
    mistyped = text[:place] + letter + text[place + 1 :]
    if mistyped != text:
        with pytest.raises(KeyFileError):
            Key.from_bytes(mistyped.encode())


def test_hostile_costs_are_refused_before_allocating() -> None:
    for hostile in ({"memory_kib": 2**32 - 1}, {"memory_kib": 1024 * 1024 + 1}, {"iterations": 11}, {"lanes": 9}):
        with pytest.raises(LimitError):
            Argon2(SALT, **{**CHEAP, **hostile})
    Argon2(SALT, 1024 * 1024, 10, 8)
    for malformed in ({"iterations": 0}, {"lanes": 0}, {"memory_kib": 15}, {"salt": b"short"}):
        with pytest.raises(ValueError):
            Argon2(**{"salt": SALT, **CHEAP, **malformed})


def test_default_costs() -> None:
    kdf = Argon2.fresh()
    assert (kdf.memory_kib, kdf.iterations, kdf.lanes) == (256 * 1024, 3, 4)
    assert kdf.salt != Argon2.fresh().salt and len(fresh_salt()) == len(CONSISTENT_SALT) == 16


def test_passphrases_that_cannot_be() -> None:
    for text, says in (("", "empty"), ("\udcff", "UTF-8")):
        with pytest.raises(KeyFileError, match=says):
            Key.from_passphrase(text, Argon2(SALT, **CHEAP))


def test_text_is_no_raw_key(tmp_path: Path) -> None:
    line = Key(MASTER).to_text()
    for text in ("a passphrase of 32 characters ok?", "correct horse battery staple 123\n"):
        data = text.encode()[:32]
        for typed in (data, b"\xef\xbb\xbf" + data[:29], data[:31] + b"\n", "пароль из букв!!".encode() + b"abcd"):
            assert len(typed) == 32
            with pytest.raises(KeyFileError, match="holds text") as caught:
                Key.from_bytes(typed)
            assert "--passphrase-file" in caught.value.hint
    for codec in ("utf-16", "utf-16-le", "utf-16-be"):
        with pytest.raises(KeyFileError, match="holds text"):
            Key.from_bytes(("a passphrase of " if codec != "utf-16" else "a passphrase of").encode(codec))
    for raw in (bytes(32), MASTER, b"\xef\xbb\xbf" + bytes(29), b"\xff\xfe" + MASTER[2:], b"\xff" * 32):
        assert Key.from_bytes(raw) == Key(raw)
    for data in (
        b"\xef\xbb\xbf" + line.encode(),
        (line + "\r\n").encode("utf-16"),
        f"\ufeff{line}".encode("utf-16-be"),
    ):
        assert Key.from_bytes(data) == Key(MASTER)
        (tmp_path / "k").write_bytes(data)
        assert Key.from_file(tmp_path / "k") == Key(MASTER)


def test_generated_passphrases() -> None:
    letters = len(set(passphrases.CONSONANTS)) * len(set(passphrases.VOWELS))
    assert passphrases.WORDS * passphrases.SYLLABLES * math.log2(letters) > 75
    texts = {passphrases.generate() for _ in range(500)}
    assert len(texts) == 500
    syllable = f"[{passphrases.CONSONANTS}][{passphrases.VOWELS}]"
    for text in texts:
        words = text.split("-")
        assert len(words) == 6 and all(re.fullmatch(f"({syllable}){{2}}", word) for word in words)
        passphrases.refuse_weak(text)
    for letters in zip(*texts, strict=True):  # every place takes every letter that it may
        assert set(letters) in ({"-"}, set(passphrases.CONSONANTS), set(passphrases.VOWELS))


@pytest.mark.parametrize(
    "weak",
    [
        *(
            "a",
            "elevenchars",
            "e\u0301levenchar",
            "aaaaaaaaaaaaaaaa",
            "abcabcabcabcab",
            "123456789012",
            "9876543210987654",
        ),
        *("password1234", "P@ssw0rd2024!!", "Passwort1234", "Password Password", "qwertyuiop[]", "1qaz2wsx3edc4rfv"),
        *(
            "iloveyou iloveyou",
            "letmein, letmein!",
            "correct horse battery staple",
            "To be or not to be",
            "h4ppyb1rthd4y!",
        ),
        *("jennifer-1984", "94816203957113", "zyxwvutsrqponm", "The quick brown fox", "пароль1234567"),
    ],
)
def test_weak_passphrases(weak: str, tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"at least 12|a common one") as caught:
        passphrases.refuse_weak(weak)
    assert (len(weak) < 9 or weak not in caught.value.message) and "--weak-passphrase" in caught.value.hint
    with pytest.raises(KeyFileError):
        write_key_file(tmp_path / "k", Key(MASTER), weak)
    assert not (tmp_path / "k").exists()


@pytest.mark.parametrize(
    "strong",
    [
        *("correct horse", "x9%kQ2!vLp0z", "ab%&/(=)!;:#", "maple tundra 9 gristle bishop", "94816203957113048273"),
        *(
            "open the door please",
            "ein Satz den niemand kennt",
            "日本語の長い合言葉です、ね",
            "password of my grandmother",
        ),
    ],
)
def test_strong_passphrases(strong: str) -> None:
    passphrases.refuse_weak(strong)


def test_texts_of_files() -> None:
    for data in (
        "wörter".encode("utf-8-sig"),
        "wörter".encode(),
        "wörter".encode("utf-16"),
        "\ufeffwörter".encode("utf-16-be"),
    ):
        assert passphrases.text_of(data) == "wörter"
    for data, says in (
        ("words".encode("utf-16-le"), "zero bytes"),
        ("wörter".encode("utf-32"), "UTF-32"),
        ("wörter".encode("latin-1"), "no text in UTF-8 or UTF-16"),
        (b"\xff\xfeabc", "no text in UTF-8 or UTF-16"),
    ):
        with pytest.raises(KeyFileError, match=says):
            passphrases.text_of(data)


# --- Separation ------------------------------------------------------------------------------------------------------


def test_the_same_face_key_gives_the_same_stream() -> None:
    one, two = (Key(MASTER).face(SALT, "ifadit", 3) for _ in range(2))
    assert one.stream("flow", 1000) == two.stream("flow", 1000)
    assert one.stream("flow", 10) == two.stream("flow", 1000)[:10]
    assert np.array_equal(one.normal("flow", 100), two.normal("flow", 100))


def flipped(data: bytes, bit: int) -> bytes:
    return bytes(byte ^ (1 << bit % 8 if at == bit // 8 else 0) for at, byte in enumerate(data))


def test_one_flipped_bit_gives_an_unrelated_stream() -> None:
    streams = [Key(MASTER).face(SALT, "ifadit", 0).stream("flow", 4096)]
    streams += [Key(flipped(MASTER, bit)).face(SALT, "ifadit", 0).stream("flow", 4096) for bit in range(256)]
    streams += [Key(MASTER).face(flipped(SALT, bit), "ifadit", 0).stream("flow", 4096) for bit in range(128)]
    streams += [Key(MASTER).face(SALT, name, 0).stream("flow", 4096) for name in ("ifadiu", "Ifadit", "ifadit2")]
    streams += [Key(MASTER).face(SALT, "ifadit", 1 << bit).stream("flow", 4096) for bit in range(16)]
    streams += [Key(MASTER).face(SALT, "ifadit", 0).stream(name, 4096) for name in ("seal", "flow2", "floW")]
    bits = np.unpackbits(np.frombuffer(b"".join(streams), np.uint8).reshape(len(streams), -1), axis=1)
    signs = bits.astype(np.float32) * 2 - 1
    likeness = np.abs(signs @ signs.T / signs.shape[1] - np.eye(len(streams)))
    assert likeness.max() < 6 / np.sqrt(signs.shape[1])  # six standard deviations of unrelated bits


def test_values_have_their_distribution() -> None:
    face = Key(MASTER).face(SALT, "ifadit", 0)
    unit, normal = face.signed_unit("flow", 100_000), face.normal("flow", 100_000)
    assert unit.min() == -1 and unit.max() == 1 and abs(unit.mean()) < 0.01 and abs(unit.std() - 0.5796) < 0.01
    assert abs(normal.mean()) < 0.015 and abs(normal.std() - 1) < 0.01 and np.isfinite(normal).all()
    assert abs((normal**4).mean() - 3) < 0.15


@pytest.mark.parametrize("word", [bytes(8), b"\xff" * 8])
def test_the_extreme_words_are_finite(word: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    face = Key(MASTER).face(SALT, "ifadit", 0)
    monkeypatch.setattr(keys.FaceKey, "stream", lambda self, purpose, n: word)
    assert 8 < abs(face.normal("flow", 1)[0]) < 9


def test_labels_cannot_run_into_each_other() -> None:
    key = Key(MASTER)
    for backend in ("", "a\0b", "é", "a\n"):
        with pytest.raises(ValueError):
            key.face(SALT, backend, 0)
    with pytest.raises(ValueError):
        key.face(SALT, "ifadit", 0).stream("flow\0", 1)
    for index in (-1, 65536):
        with pytest.raises(ValueError):
            key.face(SALT, "ifadit", index)


# --- Secrecy ---------------------------------------------------------------------------------------------------------


def test_secrets_are_not_shown() -> None:
    key = Key(b"SECRETSECRETSECRETSECRETSECRET!!")
    for holder in (key, key.face(SALT, "ifadit", 0)):
        assert "SECRET!" not in f"{holder!r} {holder} {holder!s:>9}" and "AFK1" not in repr([holder])
        for copying in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError):
                copying(holder)
        with pytest.raises(AttributeError):
            holder.__dict__  # noqa: B018


def test_equality() -> None:
    assert Key(MASTER) == Key(MASTER) and hash(Key(MASTER)) == hash(Key(MASTER))
    assert Key(MASTER) != Key(flipped(MASTER, 0)) and Key(MASTER) != MASTER
    assert Key.generate() != Key.generate()


def test_key_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Argon2, "fresh", classmethod(lambda cls: cls(SALT, **CHEAP)))
    key = Key.generate()
    plain, wrapped = tmp_path / "plain", tmp_path / "wrapped"
    write_key_file(plain, key)
    write_key_file(wrapped, key, "correct horse")
    assert Key.from_file(plain) == key == Key.from_file(wrapped, "correct horse")
    assert stat.S_IMODE(plain.stat().st_mode) == 0o600 and plain.read_text() == key.to_text() + "\n"
    with pytest.raises(KeyFileError, match="needs its passphrase"):
        Key.from_file(wrapped)
    before = plain.read_bytes()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for taken in (plain, tmp_path / "link", tmp_path):
        with pytest.raises(OutputError, match="exists"):
            write_key_file(taken, Key.generate())
    with pytest.raises(KeyFileError):
        write_key_file(tmp_path / "empty", key, "")
    assert plain.read_bytes() == before and not (tmp_path / "nowhere").exists() and not (tmp_path / "empty").exists()


def test_a_full_disk_leaves_no_half_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keys.os, "fsync", full)
    with pytest.raises(OutputError, match="No space"):
        write_key_file(tmp_path / "k", Key.generate())
    assert not (tmp_path / "k").exists()


def test_loose_permissions(tmp_path: Path) -> None:
    file = tmp_path / "k"
    write_key_file(file, Key.generate())
    for mode, loose in ((0o600, False), (0o400, False), (0o640, True), (0o604, True), (0o620, True), (0o711, False)):
        file.chmod(mode)
        assert loose_permissions(file) is loose
    with pytest.raises(KeyFileError):
        loose_permissions(tmp_path / "none")


def test_a_mark_is_known_again_by_its_key_alone() -> None:
    """And two marks of a key have nothing in common."""
    key, other = Key(MASTER), Key(SALT + SALT)
    marks = [key.mark(SALT), key.mark(bytes(16)), other.mark(SALT)]
    assert key.mark(SALT) == marks[0] and len(set(marks)) == 3 and {len(mark) for mark in marks} == {32}
    assert marks[0] not in (key.face(SALT, backend, 0).derive("seal-check") for backend in ("ifadit", "journal"))


def test_a_key_file_in_a_folder_to_be_made(tmp_path: Path) -> None:
    file = tmp_path / "new" / "deep" / "k.bin"
    write_key_file(file, Key(MASTER))
    assert Key.from_file(file) == Key(MASTER) and stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(OutputError, match="is no folder"):
        write_key_file(file / "k.bin", Key(MASTER))
    with pytest.raises(OutputError, match="exists"):
        write_key_file(file, Key(SALT + SALT))
    if Path("/proc/self").is_dir():
        with pytest.raises(OutputError, match="no file can be made there"):
            write_key_file("/proc/new/k.bin", Key(MASTER))


def test_flipped_bits() -> None:
    key = Key(bytes(range(32)))
    near = key.flipped([0, 255])
    assert near != key and near.flipped([255, 0]) == key == key.flipped([])
    assert near._secret == bytes([1, *range(1, 31), 31 ^ 128])
    assert len({key.flipped([bit]) for bit in range(256)}) == 256
