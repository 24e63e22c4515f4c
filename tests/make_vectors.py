"""Write tests/vectors/sealed.json: image files and sidecars with a key, and what must become of them.

python tests/make_vectors.py

Built from docs/format.md with the primitives of the second implementation, without the package; nothing is drawn at
random, so that the file comes out the same. Vectors are named after what is wrong with them.
"""

import base64
import hashlib
import json
import struct
import zlib
from pathlib import Path

import second
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MASTER, OTHER = bytes(range(32)), bytes(range(1, 33))
ONE_BIT_OFF = bytes([1]) + MASTER[1:]
FLOW, CONSISTENT = bytes(range(16)), b"anonface/v1 same"
WIDTH, HEIGHT = 20, 16
FACES = [("synth", [4, 4, 4, 9.5, 9.5, 9.5, 9.5, 4])]
CROWD = [*FACES, ("synth", [7, 7, 7, 12, 12, 12, 12, 7]), ("mosaic", [17, -3, 17, 2, 25, 2, 25, -3])]
CHEAP = (bytes(range(32, 48)), 64, 1, 1)
ORIGINAL = b"not an image, which recovery must not mind; " * 9
JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8ybqm"
    "x5moq6T/2wBDARweHigjKE4rK06kbl1upKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKT/wAARCAAIAAgD"
    "ASIAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAAAAT/xAAYEAEAAwEAAAAAAAAAAAAAAAAABAURIv/EABUBAQEAAAAAAAAAAAAAAAAAAAIE/8QA"
    "GxEAAgEFAAAAAAAAAAAAAAAAAAERAgMEEjH/2gAMAwEAAhEDEQA/AJotducgJE5UsePfr06f/9k="
)
WEBP = base64.b64decode("UklGRjIAAABXRUJQVlA4TCYAAAAvB8ABALkyRPQ/dhHR/wBhtlFJzh90ryMYD4UAAqCgiQkA6YH7Dw==")

vectors = []


