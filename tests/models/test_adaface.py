from __future__ import annotations

import pytest
import torch

from anonface.models.adaface import IR_101, AdaFace, AdaFaceParams

SMALL = AdaFaceParams(stages=((4, 2), (8, 1)), image=16, embedding=6)


@torch.no_grad()
def test_embeddings_are_unit_vectors_that_ignore_batch_companions() -> None:
    torch.manual_seed(0)
    network = AdaFace(SMALL).eval()
    faces = torch.rand(3, 3, 16, 16) * 2 - 1
    together = network(faces)
    assert together.shape == (3, 6)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(together, torch.cat([network(face[None]) for face in faces]))


def test_the_deeper_one_has_as_many_tensors_as_its_authors() -> None:
    with torch.device("meta"):
        state = AdaFace(AdaFaceParams(IR_101)).state_dict()
    assert len(state) == 917
    assert state["body.46.shortcut_layer.0.weight"].shape == (512, 256, 1, 1)
    assert "output_layer.4.weight" not in state and "output_layer.4.running_var" in state


def test_an_image_that_cannot_be_halved_is_refused() -> None:
    with pytest.raises(ValueError, match="no multiple of 16"):
        AdaFaceParams(image=100)
