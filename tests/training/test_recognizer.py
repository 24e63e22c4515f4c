"""What a recognizer sees of an aligned face."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from anonface import weights
from anonface.evaluation import embedders
from anonface.faces import align
from anonface.faces.detect import build_detector
from anonface.models.graph import Graph
from anonface.training.recognizer import Recognizer, frames

EXAMPLES = Path(__file__).parents[2] / "examples"


def aligned(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The largest face of an example and its landmarks, as FFHQ aligns it at 256 px."""
    rgb = np.asarray(Image.open(EXAMPLES / name).convert("RGB"))
    mesh = align.mesh468(rgb, max(build_detector("yunet").detect(rgb), key=lambda face: face.box[2]))
    quad = align.ffhq_quad(mesh)
    return align.crop(rgb, quad, 256), align.transform(align.photo_to_crop(quad, 256), mesh[:, :2])


def test_it_looks_where_an_evaluation_does_and_gradients_reach_the_face():
    crop, mesh = aligned("call.jpg")
    seen: list[torch.Tensor] = []
    eye = Recognizer(lambda x: seen.append(x) or x.flatten(1))  # type: ignore[arg-type]
    face = (torch.from_numpy(crop).permute(2, 0, 1)[None].float() / 127.5 - 1).requires_grad_()
    eye(face, frames(torch.from_numpy(mesh)[None].float() / 256))
    expected = embedders.sface.five_point_face(crop, mesh).transpose(2, 0, 1) / 127.5 - 1
    assert seen[0].shape == (1, 3, 112, 112)
    assert np.abs(seen[0][0].detach().numpy() - expected).mean() < 0.01
    seen[0].sum().backward()
    assert face.grad is not None and face.grad.abs().max() > 0


def test_the_shipped_one_tells_people_apart():
    network = Recognizer(Graph(weights.graph("arcface-mobile"))).eval()
    looks = []
    for name in ("call.jpg", "evening.jpg"):
        crop, mesh = aligned(name)
        face = torch.from_numpy(crop).permute(2, 0, 1)[None].float() / 127.5 - 1
        frame = frames(torch.from_numpy(mesh)[None].float() / 256)
        darker = 0.7 * F.avg_pool2d(face, 3, 1, 1) - 0.2
        with torch.inference_mode():
            looks.append((network(face, frame), network(darker, frame)))
    (one, again), (other, _) = looks
    assert float(one.norm()) == pytest.approx(1, abs=1e-5)
    assert float(F.cosine_similarity(one, again)) > 0.7 > 0.3 > float(F.cosine_similarity(one, other))