# --- Pictures --------------------------------------------------------------------------------------------------------


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(pixels, width=WIDTH, height=HEIGHT, alpha=None, more=b""):
    """Uncompressed, so that its bytes depend on no version of zlib."""
    rows = b""
    for y in range(height):
        row = pixels[3 * width * y : 3 * width * (y + 1)]
        if alpha:
            row = b"".join(row[3 * x : 3 * x + 3] + alpha[width * y + x :][:1] for x in range(width))
        rows += b"\0" + row
    stored = b"\x78\x01\x01" + struct.pack("<HH", len(rows), len(rows) ^ 0xFFFF) + rows
    stored += struct.pack(">I", zlib.adler32(rows))
    head = struct.pack(">IIBBBBB", width, height, 8, 6 if alpha else 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + more + chunk(b"IDAT", stored) + chunk(b"IEND", b"")


def noise(label, size):
    return hashlib.shake_256(label.encode()).digest(size)


def changed(pixels, faces, label):
    """The pixels with something else inside the faces' region."""
    inside = second.region({"canvas": (WIDTH, HEIGHT), "faces": faces})
    cells = [cell for row in inside for cell in row]
    other = noise(label, len(pixels))
    return b"".join((other if cell else pixels)[3 * i : 3 * i + 3] for i, cell in enumerate(cells)), cells


def outside(pixels, cells):
    return b"".join(bytes(3) if cell else pixels[3 * i : 3 * i + 3] for i, cell in enumerate(cells))


def within(pixels, cells):
    return b"".join(pixels[3 * i : 3 * i + 3] for i, cell in enumerate(cells) if cell)


SHOWN = noise("picture", 3 * WIDTH * HEIGHT)
PNG = png(SHOWN)


# --- Records ---------------------------------------------------------------------------------------------------------


def short(text):
    return bytes([len(text)]) + text.encode()


def bound(
    *,
    version=1,
    producer="0.1.0",
    flags=None,
    flow=FLOW,
    kdf=None,
    seal=None,
    backend="ifadit",
    parameters=(("refine", 20),),
    weights=bytes(range(64, 96)),
    canvas=(WIDTH, HEIGHT),
    faces=FACES,
):
    """A header up to its payload section. ``seal`` is tier code, salt and check."""
    if flags is None:
        flags = (flow == CONSISTENT) | (bool(kdf) << 1) | (bool(seal) << 2)
    body = short(producer) + struct.pack(">H", flags) + flow
    if kdf:
        body += kdf[0] + struct.pack(">IHH", *kdf[1:])
    if seal:
        body += bytes([seal[0]]) + seal[1] + seal[2]
    body += short(backend) + struct.pack(">H", len(parameters))
    for name, value in parameters:
        body += short(name) + b"i" + struct.pack(">q", value)
    body += weights + struct.pack(">IIH", *canvas, len(faces))
    for kind, corners in faces:
        body += struct.pack(">B8i", ["synth", "mosaic"].index(kind), *(int(16 * corner) for corner in corners))
    return b"ANF1" + struct.pack(">BI", version, 9 + len(body) + 72) + body


def record(head, payload):
    head += struct.pack(">Q", len(payload)) + second.sha256(payload)
    return head + second.sha256(head) + payload


def encrypt(key, plaintext, context, label="message"):
    """Cobblestone-256 with a salt that is not random."""
    salt = noise(label, 24)
    aes, base, commitment = second.expand(key, salt, context)
    pieces = [plaintext[at : at + second.CHUNK] for at in range(0, len(plaintext) + 1, second.CHUNK)]
    chunks = [AESGCM(aes).encrypt(second.nonce(base, number), piece, None) for number, piece in enumerate(pieces)]
    return salt + commitment + b"".join(chunks)


def plain(data=b"", suffix=b"", binding=bytes(32), prk=None, mode=None, padding=None, size=None):
    mode = (0 if prk is None else 1) if mode is None else mode
    text = bytes([mode]) + (prk or b"") + binding + bytes([len(suffix)]) + suffix
    text += struct.pack(">Q", len(data) if size is None else size) + data
    return text + (bytes(second.padded_size(len(text)) - len(text)) if padding is None else padding)


def sealed(tier, plaintext, master=MASTER, label="seal", tampered=None, **fields):
    """A record. ``tampered`` are fields that are changed after sealing, with all digests made anew."""
    prk = second.prk_of(master, noise(label, 16))
    backend = fields.get("backend", "ifadit")
    check = second.subkey(prk, "seal-check", backend, 0)
    head = bound(seal=(second.TIERS.index(tier), noise(label, 16), check), **fields)
    payload = encrypt(second.subkey(prk, "seal", backend, 0), plaintext, head, label)
    if tampered:
        seal = (second.TIERS.index(tier), noise(label, 16), check)
        head = bound(**{"seal": seal, **fields, **tampered})
    return record(head, payload)


def parted(made):
    """A record's bound part and its payload."""
    size = int.from_bytes(made[5:9], "big")
    return made[: size - 72], made[size:]


def of_file(image=PNG, data=ORIGINAL, suffix=b".jpg", **more):
    return plain(data, suffix, second.picture_digest(image), **more)


def in_png(image, *pieces):
    at = image.index(b"IDAT") - 4
    return image[:at] + b"".join(chunk(b"anFC", piece) for piece in pieces) + image[at:]


def in_jpeg(image, *pieces, at=20):
    segments = b"".join(b"\xff\xe9" + struct.pack(">H", 11 + len(piece)) + b"ANONFACE\0" + piece for piece in pieces)
    return image[:at] + segments + image[at:]


def in_webp(image, piece, name=b"ANFC", pad=b"\0"):
    body = image[8:] + name + struct.pack("<I", len(piece)) + piece + pad * (len(piece) % 2)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def cut(data, size):
    return [data[at : at + size] for at in range(0, len(data), size)]


# --- Vectors ---------------------------------------------------------------------------------------------------------


def add(name, data, key=MASTER, sidecar=None, passphrase=None, **expect):
    vectors.append(
        {
            "name": name,
            "data": base64.b64encode(data).decode(),
            "sidecar": sidecar and base64.b64encode(sidecar).decode(),
            "key": None if passphrase else key.hex(),
            "passphrase": passphrase,
            "expect": expect,
        }
    )


def accept(name, data, tier="file", suffix=".jpg", original=ORIGINAL, networks="own", **options):
    add(
        name,
        data,
        exit=0,
        tier=tier,
        suffix=suffix,
        original=base64.b64encode(original).decode(),
        networks=networks,
        **options,
    )


def refuse(name, data, says, exit=8, error="ContainerError", **options):
    add(name, data, exit=exit, error=error, says=says, **options)


def wrong(name, data, key):
    refuse(name, data, "not the one that this photo was sealed under", 7, "WrongKeyError", key=key)


def accepted():
    good = sealed("file", of_file())
    accept("file in a PNG", in_png(PNG, good))
    accept("file in a PNG, the record in pieces", in_png(PNG, *cut(good, 100)))
    noisy = png(SHOWN, more=chunk(b"tEXt", b"Comment\0hello") + chunk(b"eXIf", b"MM\0*\0\0\0\x08\0\0\0\0\0\0"))
    accept(
        "file in a PNG, among other software's chunks",
        in_png(noisy, good)[:-12] + chunk(b"tIME", bytes(7)) + noisy[-12:],
    )
    at = PNG.index(b"IEND") - 4
    accept("file in a PNG, behind the image data", PNG[:at] + chunk(b"anFC", good) + PNG[at:])
    long = noise("long original", 70_000)
    pieces = cut(sealed("file", of_file(JPEG, long)), 65_524)
    accept("file in a JPEG, over two segments", in_jpeg(JPEG, *pieces), original=long)
    jpeg = sealed("file", of_file(JPEG))
    foreign = b"\xff\xff\xff\xe9\0\x08other!" + b"\xff\xfe\0\x04hi"
    accept(
        "file in a JPEG, among other software's segments", in_jpeg(JPEG[:20] + foreign + JPEG[20:], jpeg, at=20 + 12)
    )
    webp = sealed("file", of_file(WEBP))
    accept("file in a WebP", in_webp(WEBP, webp))
    accept("file in a WebP, among other software's chunks", in_webp(in_webp(WEBP, b"x", b"ABCD"), webp))
    accept("file in a sidecar, the picture saved anew", png(noise("saved anew", 3 * WIDTH * HEIGHT)), sidecar=good)
    accept("an empty original", in_png(PNG, sealed("file", of_file(data=b""))), original=b"")
    accept("an original without a suffix", in_png(PNG, sealed("file", of_file(suffix=b""))), suffix="")
    full = noise("full", second.CHUNK - 46)
    assert len(of_file(data=full)) == second.CHUNK
    accept(
        "a plaintext that fills its chunk, and an empty one",
        in_png(PNG, sealed("file", of_file(data=full))),
        original=full,
    )
    prk = second.prk_of(OTHER, FLOW)
    accept("rekeyed, the networks' key carried", in_png(PNG, sealed("file", of_file(prk=prk))), networks=prk.hex())
    accept(
        "rekeyed, the networks' key withheld",
        in_png(PNG, sealed("file", of_file(mode=2), flow=CONSISTENT)),
        networks="withheld",
    )
    accept("rekeyed without an original", in_png(PNG, sealed("none", plain(prk=prk))), "none", "", b"", prk.hex())
    stretched = second.argon2id("correct horse", *CHEAP)
    accept(
        "under a passphrase", in_png(PNG, sealed("file", of_file(), stretched, kdf=CHEAP)), passphrase="correct horse"
    )
    for name, faces, alpha in (
        ("one face", FACES, None),
        ("faces that overlap and leave the photo", CROWD, None),
        ("transparent places", FACES, noise("alpha", WIDTH * HEIGHT)),
        ("an opaque alpha", FACES, b"\xff" * (WIDTH * HEIGHT)),
    ):
        hidden, cells = changed(SHOWN, faces, name)
        bare = outside(hidden, cells) + (alpha if alpha and min(alpha) < 255 else b"")
        inner = plain(within(SHOWN, cells), binding=second.sha256(bare))
        accept(
            f"pixels: {name}", in_png(png(hidden, alpha=alpha), sealed("face", inner, faces=faces)), "face", "", SHOWN
        )


def wrong_keys():
    good = in_png(PNG, sealed("file", of_file()))
    wrong("another key", good, OTHER)
    wrong("a key one bit off", good, ONE_BIT_OFF)
    wrong("a key of zeros", good, bytes(32))
    hidden, cells = changed(SHOWN, FACES, "one face")
    inner = plain(within(SHOWN, cells), binding=second.sha256(outside(hidden, cells)))
    wrong("another key for pixels", in_png(png(hidden), sealed("face", inner)), OTHER)
    rekeyed = in_png(PNG, sealed("file", of_file(prk=second.prk_of(OTHER, FLOW))))
    wrong("the key before rekeying", rekeyed, OTHER)
    stretched = second.argon2id("correct horse", *CHEAP)
    refuse(
        "another passphrase",
        in_png(PNG, sealed("file", of_file(), stretched, kdf=CHEAP)),
        "not the one that this photo was sealed under",
        7,
        "WrongKeyError",
        passphrase="wrong horse",
    )
    check = second.subkey(second.prk_of(MASTER, noise("seal", 16)), "seal-check", "ifadit", 0)
    for name, tampered in (
        ("seal salt changed, digests made anew", {"seal": (2, noise("other salt", 16), check)}),
        ("key check changed, digests made anew", {"seal": (2, noise("seal", 16), bytes(32))}),
        ("backend changed, digests made anew", {"backend": "dbaf"}),
    ):
        wrong(name, in_png(PNG, sealed("file", of_file(), tampered=tampered)), MASTER)


def headers_changed():
    says = "not sealed together"
    check = second.subkey(second.prk_of(MASTER, noise("seal", 16)), "seal-check", "ifadit", 0)
    for name, tampered in (
        ("flow salt", {"flow": bytes(16)}),
        ("consistent flag", {"flags": 5}),
        ("parameter", {"parameters": (("refine", 21),)}),
        ("parameter added", {"parameters": (("a", 1), ("refine", 20))}),
        ("weights", {"weights": bytes(32)}),
        ("canvas", {"canvas": (WIDTH, HEIGHT - 1)}),
        ("quad", {"faces": [("synth", [4, 4, 4, 9.5, 9.5, 9.5, 9.5, 4.0625])]}),
        ("kind of face", {"faces": [("mosaic", FACES[0][1])]}),
        ("face dropped", {"faces": []}),
        ("producer", {"producer": "0.1.1"}),
        ("tier", {"seal": (1, noise("seal", 16), check)}),
    ):
        refuse(
            f"header: {name} changed, digests made anew",
            in_png(PNG, sealed("file", of_file(), tampered=tampered)),
            says,
        )


def payloads_changed():
    says = "not sealed together"
    head, payload = parted(sealed("file", of_file(data=noise("three chunks", 2 * second.CHUNK))))
    step = second.CHUNK + 16
    start, (first, middle, last) = payload[:56], cut(payload[56:], step)
    for name, changed_payload in (
        ("chunks swapped", start + middle + first + last),
        ("a chunk left out", start + first + last),
        ("last chunk left out", start + first + middle),
        ("a chunk twice", start + first + first + middle + last),
    ):
        refuse(f"payload: {name}, digests made anew", in_png(PNG, record(head, changed_payload)), says)

    plaintext = of_file()
    head, payload = parted(sealed("file", plaintext))
    _, other = parted(sealed("file", of_file(data=b"another photo's original"), label="other"))
    key = second.subkey(second.prk_of(MASTER, noise("seal", 16)), "seal", "ifadit", 0)

    def flip(at):
        return payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1 :]

    for name, changed_payload in (
        ("message salt", flip(0)),
        ("commitment", flip(24)),
        ("first byte of a chunk", flip(56)),
        ("last byte of a tag", flip(len(payload) - 1)),
        ("cut in a chunk", payload[:-100]),
        ("bytes behind the last chunk", payload + bytes(16)),
        ("no chunk", payload[:56]),
        ("shorter than its salt and commitment", payload[:40]),
        ("another photo's", other),
        ("encrypted for no header", encrypt(key, plaintext, b"")),
        ("one AES-GCM message without a commitment", bytes(12) + AESGCM(key).encrypt(bytes(12), plaintext, head)),
    ):
        refuse(f"payload: {name}, digests made anew", in_png(PNG, record(head, changed_payload)), says)
    small = sealed("file", of_file())
    at = len(small) - 100
    for name, damaged, reason in (
        (
            "byte flipped in the payload",
            small[:at] + bytes([small[at] ^ 1]) + small[at + 1 :],
            "payload does not match",
        ),
        ("byte flipped in the header", small[:30] + bytes([small[30] ^ 1]) + small[31:], "digest does not match"),
        ("payload cut", small[:-1], "payload does not match"),
        ("payload missing", small[: int.from_bytes(small[5:9], "big")], "payload does not match"),
        ("byte behind the payload", small + b"\0", "payload does not match"),
    ):
        refuse(name, in_png(PNG, damaged), reason)


