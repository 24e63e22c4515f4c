"""Photos with masks made by people: which labels mean what, and how they are aligned."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anonface.errors import UsageError
from anonface.models.face_parser import CLASSES
from anonface.training import masks
from anonface.training.masks import BEHIND, LABEL, MEANING, SIDE, UNKNOWN, WORN, allowed, load_masks

EXAMPLE = Path(__file__).parents[2] / "examples" / "small.jpg"


def test_labels_of_files_become_classes():
    assert MEANING[[1, 2, 4, 7, 9, 10, 12, 13, 14, 17]].tolist() == [
        LABEL[name] for name in ("skin", "nose", "eyes", "brows", "ears", "lips", "lips", "hair", "hat", "neck")
    ]
    assert set(MEANING[[0, 15, 16, 18]]) == {BEHIND} and MEANING[3] == WORN and MEANING[200] == UNKNOWN


def test_what_each_label_allows():
    table = allowed()
    assert table[: len(CLASSES)].equal(table[: len(CLASSES)].T) and table[LABEL["hair"]].sum() == 1
    assert {CLASSES[i] for i in table[BEHIND].nonzero()[:, 0]} == {"background", "occluder"}
    assert {CLASSES[i] for i in table[WORN].nonzero()[:, 0]} == {"glasses", "lens"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two pairs; the right half of each is hair."""
    monkeypatch.setattr(masks, "KEPT", 1)
    for part in ("images", "labels"):
        (tmp_path / part).mkdir()
    with Image.open(EXAMPLE) as photo:
        width, height = photo.size
    labels = np.zeros((height // 2, width // 2), np.uint8)
    labels[:, width // 4 :] = 13
    for name in ("1", "2"):
        shutil.copy(EXAMPLE, tmp_path / "images" / f"{name}.jpg")
        Image.fromarray(labels).save(tmp_path / "labels" / f"{name}.png")
    return tmp_path


def test_photo_and_labels_are_aligned_together_and_kept(folder, tmp_path, monkeypatch):
    photos = load_masks(tmp_path / "run" / "masks.safetensors", folder)
    assert photos.images.shape == (2, SIDE, SIDE, 3) and photos.labels.shape == (2, SIDE, SIDE)
    seen = photos.labels[0].numpy()
    assert (seen[64:192, -64:] == LABEL["hair"]).mean() > 0.9 and (seen[64:192, :32] == BEHIND).mean() > 0.9
    monkeypatch.setattr(masks, "_aligned", None)
    assert load_masks(tmp_path / "run" / "masks.safetensors", folder).images.equal(photos.images)


def test_a_folder_without_pairs_is_refused(folder, tmp_path):
    (folder / "labels" / "2.png").unlink()
    for wrong in (folder, tmp_path / "nowhere"):
        with pytest.raises(UsageError, match="photos with masks"):
            load_masks(tmp_path / "new.safetensors", wrong)
