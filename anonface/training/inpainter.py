"""Training of the face inpainter.

Photos teach it to put back what was taken out, under their own identity codes. Every fourth row is given the code of
another person of like sex and age: two recognizers of different architecture, landmarks and the discriminator judge
what is drawn there. Real photos and drawn ones serve alike.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from anonface.faces.align import EYES, LIPS
from anonface.faces.analysis import LandmarkNetwork, mesh_in_crop
from anonface.faces.blend import composite
from anonface.faces.recognizer import Recognizer, frames
from anonface.faces.surroundings import CELLS, boxed, coarse_colours, draw_in_square, inpainter_inputs, square_of
from anonface.models.attribute_encoder import MobileNetV2Features
from anonface.models.discriminator import PatchDiscriminator
from anonface.models.identity import IdentityEncoder
from anonface.models.inpainter import Inpainter
from anonface.training.adversarial import adversarial_losses
from anonface.training.data import tile
from anonface.training.loop import Objective
from anonface.training.portraits import Portraits, load_shards

AVERAGED = 0.999  # share of the moving average that a step leaves, less at the start
SWAPPED = 4  # every so many rows get another person's code
AGE = 15.0  # years that count as much as a logit of 2 of sex when another person is looked for
CANDIDATES = 16  # rows of which the other person is the most alike by sex and age
R1_EVERY = 16  # steps
PART = 128  # px
KEPT_OUT = 100  # rows that are never learned from, for sheets and measurements


@dataclass(frozen=True)
class InpainterLosses:
    """Weights, and by which step the discriminator has its full one."""

    pixels: float = 6.0
    features: float = 3.0
    person: float = 3.0
    code: float = 1.5
    mesh: float = 30.0
    fooling: float = 1.0
    tone: float = 4.0
    penalty: float = 0.02
    fooling_full: int = 1000


@dataclass(frozen=True)
class InpainterTeachers:
    """Frozen networks of the losses."""

    encoder: IdentityEncoder
    recognizer: Recognizer
    landmarks: LandmarkNetwork
    features: MobileNetV2Features


class InpainterObjective(Objective):
    """Args:
    shards: folder of :func:`~anonface.training.portraits.draw_shard`; new files there are read as they appear.
    batch: rows a step.
    """

    def __init__(
        self,
        inpainter: Inpainter,
        discriminator: PatchDiscriminator,
        teachers: InpainterTeachers,
        shards: Path,
        batch: int = 8,
        weights: InpainterLosses | None = None,
        device: str = "cpu",
    ) -> None:
        self.inpainter, self.discriminator, self.teachers = inpainter, discriminator, teachers
        self.average = copy.deepcopy(inpainter).requires_grad_(False)
        self.shards, self.batch, self.device = shards, batch, device
        self.side = square_of(inpainter.params.side)
        self.weights = weights or InpainterLosses()
        self._read: dict[Path, Portraits] = {}
        self.rows = load_shards(shards, self._read)
        for module in (inpainter, discriminator):
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def modules(self) -> dict[str, nn.Module]:
        return {"inpainter": self.inpainter, "discriminator": self.discriminator, "average": self.average}

    def deployable(self) -> dict[str, dict[str, Tensor]]:
        return {"inpainter": self.average.state_dict()}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        self._averaged(min(AVERAGED, (1 + step) / (10 + step)))
        if step % 200 == 0 and len(list(self.shards.glob("*.safetensors"))) > len(self._read):
            self.rows = load_shards(self.shards, self._read)
        w, t, n = self.weights, self.teachers, self.batch
        index = torch.randint(KEPT_OUT, len(self.rows), (n,), generator=rng)
        other = index.clone()
        other[::SWAPPED] = self._other(index[::SWAPPED], rng)
        own = torch.ones(n, dtype=torch.bool)
        own[::SWAPPED] = False
        photos, masks, mesh = self._augmented(index, rng)
        codes, known = (told[other].to(self.device).float() for told in (self.rows.codes, self.rows.known))
        drawn = draw_in_square(self.inpainter, photos, masks, mesh, codes)
        shown = composite(photos, drawn, masks)
        where = frames(mesh)
        cosine = F.cosine_similarity
        penalty = w.penalty * R1_EVERY if step % R1_EVERY == 0 else 0.0
        (real, real_masks), (made, made_masks) = (self._judged(x, masks, rng) for x in (photos, shown))
        weights = self._counted(real_masks), self._counted(made_masks)
        game = adversarial_losses(self.discriminator, real, made, penalty, weights)
        swapped = shown[~own].clamp(-1, 1)
        one, other_one = self._part(boxed(torch.cat([drawn[own], photos[own]])), rng).chunk(2)
        pairs = zip(t.features(one), t.features(other_one), strict=True)
        features = torch.stack([(a - b).abs().mean() / (b.abs().mean() + 1e-3) for a, b in pairs]).mean()
        told = ~own | (torch.arange(n) % 2 == 1)  # of the rows that pixels teach, too, it is asked about half
        seen = t.recognizer(shown[told], where[told])
        off, own_told = 1 - cosine(seen, known[told]), own[told]
        return {
            "pixels": w.pixels * _within(drawn[own] - photos[own], masks[own] + 0.1),
            "features": w.features * features,
            "person": w.person * off[own_told].mean() * own.float().mean(),
            "swap": w.person * off[~own_told].mean() * (1 - own.float().mean()),
            "code": w.code * (1 - cosine(t.encoder(swapped), codes[~own])).mean(),
            "tone": w.tone * _toned(shown[~own], photos[~own], masks[~own]),
            "mesh": w.mesh * _moved(mesh_in_crop(t.landmarks, swapped), mesh[~own]),
            "fooling": w.fooling * min(1.0, 0.2 + step / w.fooling_full) * game.fooling.mean(),
            "_caught": game.caught.mean(),
            "judge": game.caught.mean() + game.real + game.slope,
        }

    def _other(self, index: Tensor, rng: torch.Generator) -> Tensor:
        """Of CANDIDATES rows each the one most alike in sex and age."""
        tried = torch.randint(KEPT_OUT, len(self.rows), (len(index), CANDIDATES), generator=rng)
        sex, age = self.rows.seems.float().unbind(1)
        off = (sex[tried].clamp(-2, 2) - sex[index, None].clamp(-2, 2)).abs() / 2
        off = off + (age[tried] - age[index, None]).abs() / AGE + 9 * (tried == index[:, None])
        return tried.gather(1, off.argmin(1, keepdim=True))[:, 0]

    def _augmented(self, index: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Photos, masks and landmarks, mirrored, moved and relit."""
        n = len(index)
        photos, masks = self._rows(index)
        flip = torch.where(torch.rand(n, generator=rng) < 0.5, -1.0, 1.0)
        turn, grow = torch.randn(n, generator=rng) * 0.04, 1 + torch.randn(n, generator=rng) * 0.03
        shift = torch.randn(n, 2, generator=rng) * 0.02
        cos, sin = grow * torch.cos(turn), grow * torch.sin(turn)
        linear = torch.stack([torch.stack([flip * cos, -sin], 1), torch.stack([flip * sin, cos], 1)], 1)
        moves = torch.cat([linear, shift[:, :, None]], 2).to(photos)
        grid = F.affine_grid(moves, [n, 1, self.side, self.side], align_corners=False)
        moved = F.grid_sample(torch.cat([photos, masks], 1), grid, padding_mode="reflection", align_corners=False)
        gamma = (1 + 0.25 * torch.randn(n, 1, 1, 1, generator=rng)).clamp(0.6, 1.6).to(photos)
        cast = (1 + 0.05 * torch.randn(n, 3, 1, 1, generator=rng)).to(photos)
        lit = ((moved[:, :3].clamp(-1, 1) + 1) / 2).clamp_min(1e-4) ** gamma * cast
        grey = (torch.rand(n, 1, 1, 1, generator=rng) < 0.05).to(self.device)
        lit = torch.where(grey, lit.mean(1, keepdim=True), lit)
        photos = lit.clamp(0, 1) * 2 - 1
        with torch.no_grad():
            mesh = mesh_in_crop(self.teachers.landmarks, photos)
        return photos, moved[:, 3:], mesh

    def _rows(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Photos and masks of some rows, at the inpainter's size."""
        size = (self.side, self.side)
        photos, masks = (told[index].to(self.device).float() for told in (self.rows.photos, self.rows.masks))
        if photos.shape[-2:] != size:
            photos, masks = (F.interpolate(x, size, mode="bilinear", antialias=True) for x in (photos, masks))
        return photos / 127.5 - 1, masks / 255

    def _part(self, boxes: Tensor, rng: torch.Generator) -> Tensor:
        """A part of boxes, PART px a side: features of more would cost more than all else."""
        top, left = (int(torch.randint(boxes.shape[-1] - PART + 1, (), generator=rng)) for _ in range(2))
        return boxes[..., top : top + PART, left : left + PART]

    def _judged(self, pictures: Tensor, masks: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """What the discriminator sees: the box, a little shifted, in other colours (Zhao et al. 2020); and its mask."""
        n = len(pictures)
        reach = self.side // 26
        shift = [int(torch.randint(-reach, reach + 1, (), generator=rng)) for _ in range(2)]
        box, mask = (boxed(x.roll(shift, (2, 3))) for x in (pictures, masks))
        light = (0.2 * torch.randn(n, 1, 1, 1, generator=rng)).to(box)
        hue = (1 + 0.3 * torch.randn(n, 1, 1, 1, generator=rng)).to(box)
        contrast = (1 + 0.2 * torch.randn(n, 1, 1, 1, generator=rng)).to(box)
        grey = box.mean(1, keepdim=True)
        return (grey + (box - grey) * hue) * contrast + light, mask

    def _counted(self, masks: Tensor) -> Tensor:
        """How much each patch counts before the discriminator: as much as is drawn of it. The rest is a photo."""
        share = F.adaptive_avg_pool2d(masks, masks.shape[-1] // self.discriminator.reduction)
        return share / share.mean().clamp_min(1e-3)

    @torch.no_grad()
    def _averaged(self, kept: float) -> None:
        for slow, fast in zip(self.average.parameters(), self.inpainter.parameters(), strict=True):
            slow.lerp_(fast, 1 - kept)

    @torch.no_grad()
    def sheet(self) -> NDArray:
        """Held-out photos, what is seen of them, and three people in each: its own, and those of the next rows."""
        show = torch.arange(12)
        photos, masks = self._rows(show)
        codes, mesh = self.rows.codes[show].to(self.device).float(), mesh_in_crop(self.teachers.landmarks, photos)
        inputs = inpainter_inputs(photos, masks, mesh)
        people = [codes, codes.roll(1, 0), codes.roll(5, 0)]
        drawn = [composite(photos, draw_in_square(self.average, photos, masks, mesh, code), masks) for code in people]
        return tile([photos, inputs[:, :3] + inputs[:, 4:].amax(1, keepdim=True), *drawn])


def _within(difference: Tensor, masks: Tensor) -> Tensor:
    """The mean absolute difference [B, C, S, S] within masks [B, 1, S, S]."""
    return (difference.abs().mean(1, keepdim=True) * masks).sum() / (masks.sum() + 1e-3)


def _toned(shown: Tensor, photos: Tensor, masks: Tensor) -> Tensor:
    """How far the coarse colours of faces are from the photos', which the surroundings' light and skin fit."""
    return _within(coarse_colours(shown, masks, CELLS) - coarse_colours(photos, masks, CELLS), masks)


def _moved(mesh: Tensor, wanted: Tensor) -> Tensor:
    """How far landmarks [B, 468, 2] are from those wanted; eyes and lips, which make the expression, count thrice."""
    off = (mesh - wanted).abs().mean((0, 2))
    return off.mean() + 2 * off[[*EYES, *LIPS]].mean()