def seals_malformed():
    salt, check = noise("seal", 16), bytes(32)
    refuse("seal of a tier to come", in_png(PNG, record(bound(seal=(3, salt, check)), b"x")), "tier 3")
    refuse("seal without a payload", in_png(PNG, record(bound(seal=(2, salt, check)), b"")), "do not go together")
    refuse("payload without a seal", in_png(PNG, record(bound(), b"x")), "do not go together")
    refuse("flag of a version to come", in_png(PNG, record(bound(flags=8), b"")), "flags 0x0008")
    refuse("version to come", in_png(PNG, record(bound(version=2, producer="3.4.5"), b"")), "record version 2")
    refuse("seal cut short", in_png(PNG, record(bound(flags=4, backend="i", parameters=(), faces=[]), b"x")), "damaged")
    for name, costs in (("2 GiB", (2**21, 1, 1)), ("11 passes", (64, 11, 1)), ("9 lanes", (72, 1, 9))):
        kdf = (bytes(16), *costs)
        refuse(
            f"Argon2id with {name}",
            in_png(PNG, record(bound(kdf=kdf, seal=(2, salt, check)), b"x")),
            "above the limit",
            11,
            "LimitError",
            passphrase="correct horse",
        )


def plaintexts_malformed():
    for name, plaintext, says in (
        ("a fourth kind of networks' key", of_file(mode=3), "of kind 3"),
        ("suffix that leads elsewhere", of_file(suffix=b"/../x"), "suffix"),
        ("suffix without a dot", of_file(suffix=b"jpg"), "suffix"),
        ("suffix too long", of_file(suffix=b"." + b"a" * 16), "suffix"),
        ("suffix not of ASCII", of_file(suffix=b".\xc3\xa9"), "damaged"),
        ("suffix with a line end", of_file(suffix=b".jpg\n"), "suffix"),
        ("data longer than there is", of_file(size=10_000), "padding"),
        ("data endless", of_file(size=2**64 - 1), "padding"),
        ("data shorter than there is", of_file(size=300), "padding"),
        ("padding not of zeros", of_file(padding=b"\0" * 6 + b"\1"), "padding"),
        ("no padding", of_file(padding=b""), "padding"),
        ("padding to a larger size", of_file(padding=bytes(7 + 16)), "padding"),
        ("carried key cut short", bytes([1]) + bytes(20), "damaged"),
        ("nothing at all", b"", "damaged"),
        ("a byte", b"\0", "damaged"),
    ):
        refuse(f"plaintext: {name}", in_png(PNG, sealed("file", plaintext)), says)
    for name, tier, plaintext in (
        ("data under tier none", "none", plain(b"data", prk=bytes(32))),
        ("binding under tier none", "none", plain(binding=bytes(31) + b"\1", prk=bytes(32))),
        ("suffix under tier none", "none", plain(suffix=b".jpg", prk=bytes(32))),
        ("suffix under tier face", "face", plain(b"data", b".png")),
    ):
        refuse(f"plaintext: {name}", in_png(PNG, sealed(tier, plaintext)), "more than its tier")


