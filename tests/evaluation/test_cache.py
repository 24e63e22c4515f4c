import json
import stat

import numpy as np
import pytest
from colours import Colour, Reddish, WholePictures, coloured_people
from PIL import Image
from skimage import data

from anonface.errors import OutputError, UsageError
from anonface.evaluation.cache import Cache
from anonface.evaluation.judges import Judges, look_at_originals


@pytest.fixture
def judges():
    return WholePictures(Colour(), [Reddish()])


class Blind(WholePictures):
    """The same judges, who must not be asked again."""

    def original(self, file, identity):
        raise AssertionError(f"looked at {file.name} again")


def test_what_was_seen_is_not_looked_at_again(tmp_path, judges):
    folder = coloured_people(tmp_path)
    file = tmp_path / "cache.jsonl"
    first = look_at_originals(folder, judges, look=Cache(file, judges).original)
    again = look_at_originals(folder, look=Cache(file, Blind(Colour(), [Reddish()])).original)
    for a, b in zip(first, again, strict=True):
        assert (a.look.embedding == b.look.embedding).all() and a.impressions == b.impressions
        assert (a.aligned.crop == b.aligned.crop).all() and a.identity == b.identity and a.file == b.file
        assert (a.found["colour"].box == b.found["colour"].box).all()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    Image.new("RGB", (40, 32), (9, 90, 200)).save(folder / "00.png")
    with pytest.raises(AssertionError, match=r"00\.png"):
        look_at_originals(folder, look=Cache(file, Blind(Colour(), [Reddish()])).original)
    with pytest.raises(AssertionError, match="again"):
        look_at_originals(folder, look=Cache(file, Blind(Colour(), [])).original)


def test_real_judges_see_the_same_from_the_cache(tmp_path):
    Image.fromarray(data.astronaut()[:300, 90:390]).save(tmp_path / "face.png")
    judges = Judges(embedders=["sface"])
    (first,), (again,) = (
        look_at_originals(tmp_path, judges, look=Cache(tmp_path / "c", judges).original) for _ in range(2)
    )
    for name in ("gaze", "expression"):
        assert (getattr(first.state, name) == getattr(again.state, name)).all()
    assert (first.embeddings["sface"] == again.embeddings["sface"]).all() and len(again.embeddings) == 1
    assert (first.found["MTCNN"].points == again.found["MTCNN"].points).all()
    assert np.array_equal(first.aligned.crop, again.aligned.crop) and first.look.box.tolist() == again.look.box.tolist()


def test_a_line_cut_short_is_looked_at_anew(tmp_path, judges):
    folder, file = coloured_people(tmp_path), tmp_path / "cache.jsonl"
    look_at_originals(folder, judges, look=Cache(file, judges).original)
    file.write_text(file.read_text()[:-30])
    assert len(look_at_originals(folder, judges, look=Cache(file, judges).original)) == 8
    assert len({json.loads(line)["photo"] for line in file.read_text().splitlines() if line.endswith("}")}) == 8


def test_unusable_caches(tmp_path, judges):
    file = tmp_path / "cache.jsonl"
    for content in (b"some\nnotes\n", b"hello\n", b"\xff\xd8\xff"):
        file.write_bytes(content)
        with pytest.raises(UsageError, match="no cache"):
            Cache(file, judges)
    with pytest.raises(OutputError, match="cannot be read"):
        Cache(tmp_path, judges)
