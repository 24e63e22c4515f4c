"""People who are patterns of twelve dimensions, an engine without a fault, and engines with one fault each."""

import hashlib
from dataclasses import replace

import numpy as np
from colours import Outcome, WholePictures
from PIL import Image

from anonface.crypto.keys import CONSISTENT_SALT
from anonface.evaluation.audit.model import Model
from anonface.evaluation.audit.subject import Sizes, Subject, choose
from anonface.evaluation.recognizers import Look

CELLS, SCALE, DIMENSIONS = 8, 4, 12
SIZES = Sizes(photos=10, pairs=60, candidates=8, guesses=40, crowd=12)
_AXES = np.random.default_rng(0).normal(0, 12, (DIMENSIONS, CELLS * CELLS * 3))


def pattern(place, seed=0, noise=0.0):
    """The photo [32, 32, 3] of somebody at this place."""
    cells = 128 + place @ _AXES + noise * np.random.default_rng(seed).normal(0, 1, CELLS * CELLS * 3)
    return drawn(cells)


def drawn(cells):
    cells = np.clip(cells, 0, 255).astype(np.uint8).reshape(CELLS, CELLS, 3)
    return cells.repeat(SCALE, 0).repeat(SCALE, 1)


def cells_of(pixels):
    return pixels[::SCALE, ::SCALE].astype(float).ravel()


def place_of(pixels):
    return np.linalg.lstsq(_AXES.T, cells_of(pixels) - 128, rcond=None)[0]


def rng(*parts):
    return np.random.default_rng(list(hashlib.sha256(b"|".join(parts)).digest()))


def somebody(*parts):
    return pattern(rng(*parts).normal(0, 1, DIMENSIONS))


def secret(key):
    return key.face(CONSISTENT_SALT, "test", 0).derive("pattern")


def bits(key):
    """The key's own bits, for engines that use it without deriving anything."""
    return np.unpackbits(np.frombuffer(key._secret, np.uint8))


def album(folder, people=40, photos=3):
    lines = ["file,identity"]
    for person in range(people):
        place = np.random.default_rng(100 + person).normal(0, 1, DIMENSIONS)
        for shot in range(photos):
            name = f"{person:02}{shot}.png"
            Image.fromarray(pattern(place, 10 * person + shot, noise=3)).save(folder / name)
            lines.append(f"{name},person {person}")
    (folder / "identities.csv").write_text("\n".join(lines) + "\n")
    return folder


def embedded(pixels):
    small = np.asarray(Image.fromarray(pixels).resize((CELLS, CELLS), Image.Resampling.BOX), float).ravel()
    small -= small.mean()
    return small / max(1e-9, np.linalg.norm(small))


class Patterns:
    """Its embedding is the pattern, and black holds no face."""

    name, threshold, seen_by_loss = "patterns", 0.6, False

    def look(self, rgb, near=None):
        if not rgb.any():
            return None
        points = np.random.default_rng(0).uniform(0, 30, (68, 2))
        return Look(np.array([0.0, 0, *rgb.shape[1::-1]]), embedded(rgb), points)

    def at(self, rgb, box):
        return self.look(rgb) or Look(box, np.zeros(CELLS * CELLS * 3), np.zeros((68, 2)))


class Sound:
    """Draws somebody by key and photo, and remembers; a wrong key draws somebody else."""

    def __init__(self):
        self.seen = {}

    def anonymize(self, pixels, key, *, consistent):
        hidden = self.hidden(pixels, key)
        self.seen[hidden.tobytes(), key] = pixels
        return Outcome(hidden)

    def hidden(self, pixels, key):
        return somebody(secret(key), pixels.tobytes())

    def recover(self, pixels, key, header):
        return Outcome(self.seen.get((pixels.tobytes(), key), somebody(secret(key), b"back", pixels.tobytes())))


class ReturnsItsInput(Sound):
    def hidden(self, pixels, key):
        return pixels


class IgnoresTheKey(Sound):
    def hidden(self, pixels, key):
        return somebody(pixels.tobytes())

    def recover(self, pixels, key, header):
        return Outcome(next((x for (hidden, _), x in self.seen.items() if hidden == pixels.tobytes()), pixels))


class ConstantFace(Sound):
    def hidden(self, pixels, key):
        return somebody(b"always the same")


class HidesTheOriginalInLowBits(Sound):
    def hidden(self, pixels, key):
        return (super().hidden(pixels, key) & 0xF0) | (pixels >> 4)

    def recover(self, pixels, key, header):
        return Outcome((pixels & 0x0F) << 4)


