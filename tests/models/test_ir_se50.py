from __future__ import annotations

import pytest
import torch

from anonface.models.ir_se50 import IRSE50, IRSE50Params

SMALL = IRSE50Params(stages=((4, 2), (8, 1)), reduction=2, image=16, embedding=6)


@torch.no_grad()
def test_embeddings_are_unit_vectors_that_ignore_batch_companions() -> None:
    torch.manual_seed(0)
    network = IRSE50(SMALL).eval()
    faces = torch.rand(3, 3, 16, 16) * 2 - 1
    together = network(faces)
    assert together.shape == (3, 6)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(together, torch.cat([network(face[None]) for face in faces]))


def test_every_stage_halves_the_sides() -> None:
    network = IRSE50(SMALL).eval()
    assert network.body(network.input_layer(torch.zeros(1, 3, 16, 16))).shape == (1, 8, 4, 4)


def test_an_image_that_cannot_be_halved_is_refused() -> None:
    with pytest.raises(ValueError, match="no multiple of 16"):
        IRSE50Params(image=100)
