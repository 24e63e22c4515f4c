"""What a face would show, read off the latents that draw it: a stand-in for generator, encoder and landmarks in losses.

To draw a face and to look at it costs a tenth of a second of two CPU cores, and its gradient twice that; to read its
latents costs a ten-thousandth. A reader learns from some thousand faces whose latents are known what their codes,
landmarks and colours are. Losses that look through it are approximations, so their results are judged by drawn faces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface.backends.eyes import LandmarkNetwork, mesh_in_crop
from anonface.backends.latent_editing import ENCODER
from anonface.models.identity import KEPT, IdentityEncoder
from anonface.models.inversion import InversionEncoder
from anonface.models.latent_editing import CODES, FEATURE_CODES, READ_COORDINATES, key_identity
from anonface.models.mobile_stylegan import MappingNetwork, MobileStyleGAN
from anonface.training.adversarial import adversarial_losses
from anonface.training.data import (
    HELD_OUT,
    draw_latents,
    drawn_rows,
    levels,
    recompressed,
    relit,
    rounded,
    row_generator,
)
from anonface.training.ifadit import theta_minus, theta_plus
from anonface.training.latent_editing import EditingObjective, draw_key_vectors
from anonface.training.loop import Objective

SIDE = 256  # px of the faces that are kept
TONES = 16  # cells along the side, of the colours that are read
UNLIKE = 0.25  # spread by which each code goes its own way, in whitened coordinates
ENCODED_ANEW = 0.1  # spread by which codes differ that are read off the face that they drew
CORNERS, INNER_LIPS, OUTER_EYES = (61, 291), (13, 14), (33, 263)  # rows of the mesh
LAYOUT_SPREAD = 0.3  # to which components of the landmarks are scaled, about that of the other readings
CASTING = 6.0  # weight of how far codes are from those of the person whom the key casts
R1 = 0.5  # weight of the judge's gradient penalty
WITHIN = 3.0  # whitened coordinates beyond it are no face's


@dataclass
class ReadBank:
    """Faces with what is known of them.

    Attributes:
        images: uint8 [N, 3, S, S].
        codes: whitened [N, 14, 512], half precision.
        identity, mesh, tones: [N, 448] of unit length, [N, 468, 2] in shares of the side, [N, 3, 16, 16] in [-1, 1].
    """

    images: Tensor
    codes: Tensor
    identity: Tensor
    mesh: Tensor
    tones: Tensor

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """Indices [count] of faces to learn from."""
        return torch.randint(len(self.images) - HELD_OUT, (count,), generator=rng)

    def faces(self, index: Tensor) -> Tensor:
        """[n, 3, S, S] in [-1, 1]."""
        return self.images[index].float() / 127.5 - 1

    def to(self, device: str) -> ReadBank:
        return ReadBank(*(part.to(device) for part in vars(self).values()))


def load_read_bank(
    file: Path,
    generator: MobileStyleGAN,
    mapping: MappingNetwork,
    coordinates: InversionEncoder,
    identity: IdentityEncoder,
    landmarks: LandmarkNetwork,
    count: int,
    seed: int = 11,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ReadBank:
    """The bank in ``file``, drawn first where the file is missing or holds fewer faces than ``count``.

    Args:
        coordinates: whose whitened coordinates the codes are in, and who places them on the generator's latents.
    """

    @torch.inference_mode()
    def draw(done: int) -> dict[str, Tensor]:
        rng = row_generator(seed, done)
        codes = coordinates.to_u(draw_latents(mapping, 4, rng, n_latents=CODES))
        codes = (codes + UNLIKE * torch.randn(codes.shape, generator=rng)).half().float()
        render = generator.synthesize(coordinates.to_latents(codes), SIDE).clamp(-1, 1)
        return {
            "images": levels(render),
            "codes": codes.half(),
            "identity": F.normalize(identity(render), dim=1),
            "mesh": torch.cat([mesh_in_crop(landmarks, one[None]) for one in render]),
            "tones": F.adaptive_avg_pool2d(render, TONES),
        }

    return ReadBank(**drawn_rows(file, count, draw, 1000, progress))


@dataclass(frozen=True)
class Readings:
    """What codes show: identity [B, 448] of unit length, mesh [B, 468, 2], tones [B, 3, 16, 16]."""

    identity: Tensor
    mesh: Tensor
    tones: Tensor


class LatentReader(nn.Module):
    """Codes [B, 14, 512], whitened -> :class:`Readings`; of each code the first ``components`` coordinates count."""

    def __init__(self, components: int = 96, hidden: int = 1024, blocks: int = 3) -> None:
        super().__init__()
        self.components = components
        self.first = nn.Linear(CODES * components, hidden)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, hidden), nn.GELU(), nn.Dropout(0.1))
            for _ in range(blocks)
        )
        self.heads = nn.ModuleList(nn.Linear(hidden, size) for size in (448, 468 * 2, 3 * TONES * TONES))
        self.register_buffer("face", torch.zeros(468 * 2))
        self.register_buffer("tone", torch.zeros(3 * TONES * TONES))

    face: Tensor
    tone: Tensor

    def forward(self, codes: Tensor) -> Readings:
        x = self.first(codes[..., : self.components].flatten(1))
        for block in self.blocks:
            x = x + block(x)
        identity, mesh, tones = (head(x) for head in self.heads)
        return Readings(
            F.normalize(identity, dim=1),
            (0.1 * mesh + self.face).unflatten(1, (468, 2)),
            (tones + self.tone).unflatten(1, (3, TONES, TONES)),
        )


def reading_losses(told: Readings, bank: ReadBank, index: Tensor) -> dict[str, Tensor]:
    """How far readings are from what is known of these faces."""
    return {
        "identity": theta_minus(told.identity, bank.identity[index]),
        "mesh": 40 * (told.mesh - bank.mesh[index]).abs().mean(),
        "tones": 2 * (told.tones - bank.tones[index]).abs().mean(),
    }


class ReaderObjective(Objective):
    """Trains a reader; what it makes of faces it never saw is logged."""

    NOISE = 0.1  # on codes, so that near codes read alike

    def __init__(self, reader: LatentReader, bank: ReadBank, batch: int = 256) -> None:
        self.reader, self.bank, self.batch = reader, bank, batch
        reader.face.copy_(bank.mesh.mean(0).flatten())
        reader.tone.copy_(bank.tones.mean(0).flatten())

    def modules(self) -> dict[str, nn.Module]:
        return {"reader": self.reader}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        index = self.bank.draw(self.batch, rng)
        codes = self.bank.codes[index].float()
        losses = reading_losses(
            self.reader(codes + self.NOISE * torch.randn(codes.shape, generator=rng)), self.bank, index
        )
        if step % 50 == 0:
            self.reader.eval()
            held = torch.arange(len(self.bank.images) - HELD_OUT, len(self.bank.images))
            with torch.no_grad():
                unseen = reading_losses(self.reader(self.bank.codes[held].float()), self.bank, held)
            self.reader.train()
            self._unseen = {f"_unseen {name}": value for name, value in unseen.items()}
        return {**losses, **self._unseen}


# --- What is trained through a reader --------------------------------------------------------------------------------


class ReadInversion(Objective):
    """Trains the encoder of DBAF and HFORD on faces whose codes are known; half of them relit, as no codes make it.

    Codes are told, and what they show is read; of relit faces what they showed before.
    """

    def __init__(self, encoder: InversionEncoder, reader: LatentReader, bank: ReadBank, batch: int) -> None:
        self.encoder, self.bank, self.batch = encoder, bank, batch
        self.reader = reader.eval().requires_grad_(False)

    def modules(self) -> dict[str, nn.Module]:
        return {ENCODER: self.encoder}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        index = self.bank.draw(self.batch, rng)
        plain, other = self.bank.faces(index).tensor_split([self.batch // 2])
        faces = recompressed(rounded(torch.cat([plain, relit(other, rng)])), rng)
        codes, _ = self.encoder(faces)
        told = self.encoder.to_w(codes) - self.encoder.to_w(self.bank.codes[index].float())
        return {
            "codes": 2 * told.square().mean() / self.encoder.std.square().mean(),  # share of variance left open
            **reading_losses(self.reader(codes), self.bank, index),
        }


class CodeDiscriminator(nn.Module):
    """A discriminator of codes [B, 14, 512] -> [B]; of each the first ``components`` coordinates count."""

    def __init__(self, components: int = 96, hidden: int = 512) -> None:
        super().__init__()
        self.components = components
        self.layers = nn.Sequential(
            nn.Linear(CODES * components, hidden), nn.LeakyReLU(0.2),
            nn.Linear(hidden, hidden), nn.LeakyReLU(0.2),
            nn.Linear(hidden, 1),
        )  # fmt: skip

    def forward(self, codes: Tensor) -> Tensor:
        return self.layers(codes[..., : self.components].flatten(1))[:, 0]


def fit_linear_readings(codes: Tensor, wanted: Tensor, ridge: float = 300.0) -> Tensor:
    """What reads numbers [N, n] off latents [N, k, C], by ridge regression: [k * C + 1, n].

    Sex, age and tone lie along lines of latents; a deep reader of so few faces finds them less surely.
    """
    told = F.pad(codes.flatten(1).double(), (0, 1), value=1.0)
    weight = ridge * torch.eye(told.shape[1], dtype=torch.float64, device=told.device)
    return torch.linalg.solve(told.T @ told + weight, told.T @ wanted.double()).float()


def attribute_directions(codes: Tensor, identity: Tensor, mesh: Tensor, count: int) -> Tensor:
    """An editor's ``readings``, so many: of latents [N, 14, 512] and what their faces show; 0 past what they tell."""
    known = torch.cat([identity[:, :KEPT], mouth(mesh)], dim=1)
    points = mesh.flatten(1) - mesh.flatten(1).mean(0)
    layout, _, _ = torch.linalg.svd(points, full_matrices=False)  # principal components
    layout = LAYOUT_SPREAD * len(mesh) ** 0.5 * layout[:, : count - known.shape[1]]
    shown = torch.cat([known, layout], dim=1)
    some = codes[:, FEATURE_CODES, :READ_COORDINATES]
    lines = fit_linear_readings(some, F.pad(shown, (0, count - shown.shape[1])))  # few faces have few components
    return lines[:-1].unflatten(0, some.shape[1:])


