"""Training of the face translator.

Supervised steps learn from :mod:`anonface.training.exchanges`: from either picture of a pair to the other, and to
itself. Swapping steps give a real photo an identity of another row: a discriminator, two recognizers of different
architecture, landmarks and colours judge the result, and the translator has to bring the photo back from it. What is
brought back sees a rounded, recompressed picture and passes no gradient on, so nothing can be hidden in it.
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
from anonface.models.attribute_encoder import MobileNetV2Features
from anonface.models.identity import IdentityEncoder
from anonface.models.translator import PatchDiscriminator, Translator
from anonface.training.adversarial import adversarial_losses
from anonface.training.data import levels, recompressed, rounded, tile
from anonface.training.exchanges import KEPT_OUT, OTHERS, PHOTOS, SIDE, Exchanges, load_shards
from anonface.training.loop import Objective

TOP, LEFT, BOX = 20, 16, 128  # of the aligned square's SIDE px: what the translator sees and paints
AVERAGED = 0.999  # share of the moving average that a step leaves, less at the start
BACK, FORTH = (
    0.75,
    0.15,
)  # shares of supervised rows: from the composite to the photo, and the other way; else to itself
AGE = 15.0  # years that count as much as a logit of 2 of sex when a target identity is looked for
CANDIDATES = 16  # rows of which the target identity is the most alike by sex and age
R1_EVERY = 16  # steps
SWAPPED = (
    "fooling",
    "_caught",
    "code",
    "known",
    "apart",
    "mesh",
    "colours",
    "outside",
    "judge",
    "back",
    "back_features",
)


@dataclass(frozen=True)
class TranslatorLosses:
    """Weights, and when swapping starts and has its full weight, in steps."""

    pixels: float = 6.0
    features: float = 2.0
    fooling: float = 0.4
    code: float = 1.0
    known: float = 1.5
    apart: float = 1.0
    mesh: float = 30.0
    colours: float = 3.0
    outside: float = 2.0
    penalty: float = 0.02
    person: float = 3.0
    swap_from: int = 800
    swap_full: int = 4000


@dataclass(frozen=True)
class TranslatorTeachers:
    """Frozen networks of the losses."""

    encoder: IdentityEncoder
    recognizer: Recognizer
    landmarks: LandmarkNetwork
    features: MobileNetV2Features


@dataclass(frozen=True)
class _Batch:
    """Pictures [B, 3, SIDE, SIDE] in [-1, 1], masks [B, 1, SIDE, SIDE] in 0..1, codes and embeddings."""

    photos: Tensor
    others: Tensor
    masks: Tensor
    codes: Tensor
    known: Tensor
    other_codes: Tensor
    other_known: Tensor


class TranslatorObjective(Objective):
    """Args:
    shards: folder of :func:`~anonface.training.exchanges.draw_shard`; new files there are read as they appear.
    batch: supervised rows a step; swapped ones are half as many.
    """

    def __init__(
        self,
        translator: Translator,
        discriminator: PatchDiscriminator,
        teachers: TranslatorTeachers,
        shards: Path,
        batch: int = 8,
        weights: TranslatorLosses | None = None,
        device: str = "cpu",
    ) -> None:
        self.translator, self.discriminator, self.teachers = translator, discriminator, teachers
        self.average = copy.deepcopy(translator).requires_grad_(False)
        self.shards, self.batch, self.device = shards, batch, device
        self.weights = weights or TranslatorLosses()
        self._read: dict[Path, Exchanges] = {}
        self.rows, self.photos = self._shards()
        for module in (translator, discriminator):
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def modules(self) -> dict[str, nn.Module]:
        return {"translator": self.translator, "discriminator": self.discriminator, "average": self.average}

    def deployable(self) -> dict[str, dict[str, Tensor]]:
        return {"translator": self.average.state_dict(), "discriminator": self.discriminator.state_dict()}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        self._averaged(min(AVERAGED, (1 + step) / (10 + step)))
        if step % 200 == 0 and len(list(self.shards.glob("*.safetensors"))) > len(self._read):
            self.rows, self.photos = self._shards()
        losses = self._supervised(self._drawn(self.batch, rng, real=False), rng)
        w = self.weights
        ramp = (step - w.swap_from) / (w.swap_full - w.swap_from)
        if ramp < 0:
            return losses | dict.fromkeys(SWAPPED, losses["pixels"].new_zeros(()))
        return losses | self._swapped(self._drawn(self.batch // 2, rng, real=True), rng, min(1.0, 0.1 + ramp), step)

    def _shards(self) -> tuple[Exchanges, Exchanges]:
        """Pairs, and what swapping steps show: photos alone where there are some."""
        pairs = load_shards(self.shards, self._read)
        alone = any(self.shards.glob(PHOTOS))
        return pairs, load_shards(self.shards, self._read, PHOTOS) if alone else pairs

    # --- Data ---------------------------------------------------------------------------------------------------

    def _drawn(self, count: int, rng: torch.Generator, real: bool) -> _Batch:
        """Rows without the first KEPT_OUT; each pair mirrored, moved and relit alike."""
        rows = self.photos if real else self.rows
        first = 0 if rows is not self.rows else KEPT_OUT
        places = torch.arange(first, len(rows))
        places = places[rows.real[first:] > 0] if real else places
        index = places[torch.randint(len(places), (count,), generator=rng)]
        one = torch.randint(OTHERS, (count,), generator=rng)
        other = self._target(rows, index, rng) if real else (index, one)
        shown = rows.photos[index] if real else rows.others[index, one]
        pictures = torch.cat([rows.photos[index], shown]).to(self.device).float() / 127.5 - 1
        masks = rows.masks[index].to(self.device).float() / 255
        moved = self._augmented(torch.cat([*pictures.chunk(2), masks], 1), rng)
        photos, others, masks = moved.split([3, 3, 1], 1)
        told = (rows.codes[index, 0], rows.known[index, 0], self.rows.codes[other[0], 1 + other[1]],
                self.rows.known[other[0], 1 + other[1]])  # fmt: skip
        codes, known, other_codes, other_known = (one.to(self.device).float() for one in told)
        return _Batch(photos, others, masks, codes, known, other_codes, other_known)

    def _target(self, rows: Exchanges, index: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Whose identity photos are given, as places among the pairs: of CANDIDATES drawn people the most alike in sex
        and age."""
        tried = torch.randint(KEPT_OUT, len(self.rows), (len(index), CANDIDATES), generator=rng)
        sex, age = self.rows.seems.float().unbind(1)
        own_sex, own_age = rows.seems.float()[index, :, None].unbind(1)
        off = (sex[tried].clamp(-2, 2) - own_sex.clamp(-2, 2)).abs() / 2
        off = off + (age[tried] - own_age).abs() / AGE
        best = tried.gather(1, off.argmin(1, keepdim=True))[:, 0]
        return best, torch.randint(OTHERS, (len(index),), generator=rng)

    def _augmented(self, stacked: Tensor, rng: torch.Generator) -> Tensor:
        n, device = len(stacked), stacked.device
        flip = torch.where(torch.rand(n, generator=rng) < 0.5, -1.0, 1.0)
        turn, grow = torch.randn(n, generator=rng) * 0.02, 1 + torch.randn(n, generator=rng) * 0.015
        shift = torch.randn(n, 2, generator=rng) * 0.012
        cos, sin = grow * torch.cos(turn), grow * torch.sin(turn)
        rows = [torch.stack([flip * cos, -sin, shift[:, 0]], 1), torch.stack([flip * sin, cos, shift[:, 1]], 1)]
        grid = F.affine_grid(torch.stack(rows, 1).to(device), [n, 1, SIDE, SIDE], align_corners=False)
        moved = F.grid_sample(stacked, grid, padding_mode="reflection", align_corners=False)
        pictures, masks = moved[:, :6], moved[:, 6:]
        gamma = (1 + 0.25 * torch.randn(n, 1, 1, 1, generator=rng)).clamp(0.6, 1.6).to(device)
        cast = (1 + 0.05 * torch.randn(n, 3, 1, 1, generator=rng)).repeat(1, 2, 1, 1).to(device)
        lit = ((pictures.clamp(-1, 1) + 1) / 2).clamp_min(1e-4) ** gamma * cast
        grey = (torch.rand(n, 1, 1, 1, generator=rng) < 0.05).to(device)
        plain = lit.view(n, 2, 3, SIDE, SIDE).mean(2, keepdim=True).expand(-1, -1, 3, -1, -1).reshape_as(lit)
        return torch.cat([torch.where(grey, plain, lit).clamp(0, 1) * 2 - 1, masks], 1)

    # --- Losses -------------------------------------------------------------------------------------------------

    def _supervised(self, batch: _Batch, rng: torch.Generator) -> dict[str, Tensor]:
        n = len(batch.photos)
        which = torch.rand(n, generator=rng).to(self.device)
        back, forth = which < BACK, (which >= BACK) & (which < BACK + FORTH)
        pick = lambda where, a, b: torch.where(where.view(-1, *[1] * (a.dim() - 1)), a, b)  # noqa: E731
        given = pick(back, batch.others, batch.photos)
        wanted = pick(forth, batch.others, batch.photos)
        codes = pick(forth, batch.other_codes, batch.codes)
        known = pick(forth, batch.other_known, batch.known)
        shown = self._painted(self.translator, given, codes)
        with torch.no_grad():
            where = frames(mesh_in_crop(self.teachers.landmarks, wanted))
        seen = self.teachers.recognizer(composite(given, shown, batch.masks), where)
        person = self.weights.person * (1 - F.cosine_similarity(seen, known)).mean()
        return {**self._alike(shown, wanted, batch.masks, ""), "person": person}

    def _swapped(self, batch: _Batch, rng: torch.Generator, ramp: float, step: int) -> dict[str, Tensor]:
        w, t = self.weights, self.teachers
        photos, masks = batch.photos, batch.masks
        painted = self._painted(self.translator, photos, batch.other_codes)
        swapped = composite(photos, painted, masks).clamp(-1, 1)
        with torch.no_grad():
            mesh = mesh_in_crop(t.landmarks, photos)
            where = frames(mesh)
        codes, known = t.encoder(swapped), t.recognizer(swapped, where)
        cosine = F.cosine_similarity
        penalty = w.penalty * R1_EVERY if step % R1_EVERY == 0 else 0.0
        real, made = self._looked_at(photos, rng), self._looked_at(swapped, rng)
        game = adversarial_losses(self.discriminator, real, made, penalty)
        blurred = lambda x: F.avg_pool2d(x * masks, 16) / (F.avg_pool2d(masks, 16) + 0.1)  # noqa: E731
        beyond = 1 - F.max_pool2d(masks, 5, 1, 2)
        losses = {
            "fooling": w.fooling * ramp * game.fooling.mean(),
            "_caught": game.caught.mean(),
            "code": w.code * ramp * (1 - cosine(codes, batch.other_codes)).mean(),
            "known": w.known * ramp * (1 - cosine(known, batch.other_known)).mean(),
            "apart": w.apart * ramp * (cosine(known, batch.known) - 0.05).clamp_min(0).mean(),
            "mesh": w.mesh * _moved(mesh_in_crop(t.landmarks, swapped), mesh),
            "colours": w.colours * (blurred(painted) - blurred(photos)).abs().mean(),
            "outside": w.outside * _within(painted - photos, beyond),
        }
        losses["judge"] = game.caught.mean() + game.real + game.slope
        stored = recompressed(rounded(swapped.detach()), rng) if step % 2 else rounded(swapped.detach())
        restored = self._painted(self.translator, stored, batch.codes)
        return losses | self._alike(restored, photos, masks, "back")

    def _alike(self, shown: Tensor, wanted: Tensor, masks: Tensor, prefix: str) -> dict[str, Tensor]:
        w = self.weights
        names = (prefix or "pixels", f"{prefix}_features" if prefix else "features")
        pixels = _within(shown - wanted, masks + 0.1)
        box = lambda x: x[..., TOP : TOP + BOX, LEFT : LEFT + BOX]  # noqa: E731
        pairs = zip(self.teachers.features(box(shown)), self.teachers.features(box(wanted)), strict=True)
        features = torch.stack([(a - b).abs().mean() / (b.abs().mean() + 1e-3) for a, b in pairs]).mean()
        return dict(zip(names, (w.pixels * pixels, w.features * features), strict=True))

    def _painted(self, translator: Translator, whole: Tensor, codes: Tensor) -> Tensor:
        """Aligned squares [B, 3, SIDE, SIDE] with the translator's box in them."""
        box = translator(whole[..., TOP : TOP + BOX, LEFT : LEFT + BOX], codes)
        rest = (LEFT, SIDE - LEFT - BOX, TOP, SIDE - TOP - BOX)
        inside = F.pad(torch.ones_like(box[:, :1]), rest)
        return F.pad(box, rest) + whole * (1 - inside)

    def _looked_at(self, pictures: Tensor, rng: torch.Generator) -> Tensor:
        """What the discriminator sees: the box, a little shifted, in other colours (Zhao et al. 2020)."""
        n = len(pictures)
        dy, dx = (int(torch.randint(-6, 7, (), generator=rng)) for _ in range(2))
        box = pictures[..., TOP + dy : TOP + dy + BOX, LEFT + dx : LEFT + dx + BOX]
        light = (0.2 * torch.randn(n, 1, 1, 1, generator=rng)).to(box)
        hue = (1 + 0.3 * torch.randn(n, 1, 1, 1, generator=rng)).to(box)
        contrast = (1 + 0.2 * torch.randn(n, 1, 1, 1, generator=rng)).to(box)
        grey = box.mean(1, keepdim=True)
        return (grey + (box - grey) * hue) * contrast + light

    @torch.no_grad()
    def _averaged(self, kept: float) -> None:
        for slow, fast in zip(self.average.parameters(), self.translator.parameters(), strict=True):
            slow.lerp_(fast, 1 - kept)

    @torch.no_grad()
    def sheet(self) -> NDArray:
        """Held-out photos, another face in each, and what the translator makes: the other face of the photo, the photo
        of the other face, the identity of the next row, and the photo again of that."""
        rows, show = self.rows, slice(0, 12)
        photos = rows.photos[show].to(self.device).float() / 127.5 - 1
        others = rows.others[show, 0].to(self.device).float() / 127.5 - 1
        masks = rows.masks[show].to(self.device).float() / 255
        codes, other = (rows.codes[show, i].to(self.device).float() for i in (0, 1))
        paint = lambda whole, code: composite(whole, self._painted(self.average, whole, code), masks)  # noqa: E731
        swapped = paint(photos, other.roll(1, 0))
        stored = levels(swapped).float() / 127.5 - 1
        columns = [photos, others, paint(photos, other), paint(others, codes), swapped, paint(stored, codes)]
        return tile(columns)


def _within(difference: Tensor, masks: Tensor) -> Tensor:
    """The mean absolute difference [B, C, S, S] within masks [B, 1, S, S]."""
    return (difference.abs().mean(1, keepdim=True) * masks).sum() / (masks.sum() + 1e-3)


def _moved(mesh: Tensor, wanted: Tensor) -> Tensor:
    """How far landmarks [B, 468, 2] are from those wanted; eyes and lips, which make the expression, count thrice."""
    off = (mesh - wanted).abs().mean((0, 2))
    return off.mean() + 2 * off[[*EYES, *LIPS]].mean()
