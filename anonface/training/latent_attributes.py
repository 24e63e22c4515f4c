"""Fits the latent attribute regression: faces are drawn and analysed, then attributes are regressed on their styles.

There is no training by gradient steps. The face parser labels only dark lenses as glasses. Glasses appear along the
same direction of styles as dark lenses, so the regression covers clear ones too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.faces.align import EYES, LIPS
from anonface.faces.analysis import AnalysisNetworks, mesh_in_crop
from anonface.faces.augmentation import luma
from anonface.faces.blend import composite
from anonface.faces.colour_transfer import LIFT
from anonface.models.face_parser import CLASSES, FaceParser
from anonface.models.identity import KEPT
from anonface.models.inversion import CODE_OF_LATENT
from anonface.models.latent_attributes import SALIENT, WIDTHS, WORN, LatentAttributes
from anonface.models.mobile_stylegan import MappingNetwork, MobileStyleGAN
from anonface.training.data import drawn_rows, row_generator
from anonface.training.recognizer import Recognizer, frames

SIDE = 256  # px of the faces
BATCH = 4  # faces drawn at a time
HELD_OUT = 6  # every sixth face is for validation
SEED = 11
RIDGE = 0.1  # in variances of a whitened coordinate of styles
SAVED_EVERY = 400
LIGHT_GRID = 4  # cells along a side of the face's box
PICTURE = 64  # px at which statistics of the picture are computed
FIRST, FEATURED = 2, 12  # codes of facial features: from the first on, below the second
INNER_LIPS = [78, 95, 88, 178, 87, 14, 317, 402, 318, 324, 308, 415, 310, 311, 312, 13, 82, 81, 80, 191]
EXPRESSIVE = (EYES[:16], EYES[16:], LIPS, INNER_LIPS)  # rows of the mesh: the rims of the eyes and of the mouth
DIRECTIONS = 2  # random directions of an embedding whose gradients are taken, for each face and network
ASKED = 240  # faces whose gradients are taken
LENSES = (0.16, 0.86, 0.19, 0.81)  # top, bottom, left, right of the region of glasses, in shares of the crop


@dataclass(frozen=True)
class AttributeSamples:
    """Styles and attributes of drawn faces.

    Attributes:
        styles: [N, 512].
        kept: the kept coordinates of their identity codes, [N, 6].
        apparent: sex (logit of "male") and age (years) by a classifier, [N, 2].
        mesh: landmarks in shares of the crop's side, [N, 936].
        light: :func:`light_grid`, [N, 16].
        picture: :func:`picture_statistics`, [N, 7].
        worn: :func:`worn_shares`, [N, 3].
    """

    styles: Tensor
    kept: Tensor
    apparent: Tensor
    mesh: Tensor
    light: Tensor
    picture: Tensor
    worn: Tensor


def load_attribute_samples(
    file: Path,
    generator: MobileStyleGAN,
    mapping: MappingNetwork,
    eyes: AnalysisNetworks,
    parser: FaceParser,
    count: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> AttributeSamples:
    """The first ``count`` samples of ``file``; missing ones are drawn and saved first."""

    @torch.inference_mode()
    def draw(done: int) -> dict[str, Tensor]:
        styles = mapping(torch.randn(BATCH, 512, generator=row_generator(SEED, done)))
        faces = generator.synthesize(styles[:, None], SIDE)
        mesh = torch.cat([mesh_in_crop(eyes.landmarks, face[None]) for face in faces])
        return {
            "styles": styles,
            "kept": eyes.encoder(faces)[:, :KEPT],
            "apparent": eyes.apparent(faces),
            "mesh": mesh.flatten(1),
            "worn": worn_shares(parser(faces), mesh),
            "light": light_grid(faces, mesh),
            "picture": picture_statistics(faces, mesh),
        }

    return AttributeSamples(**drawn_rows(file, count, draw, SAVED_EVERY, progress))


def recognition_gradients(
    styles: Tensor,
    generator: MobileStyleGAN,
    eyes: AnalysisNetworks,
    recognizer: Recognizer,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tensor:
    """Gradients of two recognizers' embeddings with respect to styles [n, 512], [2 * DIRECTIONS * n, 512].

    Each row is the gradient of an embedding's projection on a random direction. Only pixels inside the face change. The
    gradients of either recognizer are scaled to the same total norm.
    """
    rng, moved = torch.Generator().manual_seed(17), torch.tensor([FIRST <= code < FEATURED for code in CODE_OF_LATENT])
    changes: tuple[list[Tensor], list[Tensor]] = [], []
    for done, style in enumerate(styles):
        change = torch.zeros(1, 1, len(style), requires_grad=True)
        face = generator.synthesize(style + moved[None, :, None] * change, SIDE)
        with torch.no_grad():
            mesh = mesh_in_crop(eyes.landmarks, face)
            mask = F.avg_pool2d(_hull(mesh[0], SIDE).to(face)[None, None], 9, 1, 4)
        shown = composite(face.detach(), face, mask)
        for seen, kept in zip((eyes.encoder(shown), recognizer(shown, frames(mesh))), changes, strict=True):
            for _ in range(DIRECTIONS):
                direction = torch.randn(seen.shape, generator=rng)
                (slope,) = torch.autograd.grad((seen * direction).sum(), change, retain_graph=True)
                kept.append(slope.flatten())
        progress(done + 1, len(styles))
    return torch.cat([F.normalize(torch.stack(kept).flatten(), dim=0).view(len(kept), -1) for kept in changes])


def worn_shares(parsed: Tensor, mesh: Tensor) -> Tensor:
    """Area of glasses, hat and fringe, [B, 3], in shares of the LENSES region, of the crop and of the face.

    Args:
        parsed: the face parser's logits [B, classes, side, side].
        mesh: landmarks [B, 468, 2] in shares of the crop's side.
    """
    side = parsed.shape[-1]
    glasses, hat, hair = parsed.float().softmax(1)[:, [CLASSES.index(name) for name in WORN]].unbind(1)
    top, bottom, left, right = (round(share * side) for share in LENSES)
    hulls = torch.stack([_hull(one, side) for one in mesh]).to(hair)
    fringe = (hair * hulls).sum((1, 2)) / hulls.sum((1, 2)).clamp_min(1.0)
    return torch.stack([glasses[:, top:bottom, left:right].mean((1, 2)), hat.mean((1, 2)), fringe], dim=1)


def light_grid(faces: Tensor, mesh: Tensor) -> Tensor:
    """Log lightness of faces [B, 3, R, R] on a grid over the box of their landmarks [B, 468, 2].

    The mean is subtracted: [B, 16].
    """
    side, lights = faces.shape[-1], []
    for bright, points in zip((luma(faces) + LIFT).clamp_min(0.02).log(), mesh, strict=True):
        inside = _hull(points, side).to(bright)
        (left, top), (right, bottom) = ((edge(0) * side).long().tolist() for edge in (points.amin, points.amax))
        box = slice(max(top, 0), bottom), slice(max(left, 0), right)
        cells, cover = (
            F.adaptive_avg_pool2d(x[None, None][..., *box], LIGHT_GRID) for x in (bright[0] * inside, inside)
        )
        lights.append((cells / cover.clamp_min(0.05)).flatten())
    grid = torch.stack(lights)
    return grid - grid.mean(1, keepdim=True)


def picture_statistics(faces: Tensor, mesh: Tensor) -> Tensor:
    """Statistics [B, 7] of faces [B, 3, R, R] within their landmarks [B, 468, 2]; see ``WIDTHS``."""
    small = F.adaptive_avg_pool2d(faces, PICTURE).clamp(-1, 1)
    inside = torch.stack([_hull(points, PICTURE) for points in mesh]).to(faces)
    bright = luma(small)[:, 0]
    blue, red = small[:, 2] - bright, small[:, 0] - bright
    area = inside.sum((1, 2)).clamp_min(1.0)

    def mean(x: Tensor) -> Tensor:
        return (x * inside).sum((1, 2)) / area

    def spread(x: Tensor) -> Tensor:
        return mean((x - mean(x)[:, None, None]).square()).sqrt()

    fine = F.pad((bright[:, 1:] - bright[:, :-1]).abs(), (0, 0, 1, 0))
    return torch.stack(
        [mean(bright), spread(bright), mean(blue), mean(red), spread(red), spread(blue), mean(fine)], dim=1
    )


def expression(mesh: Tensor) -> Tensor:
    """Landmarks [B, 468, 2] -> those of eyes and lips, [B, n, 2], each about its own middle."""
    parts = [mesh[:, rows] for rows in EXPRESSIVE]
    return torch.cat([part - part.mean(1, keepdim=True) for part in parts], dim=1)


def _hull(points: Tensor, side: int) -> Tensor:
    inside = np.zeros((side, side), np.uint8)
    hull = cv2.convexHull((points * side).float().cpu().numpy())
    cv2.fillConvexPoly(inside, hull.astype(np.int32), 1)
    return torch.from_numpy(inside)


def fit_latent_attributes(samples: AttributeSamples, gradients: Tensor) -> tuple[LatentAttributes, Tensor]:
    """The regression fitted to samples, and the explained share of each attribute's variance on held-out samples.

    Args:
        gradients: [n, 512], from :func:`recognition_gradients`.
    """
    styles, parts = samples.styles.double(), [samples.kept, samples.apparent]
    shapes = {"mesh": samples.mesh, "expression": expression(samples.mesh.unflatten(1, (468, 2))).flatten(1)}
    parts += [_components(seen, WIDTHS[name]) for name, seen in (shapes | {"light": samples.light}).items()]
    seen = torch.cat([part.double() for part in (*parts, samples.picture, samples.worn)], dim=1)
    usual, spread = seen.mean(0), seen.std(0)
    y = (seen - usual) / spread

    mean = styles.mean(0)
    variances, turn = torch.linalg.eigh(torch.cov(styles.T))
    scale = variances.clamp_min(1e-6).sqrt()
    x = (styles - mean) @ (turn / scale)  # whitened
    learned = torch.arange(len(x)) % HELD_OUT != 0
    missed = y[~learned] - x[~learned] @ ridge(x[learned], y[learned], RIDGE)
    slopes = ridge(x, y, RIDGE)

    regression = LatentAttributes()
    regression.mean.copy_(mean)
    regression.slopes.copy_(turn / scale @ slopes)
    regression.moves.copy_(torch.linalg.pinv(slopes) @ (turn * scale).T)
    regression.usual.copy_(usual)
    regression.spread.copy_(spread)
    whitened = gradients.double() @ turn * scale
    strengths, directions = torch.linalg.eigh(whitened.T @ whitened)
    strongest = directions.flip(1)[:, :SALIENT] * (strengths.flip(0)[:SALIENT] / strengths.sum()).sqrt()
    regression.marks.copy_(turn / scale @ strongest)
    return regression, 1 - missed.square().sum(0) / y[~learned].square().sum(0)


def _components(seen: Tensor, count: int) -> Tensor:
    """The first principal components of [N, d], [N, count]."""
    off = seen.double() - seen.double().mean(0)
    return off @ torch.linalg.svd(off, full_matrices=False).Vh[:count].T


def ridge(x: Tensor, y: Tensor, share: float) -> Tensor:
    """Ridge regression of y [N, ...] on x [N, d], both of mean 0 -> coefficients [d, ...].

    Args:
        share: the ridge, in variances of x, which are about 1.
    """
    gram = x.T @ x / len(x) + share * torch.eye(x.shape[1], dtype=x.dtype)
    return torch.linalg.solve(gram, x.T @ y / len(x))
