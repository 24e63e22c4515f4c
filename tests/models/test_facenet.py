from __future__ import annotations

import torch

from anonface.models.facenet import EMBEDDING, FaceNet


@torch.no_grad()
def test_embeddings_are_unit_vectors_that_ignore_batch_companions() -> None:
    torch.manual_seed(0)
    network = FaceNet().eval()
    faces = torch.rand(2, 3, 160, 160) * 2 - 1
    together = network(faces)
    assert together.shape == (2, EMBEDDING)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(2))
    torch.testing.assert_close(together, torch.cat([network(face[None]) for face in faces]), atol=1e-5, rtol=1e-4)