def foreign_pictures():
    says = "does not belong to this picture"
    good = sealed("file", of_file())
    refuse("record of another file of the same key", in_png(png(noise("another", 3 * WIDTH * HEIGHT)), good), says)
    refuse("picture changed", in_png(png(SHOWN[:-1] + bytes([SHOWN[-1] ^ 1])), good), says)
    refuse("picture given transparency", in_png(png(SHOWN, more=chunk(b"tRNS", bytes(6))), good), says)
    refuse("record of a PNG in a JPEG", in_jpeg(JPEG, good), says)
    jpeg = sealed("file", of_file(JPEG))
    refuse("scan of the JPEG changed", in_jpeg(JPEG[:-5] + bytes([JPEG[-5] ^ 1]) + JPEG[-4:], jpeg), says)
    refuse("tables of the JPEG changed", in_jpeg(JPEG[:30] + bytes([JPEG[30] ^ 1]) + JPEG[31:], jpeg), says)
    webp = sealed("file", of_file(WEBP))
    refuse("picture of the WebP changed", in_webp(WEBP[:-3] + bytes([WEBP[-3] ^ 1]) + WEBP[-2:], webp), says)
    hidden, cells = changed(SHOWN, FACES, "one face")
    binding = second.sha256(outside(hidden, cells))
    inner = sealed("face", plain(within(SHOWN, cells), binding=binding))
    touched = bytes([hidden[0] ^ 1]) + hidden[1:]
    refuse("pixels: one outside the face changed", in_png(png(touched), inner), says)
    refuse("pixels: transparency added", in_png(png(hidden, alpha=bytes(WIDTH * HEIGHT)), inner), says)
    refuse("pixels: a row cropped", in_png(png(hidden[: -3 * WIDTH], height=HEIGHT - 1), inner), says)
    for name, data in (("one too few", within(SHOWN, cells)[3:]), ("one too many", within(SHOWN, cells) + bytes(3))):
        refuse(f"pixels: {name}", in_png(png(hidden), sealed("face", plain(data, binding=binding))), "not as many")


