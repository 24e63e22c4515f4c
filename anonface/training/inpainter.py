"""Training of the face inpainter.

Photos teach it to put back what was taken out, under their own identity codes. Every second row is given the code of
another person of like sex and age: two recognizers of different architecture, landmarks, the face parser and the
discriminator judge what is drawn there. It is to look like that person, and no more like the one in the photo than a
stranger would. Its code is changed to tell of the photo's pose and expression, as in use. Real photos and drawn ones
serve alike.

The generator's layers stay as they are; what modulates them and adds to their features is learned.
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
from anonface.faces.colour_transfer import match_contrast
from anonface.faces.surroundings import CELLS, coarse_colours, draw_in_square, inpainter_inputs
from anonface.models.attribute_encoder import MobileNetV2Features
from anonface.models.code_landmarks import CodeLandmarks
from anonface.models.discriminator import FeatureDiscriminator
from anonface.models.face_parser import FaceParser, face_odds
from anonface.models.identity import IdentityEncoder
from anonface.models.inpainter import Injection, Inpainter
from anonface.models.mobile_stylegan import Level, MobileStyleGAN, haar
from anonface.training.adversarial import hinge_losses
from anonface.training.data import tile
from anonface.training.loop import Objective
from anonface.training.portraits import TRUNCATION, PortraitNetworks, Portraits, load_shards
from anonface.training.recognizer import Recognizer, frames

AVERAGED = 0.999  # share of the moving average that a step leaves, less at the start
SWAPPED = 2  # every so many rows get another person's code
STRANGERS = 0.05  # mean cosine of two people of like sex and age to the recognizer
AGE = 15.0  # years that count as much as a logit of 2 of sex when another person is looked for
CANDIDATES = 16  # rows of which the other person is the most alike by sex and age
TAPS = (1, 3, 6, 13, 17)  # blocks of MobileNetV2 whose features are compared and judged: strides 2, 4, 8, 16 and 32
FEATURE_WIDTHS, FEATURE_SPREADS = (16, 24, 32, 96, 320), (0.48, 0.76, 0.78, 0.65, 0.2)  # channels, deviations
VIEWS = {128: 192, 256: 256}  # a picture's side -> px at which they are taken
FEATURE_LINES = slice(6, 9)  # of the inputs: eyes, lips, irises
FEATURES_MORE = 3.0  # how much more pixels near these count
STYLE_SPREAD = 0.467  # of the generator's latents
RIDGE = 0.5  # of the regression of styles, times the number of rows
JUDGE_RATE = 3.0  # the discriminator's learning rate over the inpainter's (two time scales, Heusel et al. 2017)
KEPT_OUT = 100  # rows that are never learned from, for sheets and measurements


@dataclass(frozen=True)
class InpainterLosses:
    """Weights, and by which step the discriminator has its full one."""

    pixels: float = 4.0
    features: float = 3.0
    person: float = 4.0
    code: float = 3.0
    leak: float = 4.0
    mesh: float = 15.0
    bare: float = 2.0
    fooling: float = 1.0
    tone: float = 4.0
    style: float = 0.5
    offsets: float = 0.05
    fooling_full: int = 500


@dataclass(frozen=True)
class InpainterTeachers:
    """Frozen networks of the losses; ``features`` return maps at the strides TAPS of MobileNetV2."""

    encoder: IdentityEncoder
    recognizer: Recognizer
    landmarks: LandmarkNetwork
    features: MobileNetV2Features
    parser: FaceParser
    code_landmarks: CodeLandmarks


class InpainterObjective(Objective):
    """Args:
    shards: folder of :func:`~anonface.training.portraits.draw_shard`; new files there are read as they appear.
    batch: rows a step.
    """

    def __init__(
        self,
        inpainter: Inpainter,
        discriminator: FeatureDiscriminator,
        teachers: InpainterTeachers,
        shards: Path,
        batch: int = 8,
        weights: InpainterLosses | None = None,
        device: str = "cpu",
    ) -> None:
        self.inpainter, self.discriminator, self.teachers = inpainter, discriminator, teachers
        self.average = copy.deepcopy(inpainter).requires_grad_(False)
        self.shards, self.batch, self.device = shards, batch, device
        self.side = inpainter.params.side
        self.weights = weights or InpainterLosses()
        self._read: dict[Path, Portraits] = {}
        self.rows = load_shards(shards, self._read)

    def modules(self) -> dict[str, nn.Module]:
        return {"inpainter": self.inpainter, "discriminator": self.discriminator, "average": self.average}

    def deployable(self) -> dict[str, dict[str, Tensor]]:
        return {"inpainter": self.average.steering()}

    def rates(self) -> dict[str, float]:
        return {"discriminator": JUDGE_RATE}

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
        codes = torch.where(own[:, None].to(codes.device), codes, t.code_landmarks(codes, mesh))
        inputs = inpainter_inputs(photos, masks, mesh)
        style, offsets = self.inpainter.styles(self.inpainter.told(inputs, mesh, codes))
        drawn = self.inpainter.draw(inputs, style[:, None] + offsets)
        shown = composite(photos, match_contrast(drawn, photos, masks), masks)
        view = (VIEWS[self.side],) * 2
        made = t.features(F.interpolate(shown, view, mode="bilinear"))
        with torch.no_grad():
            real = t.features(F.interpolate(photos, view, mode="bilinear"))
        counts = _weights(masks, inputs)
        fooling, caught, true = hinge_losses(self.discriminator, real, made, masks * counts)
        pairs = zip(made, real, strict=True)
        features = torch.stack([(a[own] - b[own]).abs().mean() / (b.abs().mean() + 1e-3) for a, b in pairs]).mean()
        where, cosine, swapped = frames(mesh), F.cosine_similarity, shown[~own].clamp(-1, 1)
        told = ~own
        told[own.nonzero()[::2, 0]] = True  # of the rows that pixels teach, too, it is asked about half
        seen, own_told = t.recognizer(shown[told], where[told]), own[told]
        off, like_photo = 1 - cosine(seen, known[told]), cosine(seen, self.rows.known[index[told]].to(seen))
        return {
            "pixels": w.pixels * _within(drawn[own] - photos[own], counts[own]),
            "features": w.features * features,
            "person": w.person * off[own_told].mean() * own.float().mean(),
            "swap": w.person * off[~own_told].mean() * (1 - own.float().mean()),
            "leak": w.leak * (like_photo[~own_told] - STRANGERS).clamp_min(0).mean(),
            "code": w.code * (1 - cosine(t.encoder(swapped), codes[~own])).mean(),
            "tone": w.tone * _toned(shown[~own], photos[~own], masks[~own]),
            "mesh": w.mesh * _moved(mesh_in_crop(t.landmarks, swapped), mesh[~own]),
            "bare": w.bare * _hidden(t.parser, swapped, masks[~own]),
            "style": w.style * self._unlike(style, index, own),
            "offsets": w.offsets * offsets.square().mean() / STYLE_SPREAD**2,
            "fooling": w.fooling * min(1.0, 0.2 + step / w.fooling_full) * fooling,
            "_caught": caught,
            "judge": caught + true,
        }

    def _unlike(self, style: Tensor, index: Tensor, own: Tensor) -> Tensor:
        """How far styles [B, 512] are from those of the drawn rows among those under their own codes."""
        wanted = self.rows.styles[index].to(style)
        drawn = own.to(style) * wanted.any(1)
        return (drawn * (style - wanted).square().mean(1)).sum() / drawn.sum().clamp_min(1) / STYLE_SPREAD**2

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
        photos, masks = sized(self.rows, index, self.side, self.device)
        drawn = self.rows.styles[index].any(1)  # their styles tell which way they look
        flip = torch.where((torch.rand(n, generator=rng) < 0.5) & ~drawn, -1.0, 1.0)
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

    @torch.no_grad()
    def _averaged(self, kept: float) -> None:
        for slow, fast in zip(self.average.parameters(), self.inpainter.parameters(), strict=True):
            if fast.requires_grad:
                slow.lerp_(fast, 1 - kept)

    @torch.no_grad()
    def sheet(self) -> NDArray:
        """Held-out photos, what is seen of them, and three people in each: its own, and those of the next rows."""
        show = torch.arange(12)
        photos, masks = sized(self.rows, show, self.side, self.device)
        codes, mesh = self.rows.codes[show].to(self.device).float(), mesh_in_crop(self.teachers.landmarks, photos)
        inputs = inpainter_inputs(photos, masks, mesh)
        people = [codes, *(self.teachers.code_landmarks(codes.roll(by, 0), mesh) for by in (1, 5))]
        drawn = [composite(photos, draw_in_square(self.average, photos, masks, mesh, code), masks) for code in people]
        return tile([photos, inputs[:, :3] + inputs[:, 4:].amax(1, keepdim=True), *drawn])


def sized(rows: Portraits, index: Tensor, side: int, device: str) -> tuple[Tensor, Tensor]:
    """Photos [B, 3, side, side] in [-1, 1] and masks of some rows."""
    photos, masks = (told[index].to(device).float() for told in (rows.photos, rows.masks))
    if photos.shape[-1] != side:
        photos, masks = (F.interpolate(x, (side, side), mode="bilinear", antialias=True) for x in (photos, masks))
    return photos / 127.5 - 1, masks / 255


def _within(difference: Tensor, masks: Tensor) -> Tensor:
    """The mean absolute difference [B, C, S, S] within masks [B, 1, S, S]."""
    return (difference.abs().mean(1, keepdim=True) * masks).sum() / (masks.sum() + 1e-3)


def _weights(masks: Tensor, inputs: Tensor) -> Tensor:
    """How much pixels count: within the mask, and most in eyes and mouth, which make gaze and expression."""
    side = masks.shape[-1] // 32
    features = F.max_pool2d(inputs[:, FEATURE_LINES].amax(1, keepdim=True), 2 * side + 1, 1, side)
    return masks * (1 + FEATURES_MORE * features) + 0.1


def _toned(shown: Tensor, photos: Tensor, masks: Tensor) -> Tensor:
    """How far the coarse colours of faces are from the photos', which the surroundings' light and skin fit."""
    return _within(coarse_colours(shown, masks, CELLS) - coarse_colours(photos, masks, CELLS), masks)


def _moved(mesh: Tensor, wanted: Tensor) -> Tensor:
    """How far landmarks [B, 468, 2] are from those wanted; eyes and lips make the expression and count six times."""
    off = (mesh - wanted).abs().mean((0, 2))
    return off.mean() + 5 * off[[*EYES, *LIPS]].mean()


def _hidden(parser: FaceParser, shown: Tensor, masks: Tensor) -> Tensor:
    """How little of what is drawn the parser takes for a face: hair or glasses of another do not belong there."""
    side = parser.params.side
    logits = parser(F.interpolate(shown, (side, side), mode="bilinear") if shown.shape[-1] != side else shown)
    inside = F.adaptive_avg_pool2d(masks, side // 2)
    return _within(F.softplus(-face_odds(logits))[:, None], inside)


@torch.no_grad()
def fit_code_landmarks(rows: Portraits, landmarks: LandmarkNetwork) -> tuple[CodeLandmarks, float]:
    """The regression between codes and landmarks of the rows that training learns from.

    Returns it with the share of the components' variance that it explains of the other rows.
    """
    every = torch.arange(len(rows)).split(32)
    mesh = torch.cat([mesh_in_crop(landmarks, sized(rows, part, VIEWS[256], "cpu")[0]) for part in every])
    codes, regression = rows.codes.float(), CodeLandmarks()
    regression.fit(codes[KEPT_OUT:], mesh[KEPT_OUT:])
    shapes = regression.shapes(mesh[:KEPT_OUT])
    off = (regression.told(codes[:KEPT_OUT]) - shapes).square().mean()
    return regression, 1 - float(off / shapes.var(0).mean())


@torch.no_grad()
def start_inpainter(
    inpainter: Inpainter, rows: Portraits, landmarks: LandmarkNetwork, networks: PortraitNetworks
) -> None:
    """A start for training: the generator's layers, a head for 128 px by least squares, styles by ridge regression.

    Args:
        rows: those that were drawn tell of which style they are.
        networks: the generator and its mapping.
    """
    generator, side = networks.generator, inpainter.params.side
    inpainter.start_from(generator)
    z = torch.randn(24, 512, generator=torch.Generator().manual_seed(5))
    styles = torch.lerp(networks.mean, networks.mapping(z), TRUNCATION)[:, None].expand(-1, MobileStyleGAN.TIED, -1)
    _start_head(inpainter, styles, generator)
    drawn = rows.styles.float().abs().sum(1).nonzero()[:, 0]
    told, wanted = [], rows.styles[drawn].float()
    meshes = []
    for part in drawn.split(50):
        photos, masks = sized(rows, part, side, "cpu")
        meshes.append(mesh_in_crop(landmarks, photos))
        told.append((inpainter_inputs(photos, masks, meshes[-1]), meshes[-1], rows.codes[part].float()))
    inpainter.mean_mesh.copy_(torch.cat(meshes).mean(0))
    x = torch.cat([inpainter.told(*one) for one in told]).double()
    centre, mean = x.mean(0), wanted.double().mean(0)
    x = x - centre
    gram = x.T @ x
    solution = torch.linalg.solve(gram + RIDGE * len(x) * torch.eye(len(gram)).double(), x.T @ (wanted - mean))
    inpainter.linear.weight.copy_(solution.T * inpainter.params.told**0.5)
    inpainter.linear.bias.copy_(mean - centre @ solution)


def _start_head(inpainter: Inpainter, latents: Tensor, generator: MobileStyleGAN) -> None:
    """Measure how large features are; fit the head's linear part where the generator has none for this side."""
    side, side_of_all = inpainter.params.side, 256
    x = inpainter.conv1(inpainter.input.expand(len(latents), -1, -1, -1), latents[:, 0])
    for level, inject in zip(inpainter.layers, inpainter.inject, strict=True):
        assert isinstance(level, Level) and isinstance(inject, Injection)
        x = level.up(x, latents[:, 0])
        inject.size.fill_(x.square().mean().sqrt())
        x = level.conv2(level.conv1(x, latents[:, 0]), latents[:, 0])
    head = inpainter.head
    if head.weight.any():
        return
    wanted = haar(F.adaptive_avg_pool2d(generator.synthesize(latents, side_of_all), side)).flatten(2)
    x = torch.cat([x, torch.ones_like(x[:, :1])], 1).flatten(2)
    x, wanted = (told.transpose(0, 1).flatten(1).double() for told in (x, wanted))
    gram = x @ x.T
    solution = torch.linalg.solve(gram + 1e-3 * torch.eye(len(gram)).double() * gram.diagonal().mean(), x @ wanted.T)
    head.weight.copy_(solution.T[:, :-1, None, None] / head.LINEAR_RATE)
    head.colour.bias.copy_(solution.T[:, -1])
    nn.init.normal_(head.weight_nonlinear, std=0.01)
