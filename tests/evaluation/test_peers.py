"""What people hide faces with today."""

import numpy as np
import pytest
from skimage import data

from anonface.crypto.keys import Key
from anonface.errors import NoFaceError
from anonface.evaluation import peers
from anonface.evaluation.peers import CELLS, PEERS, Deface, Pixelate, absence, describe
from anonface.faces.detect import Face

KEY = Key(bytes(32))


class Seeing:
    """A detector that sees faces where it is told."""

    def __init__(self, *boxes):
        self.boxes = boxes

    def detect(self, rgb):
        return [Face(box, np.zeros((5, 2)), 1.0) for box in self.boxes]


def noise(height=120, width=160):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def hidden(engine, photo):
    kept = photo.copy()
    made = engine.anonymize(photo, KEY, consistent=True)
    assert (photo == kept).all() and made.pixels.shape == photo.shape and made.pixels.dtype == np.uint8
    return made


def test_a_pixelated_face_has_eight_cells_across():
    photo = noise()
    made = hidden(Pixelate(Seeing((40, 20, 64, 80))), photo)
    face = made.pixels[20:100, 40:104]
    cells = face.reshape(10, 8, CELLS, 8, 3)  # 64 px in 8 cells, 80 px in 10
    assert (cells == cells[:, :1, :, :1]).all()
    means = photo[20:100, 40:104].reshape(10, 8, CELLS, 8, 3).mean((1, 3))
    assert np.abs(cells[:, 0, :, 0] - means).max() <= 1
    made.pixels[20:100, 40:104] = photo[20:100, 40:104]
    assert (made.pixels == photo).all() and len(made.faces) == 1


@pytest.mark.parametrize("box", [(-30, -10, 80, 90), (120, 80, 200, 200), (3, 3, 4, 9)])
def test_faces_at_the_border_and_small_ones_are_pixelated(box):
    photo = noise()
    x, y, w, h = box
    made = hidden(Pixelate(Seeing(box)), photo).pixels
    rows, columns = slice(max(0, y), y + h), slice(max(0, x), x + w)
    if w > CELLS:
        assert (made[rows, columns] != photo[rows, columns]).any(-1).mean() > 0.9
    made[rows, columns] = photo[rows, columns]
    assert (made == photo).all()


def test_without_a_face_nothing_is_changed():
    for boxes in ((), ((500, 500, 20, 20),)):
        assert (hidden(Pixelate(Seeing(*boxes)), noise()).pixels == noise()).all()


def test_a_peer_that_is_not_installed_is_named_with_how_to_get_it(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda package: None)
    assert "pip install '.[peers]'" in absence("deface-blur")
    assert absence("pixelate") is None
    monkeypatch.setattr(peers, "find_spec", lambda package: object())
    assert [absence(name) for name in PEERS] == [None] * 4


class TestDeface:
    """The package itself, of the extra ``peers``."""

    @pytest.fixture(autouse=True)
    def installed(self):
        pytest.importorskip("deface", reason="deface is not installed: pip install '.[peers]'")

    def test_each_way_covers_the_face_and_nothing_far_from_it(self):
        photo = data.astronaut()
        made = {how: hidden(Deface(how), photo) for how in ("blur", "mosaic", "solid")}
        for result in made.values():
            assert len(result.faces) == 1
            x, y, w, h = result.faces[0]
            assert 0.25 < w / h < 1.2 and 180 < x < 260 and 40 < y < 100
            far = np.ones(photo.shape[:2], bool)
            far[max(0, round(y - 0.4 * h)) : round(y + 1.4 * h), round(x - 0.4 * w) : round(x + 1.4 * w)] = False
            assert (result.pixels[far] == photo[far]).all()
            middle = slice(round(y + h / 3), round(y + h / 2)), slice(round(x + w / 3), round(x + w / 2))
            assert (result.pixels[middle] != photo[middle]).mean() > 0.9
        assert (made["solid"].pixels[middle] == 0).all()
        assert len(np.unique(made["mosaic"].pixels[middle].reshape(-1, 3), axis=0)) < 16

    def test_the_defaults_are_those_of_its_command_line(self, monkeypatch):
        from deface.deface import parse_cli_args

        monkeypatch.setattr("sys.argv", ["deface", "photo.jpg"])
        given = parse_cli_args()
        assert (given.thresh, given.mask_scale, not given.boxes, given.mosaicsize) == (
            peers.THRESHOLD,
            peers.MASK_SCALE,
            peers.ELLIPSE,
            peers.MOSAIC_SIZE,
        )
        assert given.replacewith == "blur" and not given.draw_scores and given.scale is None

    def test_without_a_face_nothing_is_changed(self):
        photo = np.full((90, 120, 3), 128, np.uint8)
        made = hidden(Deface("blur"), photo)
        assert (made.pixels == photo).all() and len(made.faces) == 0

    def test_a_face_that_breaks_it_leaves_no_result(self, monkeypatch):
        engine = Deface("blur")
        monkeypatch.setattr(engine, "_find", lambda *_, **__: (np.array([[50.0, 50.0, 50.6, 50.6, 0.9]]), None))
        with pytest.raises(NoFaceError, match="deface failed"):
            engine.anonymize(noise(), KEY, consistent=True)

    def test_whose_code_it_is_is_said(self):
        assert describe(Deface("solid"))["code"].startswith("deface 1.")
        assert describe(Pixelate(Seeing())) == {"code": "Pillow"}
