"""People who are colours: photos, engines and judges that cost nothing."""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from anonface.evaluation.attribute_classifiers import Impression
from anonface.evaluation.judges import Aligned, Judges
from anonface.evaluation.recognizers import Detection, Look


@dataclass
class Outcome:
    pixels: np.ndarray
    faces: tuple[int, ...] = (0,)


class Untouched:
    """Changes nothing: every privacy row must read 100 %."""

    def anonymize(self, pixels, key, *, consistent):
        assert consistent
        return Outcome(pixels)

    def recover(self, pixels, key, header):
        assert header is None
        return Outcome(pixels)


class Perfect:
    """Paints the photo in a colour of the key's, and remembers what lay under it."""

    def __init__(self):
        self.seen = {}

    def anonymize(self, pixels, key, *, consistent):
        painted = np.full_like(pixels, 255 - pixels.mean())
        painted[..., 0] = key.face(b"test salt", "test", 0).stream("colour", 1)[0]
        painted[..., 2] = key.face(b"test salt", "test", 0).stream("colour", 2)[1]
        self.seen[painted.tobytes(), key] = pixels
        return Outcome(painted)

    def recover(self, pixels, key, header):
        return Outcome(self.seen.get((pixels.tobytes(), key), pixels))


class Colour:
    """A recognizer for single-coloured photos: the embedding is the colour, and black holds no face."""

    name = "colour"
    threshold = 0.3
    seen_by_loss = True

    def look(self, rgb, near=None):
        if not rgb.any():
            return None
        points = np.random.default_rng(0).uniform(0, 30, (68, 2))
        return Look(np.array([0.0, 0, *rgb.shape[1::-1]]), rgb.mean((0, 1)) / 255, points)

    def at(self, rgb, box):
        """Also where no face is found."""
        return Look(box, rgb.mean((0, 1)) / 255, np.zeros((68, 2)))


class Reddish:
    """A classifier of single-coloured photos: red is male, and brightness age."""

    name, seen_by_loss = "reddish", True

    def read(self, crop):
        return Impression(bool(crop[..., 0].mean() > crop[..., 2].mean()), float(crop.mean()))


class WholePictures(Judges):
    """The face fills the photo, but for a black one; only the recognizer looks for it."""

    side = 64  # px, of a crop: small, so that measuring pixels costs little

    def __init__(self, recognizer, classifiers, embedders=()):
        self.recognizer, self.classifiers, self.absent = recognizer, classifiers, []

    def found(self, rgb, box, look):
        return {self.recognizer.name: None if look is None else Detection(look.box)}

    def _yunet_boxes(self, rgb):
        return np.empty((0, 4))

    def aligned(self, rgb, box):
        if not rgb.any():
            return None
        height, width = rgb.shape[:2]
        quad = np.array([[0, 0], [0, height], [width, height], [width, 0]], dtype=float)
        return Aligned(np.array(Image.fromarray(rgb).resize((self.side, self.side))), quad, np.zeros((468, 2)))

    def area(self, aligned):
        return np.tri(self.side, dtype=bool)


def coloured_people(folder):
    """Four people, two photos each, single-coloured; their colours lie at least 0.35 apart."""
    lines = ["file,identity"]
    for number, colour in enumerate([(200, 20, 20), (20, 200, 20), (20, 20, 200), (200, 200, 200)]):
        for shot in range(2):
            name = f"{number}{shot}.png"
            Image.new("RGB", (40, 32), tuple(c + 5 * shot for c in colour)).save(folder / name)
            lines.append(f"{name},person {number}")
    (folder / "identities.csv").write_text("\n".join(lines) + "\n")
    return folder
