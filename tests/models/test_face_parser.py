"""The face parser's shape and contract; its weights are tested with the masks."""

import pytest
import torch

from anonface.models.face_parser import CLASSES, FACE, FaceParser, FaceParserParams, face_odds, like_odds, new_glasses


@pytest.fixture(scope="module")
def parser() -> FaceParser:
    torch.manual_seed(0)
    return FaceParser(FaceParserParams(side=64, width=16)).eval()


def test_logits_are_at_half_the_side(parser):
    assert parser(torch.randn(2, 3, 64, 64)).shape == (2, len(CLASSES), 32, 32)


def test_a_face_alone_is_labelled_as_in_a_batch(parser):
    faces = torch.randn(3, 3, 64, 64)
    assert torch.allclose(parser.train()(faces)[1:2], parser(faces[1:2]), atol=1e-5)
    assert not torch.allclose(parser(faces[:1]), parser(faces[1:2]), atol=1e-2)


def test_a_side_that_the_strides_do_not_divide_is_refused():
    with pytest.raises(ValueError, match="multiple of 32"):
        FaceParserParams(side=100)


def test_face_odds_are_those_of_the_classes_together():
    logits = torch.randn(2, len(CLASSES), 3, 3, dtype=torch.float64)
    share = logits.softmax(1)[:, list(FACE)].sum(1)
    assert torch.allclose(face_odds(logits), torch.logit(share))
    assert {CLASSES[i] for i in FACE} == {"skin", "brows", "eyes", "nose", "lips", "lens"}


def test_new_glasses_are_the_gain_in_nats_over_the_photo():
    logits, photo = torch.randn(2, 2, len(CLASSES), 9, 9, dtype=torch.float64)
    worn, before = (-torch.log(1 - some.softmax(1)[:, CLASSES.index("glasses")]) for some in (logits, photo))
    new, more = new_glasses(logits, photo), worn > before
    assert more.any() and not more.all() and not new[~more].any()
    assert torch.allclose(new[more], (worn - before)[more])


@pytest.mark.parametrize(
    ("photo", "alike", "unlike"),
    [
        ("hair", ("hair",), ("skin", "neck", "background")),
        ("neck", ("neck", "ears", "skin", "lips"), ("hair", "occluder", "background")),
        ("ears", ("ears", "neck", "nose"), ("hair", "glasses", "hat")),
        ("skin", ("skin", "eyes", "brows"), ("hair", "neck", "ears")),
        ("background", ("skin",), ("background", "hair")),  # only pixels inside the face mask are used
    ],
)
def test_a_pixel_is_like_the_photo_if_it_shows_the_same_kind(photo, alike, unlike):
    def seen(*names):
        logits = torch.zeros(1, len(CLASSES), 1, len(names))
        for i, name in enumerate(names):
            logits[0, CLASSES.index(name), 0, i] = 9
        return logits

    for names, sign in ((alike, 1), (unlike, -1)):
        odds = like_odds(seen(*names), seen(*[photo] * len(names)))
        assert odds.shape == (1, 1, len(names)) and (sign * odds > 3).all()


def test_its_backbone_takes_imagenet_weights_and_it_stays_small(parser):
    assert sum(p.numel() for p in FaceParser().parameters()) * 2 < 6e6
    assert any(name.startswith("backbone.features.17.") for name, _ in parser.named_parameters())
