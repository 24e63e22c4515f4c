"""Latent reader: predicts identity code, landmarks and colours of a face from its latents, without rendering it.

It replaces generator, encoder and landmark network in losses. On two CPU cores rendering and analysing a face takes 0.1
seconds, and its gradient twice that; reading its latents takes 0.1 ms. The reader is trained on some thousand faces
with known latents. Its losses are approximations, so their results have to be evaluated on rendered faces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface.backends.latent_editing.backend import ENCODER
from anonface.faces.analysis import LandmarkNetwork, mesh_in_crop
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

SIDE = 256  # px of the stored faces
TONES = 16  # cells along a side of the colour grid
CODE_NOISE = 0.25  # standard deviation of independent noise on each code, in whitened coordinates
ENCODING_NOISE = 0.1  # standard deviation of the error of re-encoding a rendered face
SEED = 11
RIDGE = 300.0
CORNERS, INNER_LIPS, OUTER_EYES = (61, 291), (13, 14), (33, 263)  # rows of the mesh
LANDMARK_SPREAD = 0.3  # standard deviation of the landmarks' components, about that of the other attributes
KEY_IDENTITY = 6.0  # weight of the distance of codes to the key's identity
R1 = 0.5  # weight of the discriminator's gradient penalty
WITHIN = 3.0  # whitened coordinates beyond this are penalised


@dataclass
class ReadBank:
    """Rendered faces with their latents and attributes.

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
        """Random indices [count] of training faces."""
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
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ReadBank:
    """The first ``count`` faces of the bank in ``file``; missing ones are drawn and saved first.

    Args:
        coordinates: defines the whitened coordinates of the codes and maps codes to the generator's latents.
    """

    @torch.inference_mode()
    def draw(done: int) -> dict[str, Tensor]:
        rng = row_generator(SEED, done)
        codes = coordinates.to_u(draw_latents(mapping, 4, rng, n_latents=CODES))
        codes = (codes + CODE_NOISE * torch.randn(codes.shape, generator=rng)).half().float()
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
    """Predicted attributes of codes: identity [B, 448] of unit length, mesh [B, 468, 2], tones [B, 3, 16, 16]."""

    identity: Tensor
    mesh: Tensor
    tones: Tensor


class LatentReader(nn.Module):
    """Whitened codes [B, 14, 512] -> :class:`Readings`, from the first ``components`` coordinates of each code."""

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


def reading_losses(read: Readings, bank: ReadBank, index: Tensor) -> dict[str, Tensor]:
    """Distances of readings from the known attributes of faces."""
    return {
        "identity": theta_minus(read.identity, bank.identity[index]),
        "mesh": 40 * (read.mesh - bank.mesh[index]).abs().mean(),
        "tones": 2 * (read.tones - bank.tones[index]).abs().mean(),
    }


class ReaderObjective(Objective):
    """Trains a reader and logs its losses on held-out faces."""

    NOISE = 0.1  # on codes, for a smooth reader

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


# --- Training through a reader --------------------------------------------------------------------------------