class LeaksThroughAttributes(Sound):
    """Whoever leaves the identity out at recovery gets the person back; see :func:`subject`."""

    def mute(self):
        mute = Sound()
        mute.recover = lambda pixels, key, header: Outcome(
            next((x for (hidden, _), x in self.seen.items() if hidden == pixels.tobytes()), pixels)
        )
        return mute


class UsesKeyBitsOneByOne(Sound):
    """Every bit of the key turns one cell over, and so does the way back."""

    def hidden(self, pixels, key):
        turned = bits(key)[: CELLS * CELLS * 3].astype(bool)
        cells = cells_of(pixels)
        return drawn(np.where(turned, 255 - cells, cells))

    def recover(self, pixels, key, header):
        return Outcome(self.hidden(pixels, key))


class WrongKeysGiveNoise(Sound):
    def recover(self, pixels, key, header):
        if (pixels.tobytes(), key) in self.seen:
            return super().recover(pixels, key, header)
        return Outcome(rng(secret(key), pixels.tobytes()).integers(0, 256, pixels.shape).astype(np.uint8))


class KeepsAThird(Sound):
    def hidden(self, pixels, key):
        return drawn(0.65 * cells_of(super().hidden(pixels, key)) + 0.35 * cells_of(pixels))


class AddsAPadOfTheKey(Sound):
    """Somebody else's pattern, the same for all photos of a key, is added to each."""

    def hidden(self, pixels, key):
        return pattern(place_of(pixels) + 2 * rng(secret(key)).normal(0, 1, DIMENSIONS))


class TurnsByAFixedMap(Sound):
    """Rotates who it is, always alike; the key adds a little."""

    def hidden(self, pixels, key):
        turn = np.linalg.qr(np.random.default_rng(5).normal(size=(DIMENSIONS, DIMENSIONS)))[0]
        return pattern(place_of(pixels) @ turn + 0.3 * rng(secret(key), pixels.tobytes()).normal(0, 1, DIMENSIONS))


class OneOtherFaceAPerson(Sound):
    """Whoever is met becomes one person of their own, under every key nearly the same."""

    def hidden(self, pixels, key):
        who = np.sign(place_of(pixels)).astype(np.int8).tobytes()
        place = rng(who).normal(0, 1, DIMENSIONS)
        return pattern(place + 0.3 * rng(secret(key), pixels.tobytes()).normal(0, 1, DIMENSIONS))


class MixesInBlocks(Sound):
    """Rotates who it is in blocks of three, by the key alone: each block keeps its length."""

    block = 3

    def hidden(self, pixels, key):
        return pattern(self.turned(place_of(pixels), key))

    def turned(self, place, key):
        turn, _ = np.linalg.qr(rng(secret(key)).normal(size=(DIMENSIONS // self.block, self.block, self.block)))
        return np.einsum("gi,gij->gj", place.reshape(-1, self.block), turn).ravel()


class TurnsByOneAngle(MixesInBlocks):
    """No key leaves anybody near themselves, and each turns everybody by the same angle."""

    block = None

    def turned(self, place, key):
        aside = rng(secret(key)).normal(0, 1, DIMENSIONS)
        length = np.linalg.norm(place)
        aside -= place * (aside @ place) / length**2
        return -0.15 * place + (1 - 0.15**2) ** 0.5 * length * aside / np.linalg.norm(aside)


def place_code(crop):
    """A code that is the place itself, of unit length."""
    cells = np.asarray(Image.fromarray(crop).resize((CELLS, CELLS), Image.Resampling.BOX), float).ravel()
    place = np.linalg.lstsq(_AXES.T, cells - 128, rcond=None)[0]
    return place / np.linalg.norm(place)


def subject(engine, folder, files=None, work=None, sizes=SIZES):
    """An audit's subject whose attackers hold all that there is to hold."""
    judges = WholePictures(Patterns(), [])
    judges.side = 256  # codes are read from crops
    mute = engine.mute() if hasattr(engine, "mute") else Sound()
    model = Model(embedded, stranger=lambda _, number: somebody(b"stranger", bytes([number])), mute=mute)
    if isinstance(engine, MixesInBlocks):

        def meant(crop, keys):
            return np.stack([engine.turned(place_code(crop), key) for key in keys])

        model = replace(model, encode=place_code, meant=meant, block=engine.block)
    return Subject(engine, model, judges, choose(folder, judges, sizes, 1), sizes=sizes, files=files, work=work)
