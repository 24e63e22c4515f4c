"""What an inpainter is told: nothing of the face but its landmarks and coarse colours."""

from __future__ import annotations

import numpy as np
import torch

from anonface.faces.align import EYES
from anonface.faces.surroundings import CELLS, LIP_RINGS, coarse_colours, inpainter_inputs
from anonface.models.inpainter import INPUTS

SIDE = 160


def scene(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Noise, a round mask in its middle, and landmarks spread over it."""
    rng = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    mask = (((x - 80) ** 2 + (y - 80) ** 2) < 50**2).float()[None, None]
    mesh = 0.5 + 0.2 * (torch.rand(1, 468, 2, generator=torch.Generator().manual_seed(7)) - 0.5)
    mesh[0, LIP_RINGS[1]] = 0.55  # a shut mouth
    return torch.rand(1, 3, SIDE, SIDE, generator=rng) * 2 - 1, mask, mesh


def test_two_faces_of_like_landmarks_and_colours_look_alike_to_it() -> None:
    photo, mask, mesh = scene()
    other = torch.where(mask > 0, scene(seed=2)[0], photo)
    first, second = (inpainter_inputs(picture, mask, mesh) for picture in (photo, other))
    assert first.shape == (1, INPUTS, SIDE, SIDE)
    hole = first[:, 3:4] > 0
    assert bool((hole >= (mask > 0)).all())
    assert torch.equal(first[:, :3][~hole.expand(-1, 3, -1, -1)], photo[~hole.expand(-1, 3, -1, -1)])
    assert float((first[:, :8] - second[:, :8]).abs().max()) < 0.15  # of a range of 2; the noise itself differs by 2


def test_light_passes_in_cells() -> None:
    photo, mask, _ = scene()
    lit = photo * 0 + torch.linspace(-1, 1, SIDE)[None, None, None]
    coarse = coarse_colours(lit, mask, CELLS)
    within = mask.bool().expand_as(coarse)
    assert float((coarse - lit)[within].abs().mean()) < 2 / CELLS
    black = coarse_colours(torch.where(mask > 0, lit, -torch.ones_like(lit)), mask, CELLS)
    assert torch.allclose(coarse[within], black[within], atol=1e-3)  # what lies outside says nothing


def test_teeth_are_seen_in_cells_of_their_own_where_a_mouth_is_open() -> None:
    photo, mask, mesh = scene()
    grin = photo * 0 - 1
    grin[..., 82:90, 64:96] = 1  # teeth, above a dark mouth
    turns = np.linspace(0, 2 * np.pi, 20, endpoint=False)
    told = {}
    for name, height in (("open", 10.0), ("shut", 0.01)):
        ring = np.column_stack([80 + 16 * np.cos(turns), 90 + height * np.sin(turns)]) / SIDE
        mesh[0, LIP_RINGS[1]] = torch.from_numpy(ring).float()
        rows = inpainter_inputs(grin, mask, mesh)[0, 0, :, 74:86].mean(1)
        told[name] = float(rows[84] - rows[97])
    assert told["open"] > 1 > 0.3 > abs(told["shut"])  # of a range of 2


def test_an_iris_lies_where_the_eye_is_dark() -> None:
    photo, mask, mesh = scene()
    turns = np.linspace(0, 2 * np.pi, 16, endpoint=False)
    ring = torch.from_numpy(np.column_stack([0.45 - 0.08 * np.cos(turns), 0.5 + 0.03 * np.sin(turns)])).float()
    mesh[0, EYES[:16]] = ring
    dots = []
    for left in (0.42, 0.48):
        eye = torch.ones_like(photo)
        eye[..., 76:84, round(left * SIDE) - 3 : round(left * SIDE) + 3] = -1
        iris = inpainter_inputs(eye, mask, mesh)[0, 8, :, : round(0.52 * SIDE)]
        dots.append(float((iris.sum(0) * torch.arange(iris.shape[1])).sum() / iris.sum()) / SIDE)
    assert abs(dots[0] - 0.42) < 0.01 and abs(dots[1] - 0.48) < 0.01
