"""The face parser's shape and contract; its weights are tested with the masks."""

import pytest
import torch

from anonface.models.face_parser import CLASSES, FACE, FaceParser, FaceParserParams, face_odds


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


def test_its_backbone_takes_imagenet_weights_and_it_stays_small(parser):
    assert sum(p.numel() for p in FaceParser().parameters()) * 2 < 6e6
    assert any(name.startswith("backbone.features.17.") for name, _ in parser.named_parameters())