class ReadInversion(Objective):
    """Trains the encoder of DBAF and HFORD on faces with known codes.

    Losses compare the codes, and the reader's attributes of the codes. Half of the faces are relit; their targets are
    those of the original faces.
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
        error = self.encoder.to_w(codes) - self.encoder.to_w(self.bank.codes[index].float())
        return {
            "codes": 2 * error.square().mean() / self.encoder.std.square().mean(),  # unexplained share of the variance
            **reading_losses(self.reader(codes), self.bank, index),
        }


class CodeDiscriminator(nn.Module):
    """A discriminator of codes [B, 14, 512] -> [B], from the first ``components`` coordinates of each code."""

    def __init__(self, components: int) -> None:
        super().__init__()
        self.components = components
        hidden = 512
        self.layers = nn.Sequential(
            nn.Linear(CODES * components, hidden), nn.LeakyReLU(0.2),
            nn.Linear(hidden, hidden), nn.LeakyReLU(0.2),
            nn.Linear(hidden, 1),
        )  # fmt: skip

    def forward(self, codes: Tensor) -> Tensor:
        return self.layers(codes[..., : self.components].flatten(1))[:, 0]


def fit_linear_readings(codes: Tensor, wanted: Tensor) -> Tensor:
    """Ridge regression of numbers [N, n] on latents [N, k, C]: coefficients [k * C + 1, n], the last row the constants.

    Sex, age and skin tone are nearly linear in the latents. With so few faces this is more accurate than a deep
    network.
    """
    x = F.pad(codes.flatten(1).double(), (0, 1), value=1.0)
    weight = RIDGE * torch.eye(x.shape[1], dtype=torch.float64, device=x.device)
    return torch.linalg.solve(x.T @ x + weight, x.T @ wanted.double()).float()


def attribute_directions(codes: Tensor, identity: Tensor, mesh: Tensor, count: int) -> Tensor:
    """``count`` columns of an editor's ``readings``, from latents [N, 14, 512] and the attributes of their faces.

    With few faces there are fewer components of the landmarks; the missing columns are 0.
    """
    known = torch.cat([identity[:, :KEPT], mouth(mesh)], dim=1)
    points = mesh.flatten(1) - mesh.flatten(1).mean(0)
    components, _, _ = torch.linalg.svd(points, full_matrices=False)
    components = LANDMARK_SPREAD * len(mesh) ** 0.5 * components[:, : count - known.shape[1]]
    attributes = torch.cat([known, components], dim=1)
    some = codes[:, FEATURE_CODES, :READ_COORDINATES]
    lines = fit_linear_readings(some, F.pad(attributes, (0, count - attributes.shape[1])))
    return lines[:-1].unflatten(0, some.shape[1:])


class ReadEditing(Objective):
    """Trains an editor's disentangler and rewriter through a reader, with all losses of both stages together.

    The attributes of the original codes are read by the same reader, so its systematic errors cancel. Losses of
    difference alone are not enough: a reader trained on few faces would accept one and the same synthetic face for
    everybody as different. So the edited codes are also attracted to the key's identity, while sex, age, landmarks and
    colours attract them to the photo. A discriminator of codes keeps edited codes like the codes of faces.

    Args:
        codes: the encoder's codes of the bank's faces, [N, 14, 512].
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
        reader.train().requires_grad_(False)  # with drop-out, against adversarial codes
        self.components = min(reader.components, codes.shape[2])
        self.discriminator = CodeDiscriminator(self.components).to(codes.device)
        learnt = slice(0, len(codes) - HELD_OUT)
        self.conditions = fit_linear_readings(codes[learnt, :, : self.components], bank.identity[learnt, :KEPT])
        editor = editing.networks.editor
        known = codes[learnt], bank.identity[learnt], bank.mesh[learnt]
        editor.readings.copy_(attribute_directions(*known, count=editor.readings.shape[2]))

    def modules(self) -> dict[str, nn.Module]:
        return {**self.editing.modules(), f"{self.editing.name}-codes": self.discriminator}

    def _conditions(self, codes: Tensor) -> Tensor:
        return F.pad(codes[..., : self.components].flatten(1), (0, 1), value=1.0) @ self.conditions

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        editing, networks = self.editing, self.editing.networks
        codes = self.codes[self.bank.draw(self.batch, rng)].float()
        with torch.no_grad():
            original = self.reader(codes)
        key, second, wrong = (draw_key_vectors(editing.mapping, networks.encoder, len(codes), rng) for _ in range(3))
        identity, attributes = networks.editor.split(codes)
        mixed = identity.roll(1, 0) + attributes  # (DBAF 5)
        first, again = (networks.edit(codes, k) for k in (key, second))  # (DBAF 19 and 20)
        encoded = first + ENCODING_NOISE * torch.randn(codes.shape, generator=rng)
        right, false = (networks.edit(encoded, k) for k in (key, wrong))  # (DBAF 21-23)
        predicted = [self.reader(made) for made in (mixed, first, again, right, false)]
        with torch.no_grad():
            key_codes = torch.cat([key_identity(codes, key), key_identity(codes, second), key_identity(encoded, wrong)])
            key_identities = self.reader(key_codes).identity
        synthetic = [predicted[i].identity for i in (1, 2, 4)]
        own = original.identity
        to_source, to_own = (1 - F.cosine_similarity(predicted[0].identity, who) for who in (own.roll(1, 0), own))
        made = torch.cat([mixed, first, again, right, false])
        edited = torch.cat([first, again, false])
        kept = self._conditions(edited) - self._conditions(codes).repeat(3, 1)
        adversarial = adversarial_losses(self.discriminator, codes, edited, penalty=R1)
        return {
            "contrast": torch.cat([to_source - editing.NEAR, editing.FAR - to_own]).clamp_min(0).mean(),
            "different": 2 * torch.stack([theta_plus(own, x) for x in synthetic]).mean(),
            "recovered": theta_minus(predicted[3].identity, original.identity) + 0.3 * (right - codes).square().mean(),
            "diverse": 2 * torch.stack([theta_plus(x, y) for x, y in combinations(synthetic, 2)]).mean(),
            "mesh": 60 * torch.stack([(one.mesh - original.mesh).abs().mean() for one in predicted]).mean(),
            "tones": 2 * torch.stack([(one.tones - original.tones).abs().mean() for one in predicted]).mean(),
            "conditions": 40 * kept.square().sum(1).mean(),
            "fooling": 0.1 * adversarial.fooling.mean(),  # (DBAF 37)
            "catching": adversarial.caught.mean() + adversarial.real + adversarial.slope,  # (DBAF 38)
            "person": 3 * theta_minus(torch.cat(synthetic), key_identities),
            "cast": KEY_IDENTITY * (edited - key_codes)[..., : self.components].square().mean(),
            "regular": 0.1 * editing.regular(made),
            "within": (made.abs() - WITHIN).clamp_min(0).square().mean(),
        }


def mouth(mesh: Tensor) -> Tensor:
    """Landmarks [B, 468, 2] -> opening of the mouth, half its width, and half the drop of its corners, [B, 3].

    The unit is the distance between the outer corners of the eyes.
    """
    between = lambda a, b: (mesh[:, a] - mesh[:, b]).norm(dim=1)  # noqa: E731
    hanging = (mesh[:, list(CORNERS)].mean(1) - mesh[:, INNER_LIPS[0]])[:, 1]
    return torch.stack([between(*INNER_LIPS), between(*CORNERS) / 2, hanging / 2], 1) / between(*OUTER_EYES)[:, None]