def carriers_broken():
    good = sealed("file", of_file())
    whole = in_png(PNG, good)
    half = len(good) // 2
    at = whole.index(b"anFC") + 4 + len(good)
    refuse("PNG: checksum wrong", whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], "checksum")
    refuse("PNG: cut in the record", whole[: at - 50], "broken")
    refuse("PNG: two records", in_png(PNG, good, good), "payload does not match")
    refuse("PNG: pieces swapped", in_png(PNG, good[half:], good[:half]), "not an anonface record")
    refuse("PNG: last piece missing", in_png(PNG, good[:half]), "damaged")
    refuse("PNG: first piece missing", in_png(PNG, good[half:]), "not an anonface record")
    pieces = cut(sealed("file", of_file(JPEG)), 400)
    refuse("JPEG: last segment missing", in_jpeg(JPEG, pieces[0]), "payload does not match")
    refuse("JPEG: segments swapped", in_jpeg(JPEG, *pieces[::-1]), "not an anonface record")
    whole = in_jpeg(JPEG, *pieces)
    refuse("JPEG: cut in a segment", whole[:500], "broken")
    odd = next(
        made for made in (sealed("file", of_file(WEBP), producer=name) for name in ("1.0", "1.0.")) if len(made) % 2
    )
    whole = in_webp(WEBP, odd)
    refuse("WebP: padding not zero", in_webp(WEBP, odd, pad=b"\1"), "padding")
    refuse("WebP: cut in the record", whole[:-20], "broken")
    refuse("WebP: size too small", whole[:4] + struct.pack("<I", len(whole) - 30) + whole[8:], "broken")
    for name, image in (("PNG", PNG), ("JPEG", JPEG), ("WebP", WEBP)):
        refuse(f"{name}: saved by another program, the record gone", image, "carries no anonface record")
    refuse("sidecar cut", PNG, "payload does not match", sidecar=good[:-1])
    refuse("sidecar that is none", PNG, "carries no anonface record", sidecar=b"a text")
    refuse("sidecar of another key", PNG, "not the one", 7, "WrongKeyError", sidecar=good, key=OTHER)


def write_all():
    """Fill ``vectors``."""
    accepted()
    wrong_keys()
    headers_changed()
    payloads_changed()
    seals_malformed()
    plaintexts_malformed()
    foreign_pictures()
    carriers_broken()


if __name__ == "__main__":
    write_all()
    assert len({vector["name"] for vector in vectors}) == len(vectors)
    target = Path(__file__).parent / "vectors" / "sealed.json"
    target.write_text(json.dumps(vectors, indent=1) + "\n")
    refused = sum(vector["expect"]["exit"] != 0 for vector in vectors)
    print(f"{len(vectors)} vectors, {refused} of them refused, {target.stat().st_size} bytes")