class ReadEditing(Objective):
    """Trains an editor's disentangling and rewriting, all losses of both stages at once, through a reader.

    What the codes of a face show before is told by the same reader, whose errors so fall out. Differences alone teach
    no reader of few faces who looks different: it takes for many what to the eye is one stranger for all. So the
    stranger is led towards the person whom the key casts; sex, age, landmarks and colours draw that person towards
    the photo again. A judge of codes keeps the edited ones as faces' codes are.

    Args:
        codes: what the encoder makes of the bank's faces, [N, 14, 512].
    """

    def __init__(
        self,
        editing: EditingObjective,
        reader: LatentReader,
        bank: ReadBank,
        codes: Tensor,
        batch: int = 64,
    ) -> None:
        self.editing, self.reader, self.bank, self.codes, self.batch = editing, reader, bank, codes, batch
        reader.train().requires_grad_(False)  # with drop-out, so that none of its habits is played to
        self.components = min(reader.components, codes.shape[2])
        self.judge = CodeDiscriminator(self.components).to(codes.device)
        learnt = slice(0, len(codes) - HELD_OUT)
        self.conditions = fit_linear_readings(codes[learnt, :, : self.components], bank.identity[learnt, :KEPT])
        editor = editing.networks.editor
        known = codes[learnt], bank.identity[learnt], bank.mesh[learnt]
        editor.readings.copy_(attribute_directions(*known, count=editor.readings.shape[2]))

    def modules(self) -> dict[str, nn.Module]:
        return {**self.editing.modules(), f"{self.editing.name}-codes": self.judge}

    def _conditions(self, codes: Tensor) -> Tensor:
        return F.pad(codes[..., : self.components].flatten(1), (0, 1), value=1.0) @ self.conditions

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        editing, networks = self.editing, self.editing.networks
        codes = self.codes[self.bank.draw(self.batch, rng)].float()
        with torch.no_grad():
            shown = self.reader(codes)
        key, second, wrong = (draw_key_vectors(editing.mapping, networks.encoder, len(codes), rng) for _ in range(3))
        identity, attributes = networks.editor.split(codes)
        mixed = identity.roll(1, 0) + attributes  # (DBAF 5)
        hidden, again = (networks.edit(codes, k) for k in (key, second))  # (DBAF 19 and 20)
        encoded = hidden + ENCODED_ANEW * torch.randn(codes.shape, generator=rng)
        right, false = (networks.edit(encoded, k) for k in (key, wrong))  # (DBAF 21-23)
        looks = [self.reader(made) for made in (mixed, hidden, again, right, false)]
        with torch.no_grad():
            led = torch.cat([key_identity(codes, key), key_identity(codes, second), key_identity(encoded, wrong)])
            people = self.reader(led).identity
        strangers = [looks[i].identity for i in (1, 2, 4)]
        own = shown.identity
        from_giver, from_own = (1 - F.cosine_similarity(looks[0].identity, who) for who in (own.roll(1, 0), own))
        made = torch.cat([mixed, hidden, again, right, false])
        strange = torch.cat([hidden, again, false])
        kept = self._conditions(strange) - self._conditions(codes).repeat(3, 1)
        judged = adversarial_losses(self.judge, codes, strange, penalty=R1)
        return {
            "contrast": torch.cat([from_giver - editing.NEAR, editing.FAR - from_own]).clamp_min(0).mean(),
            "different": 2 * torch.stack([theta_plus(own, x) for x in strangers]).mean(),
            "recovered": theta_minus(looks[3].identity, shown.identity) + 0.3 * (right - codes).square().mean(),
            "diverse": 2 * torch.stack([theta_plus(x, y) for x, y in combinations(strangers, 2)]).mean(),
            "mesh": 60 * torch.stack([(look.mesh - shown.mesh).abs().mean() for look in looks]).mean(),
            "tones": 2 * torch.stack([(look.tones - shown.tones).abs().mean() for look in looks]).mean(),
            "conditions": 40 * kept.square().sum(1).mean(),
            "fooling": 0.1 * judged.fooling.mean(),  # (DBAF 37)
            "catching": judged.caught.mean() + judged.real + judged.slope,  # (DBAF 38)
            "person": 3 * theta_minus(torch.cat(strangers), people),
            "cast": CASTING * (strange - led)[..., : self.components].square().mean(),
            "regular": 0.1 * editing.regular(made),
            "within": (made.abs() - WITHIN).clamp_min(0).square().mean(),
        }


def mouth(mesh: Tensor) -> Tensor:
    """Landmarks [B, 468, 2] -> how far a mouth is open, how wide it is, how much its corners hang, [B, 3].

    In distances of the outer corners of the eyes; the last two count by half.
    """
    between = lambda a, b: (mesh[:, a] - mesh[:, b]).norm(dim=1)  # noqa: E731
    hanging = (mesh[:, list(CORNERS)].mean(1) - mesh[:, INNER_LIPS[0]])[:, 1]
    return torch.stack([between(*INNER_LIPS), between(*CORNERS) / 2, hanging / 2], 1) / between(*OUTER_EYES)[:, None]
