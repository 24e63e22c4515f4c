"""A second implementation of docs/format.md: reads keys, records and image files, and opens seals.

Written from the document alone. It imports nothing of anonface and needs only Python and `cryptography`; it is for
judging the first one, and makes no haste. Every refusal is a :class:`Refused` with its exit code.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import re
import statistics
import struct
import unicodedata
import zlib

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256, SHA512
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

CONTEXT = b"anonface/v1"
CHUNK = 16 * 1024
TIERS = ["none", "face", "file"]
BAD_KEY, WRONG_KEY, DAMAGED, LIMIT = 6, 7, 8, 11


class Refused(Exception):
    def __init__(self, code, why):
        super().__init__(why)
        self.code = code


# --- Keys ------------------------------------------------------------------------------------------------------------


def argon2id(passphrase, salt, memory_kib, iterations, lanes):
    check_costs(memory_kib, iterations, lanes, BAD_KEY)
    if not passphrase:
        raise Refused(BAD_KEY, "no passphrase")
    data = unicodedata.normalize("NFC", passphrase).encode()
    return Argon2id(salt=salt, length=32, iterations=iterations, lanes=lanes, memory_cost=memory_kib).derive(data)


def check_costs(memory_kib, iterations, lanes, malformed):
    if memory_kib > 1024 * 1024 or iterations > 10 or lanes > 8:
        raise Refused(LIMIT, "Argon2id costs")
    if iterations < 1 or lanes < 1 or memory_kib < 8 * lanes:
        raise Refused(malformed, "Argon2id costs")


def from_text(prefix, text, size):
    letters = text[len(prefix) :]
    try:
        data = base64.b32decode(letters + "=" * (-len(letters) % 8))
    except ValueError:
        raise Refused(BAD_KEY, "not base32") from None
    if len(data) != size + 4 or to_text(prefix, data[:size]) != text:
        raise Refused(BAD_KEY, "not the one encoding")
    return data[:size]


def to_text(prefix, payload):
    checksum = hashlib.sha256(prefix.encode() + payload).digest()[:4]
    return prefix + base64.b32encode(payload + checksum).decode().rstrip("=")


def master_of(data, passphrase=None):
    """The master that a key file holds."""
    text = data.decode("ascii", "replace").strip().upper()
    if text.startswith("AFK1-"):
        return from_text("AFK1-", text, 32)
    if text.startswith("AFKP1-"):
        payload = from_text("AFKP1-", text, 70)
        memory_kib, iterations, lanes = struct.unpack(">IBB", payload[:6])
        check_costs(memory_kib, iterations, lanes, BAD_KEY)
        stretched = argon2id(passphrase, payload[6:22], memory_kib, iterations, lanes)
        wrapping = HKDF(SHA256(), 32, None, CONTEXT + b"\0key-file").derive(stretched)
        try:
            return AESGCM(wrapping).decrypt(bytes(12), payload[22:], b"AFKP1-" + payload[:22])
        except InvalidTag:
            raise Refused(BAD_KEY, "wrong passphrase") from None
    if len(data) == 32 and not text.startswith("AFK"):
        return data
    raise Refused(BAD_KEY, "no key")


def prk_of(master, salt):
    return hmac.digest(salt, master, "sha256")


def subkey(prk, purpose, backend, face):
    info = b"\0".join([CONTEXT, purpose.encode(), backend.encode(), struct.pack(">H", face)])
    return HKDFExpand(SHA256(), 32, info).derive(prk)


def payload_prk(prk, nonce):
    return hmac.digest(CONTEXT + b" payload\0" + nonce, prk, "sha256")


def coded_nonce(nonce):
    """The bits that the first numbers of a watermark say of a nonce, as a string of 0 and 1."""
    data = nonce + hashlib.sha256(b"anonface/v1 nonce" + nonce).digest()[:2]
    bits = [byte >> (7 - place) & 1 for byte in data for place in range(8)]
    said = ""
    for place in range(len(bits)):
        window = [bits[place - shift] for shift in range(7)]  # the newest first, round the circle
        for taps in ("1111001", "1011011"):
            said += str(sum(bit for bit, tap in zip(window, taps, strict=True) if tap == "1") % 2)
    return said


def stream(key, size):
    return hashlib.shake_256(key).digest(size)


def signed_unit(key, size):
    return [byte / 127.5 - 1 for byte in stream(key, size)]


def normal(key, size):
    words = struct.unpack(f"<{size}Q", stream(key, 8 * size))
    return [statistics.NormalDist().inv_cdf((2 * (word >> 12) + 1) * 2.0**-53) for word in words]


# --- Records ---------------------------------------------------------------------------------------------------------


class Fields:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, size):
        if self.at + size > len(self.data):
            raise Refused(DAMAGED, "cut short")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, layout):
        return struct.unpack(f">{layout}", self.take(struct.calcsize(f">{layout}")))[0]

    def name(self):
        name = self.take(self.number("B"))
        if not re.fullmatch(rb"[\x20-\x7e]+", name):
            raise Refused(DAMAGED, "no name")
        return name.decode()

    def value(self):
        letter = self.take(1)
        if letter == b"b":
            value = {0: False, 1: True}.get(self.number("B"))
        elif letter == b"i":
            value = self.number("q")
        elif letter == b"f":
            value = self.number("d")
            if not math.isfinite(value) or str(value) == "-0.0":
                value = None
        elif letter == b"s":
            value = utf8(self.take(self.number("H")))
        else:
            value = None
        if value is None:
            raise Refused(DAMAGED, "no value")
        return value


def utf8(data):
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Refused(DAMAGED, "no UTF-8") from None


def parse(record):
    """Record -> its fields, its payload, and what the payload is bound to."""
    if record[:4] != b"ANF1":
        raise Refused(DAMAGED, "no record")
    if len(record) < 9:
        raise Refused(DAMAGED, "cut")
    version, size = struct.unpack(">BI", record[4:9])
    if not 81 <= size <= min(65536, len(record)) or sha256(record[: size - 32]) != record[size - 32 : size]:
        raise Refused(DAMAGED, "header")
    fields, payload = Fields(record[9 : size - 32]), record[size:]
    header = {"producer": fields.name()}
    if version != 1:
        raise Refused(DAMAGED, "newer")
    flags = fields.number("H")
    if flags > 7:
        raise Refused(DAMAGED, "newer")
    header["flow_salt"] = fields.take(16)
    header["consistent"] = bool(flags & 1)
    header["passphrase"] = None
    if flags & 2:
        salt, costs = fields.take(16), (fields.number("I"), fields.number("H"), fields.number("H"))
        check_costs(*costs, DAMAGED)
        header["passphrase"] = (salt, *costs)
    header["seal"] = None
    if flags & 4:
        tier = fields.number("B")
        if tier > 2:
            raise Refused(DAMAGED, "newer")
        header["seal"] = (TIERS[tier], fields.take(16), fields.take(32))
    header["backend"] = fields.name()
    header["parameters"] = {}
    before = b""
    for _ in range(fields.number("H")):
        name = fields.take(fields.number("B"))
        if name <= before:
            raise Refused(DAMAGED, "order")
        header["parameters"][utf8(name)] = fields.value()
        before = name
    header["weights"] = fields.take(32)
    header["canvas"] = (fields.number("I"), fields.number("I"))
    if 0 in header["canvas"]:
        raise Refused(DAMAGED, "canvas")
    header["faces"] = []
    for _ in range(fields.number("H")):
        kind = fields.number("B")
        if kind > 1:
            raise Refused(DAMAGED, "newer")
        corners = [fields.number("i") for _ in range(8)]
        if -(2**31) in corners:
            raise Refused(DAMAGED, "corner")
        header["faces"].append((["synth", "mosaic"][kind], [corner / 16 for corner in corners]))
    bound = record[: 9 + fields.at]
    length, digest = fields.number("Q"), fields.take(32)
    if fields.at != len(fields.data) or length != len(payload) or digest != sha256(payload):
        raise Refused(DAMAGED, "payload")
    if bool(payload) != bool(header["seal"]):
        raise Refused(DAMAGED, "seal")
    return header, payload, bound


def sha256(data):
    return hashlib.sha256(data).digest()


# --- Seals -----------------------------------------------------------------------------------------------------------


def expand(key, salt, context):
    info = b"c2sp.org/chunked-encryption@v1+AEAD_AES_256_GCM\0" + salt + context
    okm = HKDFExpand(SHA512(), 76, info).derive(key)
    return okm[:32], okm[32:44], okm[44:]


def nonce(base, number):
    return (int.from_bytes(base, "big") ^ number).to_bytes(12, "big")


def decrypt(key, message, context):
    """Cobblestone-256."""
    aes, base, commitment = expand(key, message[:24], context)
    if message[24:56] != commitment:
        raise Refused(DAMAGED, "commitment")
    plaintext, number, at = b"", 0, 56
    while True:
        chunk = message[at : at + CHUNK + 16]
        try:
            part = AESGCM(aes).decrypt(nonce(base, number), chunk, None)
        except InvalidTag:
            raise Refused(DAMAGED, "tag") from None
        plaintext += part
        if len(part) < CHUNK:
            return plaintext
        number, at = number + 1, at + len(chunk)


def padded_size(size):
    exponent = int(math.log2(size))
    step = 2 ** (exponent - (int(math.log2(exponent)) + 1))
    return math.ceil(size / step) * step


def unseal(record, master):
    """Record and master -> header, contents."""
    header, payload, bound = parse(record)
    if header["seal"] is None:
        return header, None
    tier, salt, check = header["seal"]
    prk = prk_of(master, salt)
    if subkey(prk, "seal-check", header["backend"], 0) != check:
        raise Refused(WRONG_KEY, "wrong key")
    plaintext = decrypt(subkey(prk, "seal", header["backend"], 0), payload, bound)
    fields = Fields(plaintext)
    contents = {"tier": tier, "networks": fields.number("B")}
    if contents["networks"] > 2:
        raise Refused(DAMAGED, "networks' key")
    contents["prk"] = fields.take(32) if contents["networks"] == 1 else None
    contents["binding"] = fields.take(32)
    suffix = fields.take(fields.number("B"))
    contents["data"] = fields.take(fields.number("Q"))
    if not re.fullmatch(rb"(\.[A-Za-z0-9]{1,15})?", suffix) or (suffix and tier != "file"):
        raise Refused(DAMAGED, "suffix")
    contents["suffix"] = suffix.decode()
    if tier == "none" and (contents["data"] or any(contents["binding"])):
        raise Refused(DAMAGED, "more than its tier")
    if len(plaintext) != padded_size(fields.at) or any(plaintext[fields.at :]):
        raise Refused(DAMAGED, "padding")
    return header, contents


def region(header):
    """[y][x], whether a pixel lies in a face."""
    width, height = header["canvas"]
    inside = [[False] * width for _ in range(height)]
    for _, corners in header["faces"]:
        xs, ys = corners[::2], corners[1::2]
        for y in range(max(math.floor(min(ys)) - 1, 0), min(math.ceil(max(ys)) + 1, height)):
            for x in range(max(math.floor(min(xs)) - 1, 0), min(math.ceil(max(xs)) + 1, width)):
                inside[y][x] = True
    return inside


def recover(image, master, sidecar=None):
    """What tier "file" or "face" brings back: the suffix and the file, or width, height and the RGB pixels."""
    record = extract(image if sidecar is None else sidecar)
    if record is None:
        raise Refused(DAMAGED, "no record")
    header, contents = unseal(record, master)
    if contents is None or contents["tier"] == "none":
        return header, contents
    if contents["tier"] == "file":
        if sidecar is None and picture_digest(image) != contents["binding"]:
            raise Refused(DAMAGED, "another picture")
        return header, contents
    width, height, pixels, alpha = png_pixels(image)
    if (width, height) != header["canvas"]:
        raise Refused(DAMAGED, "canvas")
    cells = [cell for row in region(header) for cell in row]
    outside = b"".join(bytes(3) if cell else pixels[3 * i : 3 * i + 3] for i, cell in enumerate(cells))
    if sha256(outside + (alpha if any(value < 255 for value in alpha) else b"")) != contents["binding"]:
        raise Refused(DAMAGED, "another picture")
    if len(contents["data"]) != 3 * sum(cells):
        raise Refused(DAMAGED, "pixels")
    result, at = bytearray(pixels), 0
    for i, cell in enumerate(cells):
        if cell:
            result[3 * i : 3 * i + 3] = contents["data"][at : at + 3]
            at += 3
    return header, contents | {"pixels": bytes(result)}


# --- Carriers --------------------------------------------------------------------------------------------------------


def png_chunks(image):
    at, kind = 8, b""
    while kind != b"IEND":
        if at + 12 > len(image):
            raise Refused(DAMAGED, "PNG")
        size, kind = struct.unpack(">I4s", image[at : at + 8])
        if at + 12 + size > len(image):
            raise Refused(DAMAGED, "PNG")
        content, (crc,) = image[at + 8 : at + 8 + size], struct.unpack(">I", image[at + 8 + size : at + 12 + size])
        yield kind, content, crc == zlib.crc32(kind + content)
        at += 12 + size


def jpeg_segments(image):
    at = 2
    while True:
        while image[at : at + 2] == b"\xff\xff":
            at += 1
        if at + 4 > len(image) or image[at] != 0xFF:
            raise Refused(DAMAGED, "JPEG")
        end = at + 2 + struct.unpack(">H", image[at + 2 : at + 4])[0]
        if end < at + 4 or end > len(image):
            raise Refused(DAMAGED, "JPEG")
        if image[at + 1] == 0xDA:
            yield 0xDA, image[at:]
            return
        yield image[at + 1], image[at:end]
        at = end


def webp_chunks(image):
    at, stop = 12, 8 + struct.unpack("<I", image[4:8])[0]
    if stop > len(image):
        raise Refused(DAMAGED, "WebP")
    while at < stop:
        if at + 8 > stop:
            raise Refused(DAMAGED, "WebP")
        kind, size = struct.unpack("<4sI", image[at : at + 8])
        end = at + 8 + size + size % 2
        if end > stop:
            raise Refused(DAMAGED, "WebP")
        yield kind, image[at + 8 : at + 8 + size], not any(image[at + 8 + size : end])
        at = end


def kind_of(image):
    if image.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if image.startswith(b"\xff\xd8"):
        return "jpeg"
    return "webp" if image[:4] == b"RIFF" and image[8:12] == b"WEBP" else None


def extract(image):
    """The record in an image file, or None."""
    if image[:4] == b"ANF1":
        return image
    kind = kind_of(image)
    pieces = []
    if kind == "jpeg":
        for marker, segment in jpeg_segments(image):
            if marker == 0xE9 and segment[4:13] == b"ANONFACE\0":
                pieces.append(segment[13:])
    elif kind:
        chunks, name = (png_chunks(image), b"anFC") if kind == "png" else (webp_chunks(image), b"ANFC")
        for found, content, sound in chunks:
            if found == name:
                if not sound:
                    raise Refused(DAMAGED, "chunk")
                pieces.append(content)
    return b"".join(pieces) if pieces else None


def picture_digest(image):
    kind = kind_of(image)
    if kind == "jpeg":
        parts = [part for marker, part in jpeg_segments(image) if not 0xE0 <= marker <= 0xEF and marker != 0xFE]
    elif kind == "png":
        parts = [part for name, part, _ in png_chunks(image) if name in (b"IHDR", b"PLTE", b"tRNS", b"IDAT")]
    elif kind == "webp":
        parts = [part for name, part, _ in webp_chunks(image) if name in (b"VP8 ", b"VP8L", b"ALPH")]
    else:
        raise Refused(DAMAGED, "no carrier")
    return sha256(b"".join(parts))


def png_pixels(image):
    """Width, height, RGB and alpha of a PNG of 8-bit grey or RGB, with alpha or without, that is not interlaced."""
    chunks = list(png_chunks(image))
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", chunks[0][1])
    assert depth == 8 and colour in (0, 2, 4, 6) and rest == [0, 0, 0], "no other PNGs are written"
    colours = 3 if colour & 2 else 1
    step = colours + bool(colour & 4)
    data = zlib.decompress(b"".join(content for name, content, _ in chunks if name == b"IDAT"))
    above, rows = bytearray(width * step), []
    for y in range(height):
        start = y * (width * step + 1)
        method, row = data[start], bytearray(data[start + 1 : start + 1 + width * step])
        for i in range(len(row)):
            left, corner = (row[i - step], above[i - step]) if i >= step else (0, 0)
            row[i] = (row[i] + (0, left, above[i], (left + above[i]) // 2, paeth(left, above[i], corner))[method]) % 256
        rows.append(row)
        above = row
    pixels = b"".join(bytes(row[x : x + colours]) * (3 // colours) for row in rows for x in range(0, len(row), step))
    alpha = b"".join(bytes(row[colours::step]) for row in rows) if step > colours else b"\xff" * (width * height)
    return width, height, pixels, alpha


def paeth(left, above, corner):
    guess = left + above - corner
    return min((abs(guess - left), 0, left), (abs(guess - above), 1, above), (abs(guess - corner), 2, corner))[2]
