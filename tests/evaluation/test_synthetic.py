import numpy as np

from anonface.evaluation.synthetic import SIDE, draw_photos
from anonface.faces.detect import build_detector
from anonface.images import read_photo


def test_synthetic_photos_show_one_face_each_and_are_repeatable(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    for folder, count in ((first, 3), (second, 2)):
        folder.mkdir()
        draw_photos(folder, count)
    files = sorted(first.iterdir())
    assert [file.name for file in files] == [f"synthetic {n:04}.png" for n in range(3)]
    photos = [read_photo(file.read_bytes()).pixels for file in files]
    detector = build_detector("yunet")
    for photo in photos:
        assert photo.shape == (SIDE, SIDE, 3) and len(detector.detect(photo)) == 1
    assert np.abs(photos[0].astype(int) - photos[1]).mean() > 10
    assert [file.read_bytes() for file in sorted(second.iterdir())] == [file.read_bytes() for file in files[:2]]
