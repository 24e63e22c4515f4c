"""Training of the face parser on photos with masks made by people, with pasted occluders and degradations."""

from __future__ import annotations

import math

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from anonface.models.face_parser import FACE, FaceParser, face_odds
from anonface.training.data import photograph
from anonface.training.loop import Objective
from anonface.training.masks import KEPT, LABEL, SIDE, UNKNOWN, WORN, LabelledPhotos, Labels, allowed
from anonface.training.occluders import Picture, occlude

COVERED = 0.5  # share of the photos with pasted occluders
RARE = (LABEL["hat"], WORN)  # photos with these are drawn RARE_TIMES as often
RARE_AREA, RARE_TIMES = 0.01, 4.0
COARSE_SIDE, COARSE_STEPS = 160, 1000  # the first steps use small pictures, at a third of the cost
FROZEN = 4  # number of the backbone's first blocks, which keep their ImageNet weights
BALANCE = 0.2  # power of a class's rarity that is its weight
PALETTE = np.array([
    [0, 0, 0], [255, 205, 170], [150, 80, 20], [40, 120, 255], [255, 150, 90], [255, 0, 60],
    [200, 160, 0], [160, 110, 80], [110, 0, 160], [0, 255, 255], [0, 160, 0], [255, 255, 0],
    [150, 255, 255], [60, 60, 60], [0, 200, 200],
], np.uint8)  # fmt: skip


class ParserObjective(Objective):
    """Cross-entropy over the classes that a label allows, and binary cross-entropy of face against all else.

    The last KEPT photos are never learned from.
    """

    def __init__(self, parser: FaceParser, photos: LabelledPhotos, batch: int = 8) -> None:
        self.parser, self.photos, self.batch = parser, photos, batch
        for parameter in parser.parameters():  # channels last takes a third less time on a CPU
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        for block in parser.backbone.features[:FROZEN]:
            block.requires_grad_(False)
        learned = photos.labels[:-KEPT]
        rare = [torch.isin(labels, torch.tensor(RARE)).float().mean() > RARE_AREA for labels in learned]
        self.odds = torch.where(torch.stack(rare), RARE_TIMES, 1.0)
        self.allowed = allowed()
        count = torch.bincount(learned[:400].flatten().int(), minlength=UNKNOWN + 1)[: len(self.allowed)].float()
        self.weight = ((count.sum() / (count + 1)) ** BALANCE).clamp(max=8.0)

    def modules(self) -> dict[str, nn.Module]:
        return {"face-parser": self.parser}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        chosen = torch.multinomial(self.odds, self.batch, generator=rng)
        images, labels = zip(*(self.sample(int(i), rng) for i in chosen), strict=True)
        photos, target = photograph(torch.stack(images), rng, covered=0.0), torch.stack(labels)
        side = COARSE_SIDE if step < COARSE_STEPS else SIDE
        if side != SIDE:
            photos = F.interpolate(photos, (side, side), mode="bilinear", antialias=True)
            target = F.interpolate(target[:, None].float(), (side, side), mode="nearest-exact")[:, 0].long()
        photos = photos.contiguous(memory_format=torch.channels_last)
        logits = F.interpolate(self.parser(photos), (side, side), mode="bilinear", align_corners=False)
        classes = _partial_cross_entropy(logits, target, self.allowed, self.weight)
        known = (target != UNKNOWN) & (target != WORN)
        odds = face_odds(logits)[known]
        is_face = torch.isin(target, torch.tensor(FACE))[known].float()
        face = F.binary_cross_entropy_with_logits(odds, is_face)
        with torch.no_grad():
            found = odds > 0
            overlap = (found & (is_face > 0)).sum() / (found | (is_face > 0)).sum().clamp_min(1)
        return {"classes": classes, "face": face, "_face_iou": overlap}

    def sample(self, index: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """A photo with random augmentation and occluders: [3, S, S] in [-1, 1] and labels [S, S]."""
        seed = int(torch.randint(2**62, (1,), generator=rng))
        chance = np.random.default_rng(seed)
        image, labels = self._member(index)
        if chance.random() < COVERED:
            other = lambda: self._member(int(torch.multinomial(self.odds, 1, generator=rng)))  # noqa: E731
            image, labels = occlude(image, labels, other, chance)
        image, labels = _moved(image, labels, chance)
        pixels = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))
        return pixels.clamp(0, 1) * 2 - 1, torch.from_numpy(labels).long()

    def _member(self, index: int) -> tuple[Picture, Labels]:
        image = np.asarray(self.photos.images[index].numpy() / 255, np.float32)
        return image, np.array(self.photos.labels[index].numpy(), np.uint8)

    def sheet(self) -> NDArray:
        """Photos that are kept out, with occluders and degradations, their labels, and the parser's predictions."""
        rng = torch.Generator().manual_seed(5)
        rows = []
        for i in range(8):
            image, labels = self.sample(len(self.photos) - KEPT + i, rng)
            photo = photograph(image[None], rng, covered=0.0)
            with torch.inference_mode():
                logits = F.interpolate(self.parser(photo), (SIDE, SIDE), mode="bilinear", align_corners=False)
            picture = ((photo[0] + 1) * 127.5).round().to(torch.uint8).permute(1, 2, 0).numpy()
            rows.append(np.concatenate([picture, _coloured(labels), _coloured(logits[0].argmax(0))], axis=1))
        return np.concatenate([np.concatenate(rows[:4]), np.concatenate(rows[4:])], axis=1)


def _partial_cross_entropy(logits: Tensor, target: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean of -log of the probability of all classes that a label [B, H, W] allows; logits [B, C, H, W]."""
    known = target != UNKNOWN
    label = torch.where(known, target, 0)
    shares = logits.log_softmax(1).permute(0, 2, 3, 1)
    right = shares.masked_fill(~table[label], -math.inf).logsumexp(-1)
    counted = weight[label] * known
    return -(right * counted).sum() / counted.sum().clamp_min(1e-6)


def _moved(image: Picture, labels: Labels, rng: np.random.Generator) -> tuple[Picture, Labels]:
    """Random flip, rotation, scaling and shift of picture and labels, with mirrored borders."""
    if rng.random() < 0.5:
        image, labels = image[:, ::-1], labels[:, ::-1]
    turn = cv2.getRotationMatrix2D((SIDE / 2, SIDE / 2), rng.normal(0, 5), math.exp(rng.normal(0, 0.07)))
    move = np.asarray(turn, np.float64)
    move[:, 2] += rng.normal(0, 0.03 * SIDE, 2)
    size, border = (SIDE, SIDE), cv2.BORDER_REFLECT_101
    moved = cv2.warpAffine(np.ascontiguousarray(image), move, size, flags=cv2.INTER_LINEAR, borderMode=border)
    known = cv2.warpAffine(np.ascontiguousarray(labels), move, size, flags=cv2.INTER_NEAREST, borderMode=border)
    return np.asarray(moved, np.float32), np.asarray(known, np.uint8)


def _coloured(labels: Tensor) -> NDArray[np.uint8]:
    return np.concatenate([PALETTE, np.full((256 - len(PALETTE), 3), 255, np.uint8)])[labels.numpy()]
