import numpy as np
import pytest
from PIL import Image
from skimage import data

from anonface.errors import WeightsError
from anonface.evaluation import attribute_classifiers
from anonface.evaluation.attribute_classifiers import FaceRes, Gear
from anonface.evaluation.judges import CROP, Judges
from anonface.evaluation.set_distances import MobileNet

FACE = np.array([175.0, 65, 95, 130])


@pytest.fixture(scope="module")
def judges():
    return Judges()


def test_both_read_the_portrait_of_a_woman_in_her_forties(judges):
    original = judges.aligned(data.astronaut(), FACE)
    read = judges.impressions(original)
    assert set(read) == {"faceres", "gear"}
    assert not read["faceres"].male and 25 <= read["faceres"].age <= 55
    assert not read["gear"].male and read["gear"].age is None


def test_the_face_meant_is_aligned(judges):
    photo = data.astronaut()
    aligned = judges.aligned(photo, FACE)
    assert aligned.crop.shape == (CROP, CROP, 3) and aligned.mesh.shape == (468, 2)
    assert 0.3 * CROP < aligned.mesh.mean(0)[0] < 0.7 * CROP
    x, y, w, h = FACE
    assert (abs(aligned.quad.mean(0) - (x + w / 2, y + h / 2)) < 40).all()
    assert judges.aligned(photo, np.array([350.0, 350, 95, 130])) is None
    assert judges.aligned(photo, None) is None
    assert judges.impressions(None) == {}


def test_a_face_beyond_recognition_is_not_aligned(judges):
    tiny = np.array(Image.fromarray(data.astronaut()).resize((60, 60)))
    assert judges.aligned(tiny, FACE * 60 / 512) is None


def test_what_training_used_is_marked():
    assert FaceRes.seen_by_loss and not Gear.seen_by_loss


def test_without_weights_a_classifier_is_left_out(monkeypatch):
    def graph(name):
        raise WeightsError(f"{name} is missing")

    monkeypatch.setattr(attribute_classifiers.weights, "graph", graph)
    monkeypatch.setattr(attribute_classifiers.weights, "tensors", graph)
    judges = Judges(recognizer=object())
    assert judges.classifiers == [] and judges.gaze is None and judges.expression is None
    assert judges.absent[:4] == ["faceres", "gear", "iris-landmarks", "emotion"]
    assert judges.absent[4:] == ["LPIPS, AlexNet", MobileNet.name] and judges.lpips is None and judges.features is None
