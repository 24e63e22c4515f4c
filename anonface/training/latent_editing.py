"""Training of DBAF and HFORD: first their common encoder, then the networks of each method in two stages.

Stage one disentangles: it combines the identity of one face with the attributes of another, without a key. Stage two
anonymizes under two keys, and recovers under the right key and two wrong ones. Compositing, 8-bit rounding, jittered
re-alignment and compression lie between. Recovery sees only the anonymized picture and encodes it again.

Equations are cited as (DBAF n, HFORD m). The papers have the same losses and weights, with two differences. DBAF sums
losses over pictures, HFORD averages them. DBAF regularises latents towards their mean, HFORD towards the first one.
Norms here are root mean squares, and sums over codes are means, so that the weights do not depend on sizes.

Substitutes: ArcFace is the identity encoder with its two trunks; LPIPS is a distance of MobileNetV2 features; the face
parser is the one trained here; Ranger is Adam. One loss is added: occluders must be preserved. It is trained with
pasted occluders of known masks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from anonface.backends.latent_editing.backend import ENCODER
from anonface.faces.blend import composite
from anonface.faces.colour_transfer import match_tones
from anonface.models.attribute_encoder import MobileNetV2Features, perceptual
from anonface.models.discriminator import Discriminator
from anonface.models.face_parser import FACE, FaceParser, face_odds
from anonface.models.identity import IdentityEncoder
from anonface.models.inversion import CODE_OF_LATENT, Features, InversionEncoder
from anonface.models.latent_editing import CODES, LEVELS, FaceEditor
from anonface.models.mobile_stylegan import MappingNetwork, MobileStyleGAN
from anonface.training.adversarial import adversarial_losses
from anonface.training.data import FacePool, draw_latents, jitter, mirrored, recompressed, relit, rounded, tile
from anonface.training.ifadit import theta_minus, theta_plus
from anonface.training.loop import Objective
from anonface.training.occluders import occlude

SIDE = 256  # px of faces and renders
COVERED = 0.5  # share of the faces with pasted occluders
BORDER = 9  # px over which the border of a mask is blurred


@dataclass(frozen=True)
class Teachers:
    """Frozen networks of the losses."""

    identity: IdentityEncoder
    features: MobileNetV2Features
    parser: FaceParser

    def parts(self, faces: Tensor) -> Tensor:
        """F_p: probabilities of the parts of the face only, [B, 5, 128, 128] (HFORD III-E)."""
        return self.parser(faces).softmax(1)[:, list(FACE)]

    def mask(self, faces: Tensor) -> Tensor:
        """Soft mask of the face without occluders, within which it is replaced, [B, 1, 256, 256]."""
        probability = torch.sigmoid(face_odds(self.parser(faces)))[:, None]
        whole = F.interpolate(probability, faces.shape[-2:], mode="bilinear", align_corners=False)
        return F.avg_pool2d(whole, BORDER, 1, BORDER // 2)


# --- The encoder -----------------------------------------------------------------------------------------------------


class InversionObjective(Objective):
    """Trains the encoder to predict the codes of a drawn face, and codes whose render looks like the face.

    Half of each batch is relit. No codes give exactly these faces, so only their renders are compared. As in e4e (Tov
    et al. 2021), codes are regularised towards the first one, where editing works better.
    """

    def __init__(
        self,
        encoder: InversionEncoder,
        generator: MobileStyleGAN,
        mapping: MappingNetwork,
        teachers: Teachers,
        batch: int = 2,
    ) -> None:
        self.encoder, self.generator, self.mapping = encoder, generator, mapping
        self.teachers, self.batch = teachers, batch

    def modules(self) -> dict[str, nn.Module]:
        return {ENCODER: self.encoder}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        w, drawn = self._draw(self.batch, rng)
        half = self.batch // 2
        faces = torch.cat([drawn[:half], relit(mirrored(drawn[half:], rng), rng)])
        seen = recompressed(rounded(faces), rng)
        with torch.autocast(faces.device.type, torch.bfloat16, enabled=faces.device.type == "cuda"):
            codes, _ = self.encoder(seen)
            render = self.generator.synthesize(self.encoder.to_latents(codes), SIDE)
            perceived = perceptual(self.teachers.features, render, faces)
            identities = [self.teachers.identity(picture) for picture in (render, faces)]
        error = self.encoder.to_w(codes[:half]) - w[:half]
        losses = {
            "codes": error.square().mean() / self.encoder.std.square().mean(),  # unexplained share of the variance
            "pixels": (render - faces).abs().mean(),
            "perceived": perceived,
            "identity": theta_minus(*identities),
            "offsets": 0.02 * root_mean_square(codes[:, 1:] - codes[:, :1]).mean(),
        }
        return {name: value.float() for name, value in losses.items()}

    @torch.no_grad()
    def _draw(self, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Latents [count, 14, 512], one per code, and their faces."""
        w = draw_latents(self.mapping, count, rng, n_latents=CODES)
        return w, self.generator.synthesize(w[:, list(CODE_OF_LATENT)], SIDE).clamp(-1, 1)

    @torch.no_grad()
    def sheet(self) -> NDArray:
        """Faces and the renders of their codes."""
        _, faces = self._draw(4, torch.Generator().manual_seed(99))
        return tile([faces, self.generator.synthesize(self.encoder.to_latents(self.encoder(faces)[0]), SIDE)])


# --- Faces with occluders --------------------------------------------------------------------------------------------


class CoveredPool(FacePool):
    """A pool of faces, some with pasted occluders, and the masks of what the occluders hide.

    Occluders are drawn on the CPU, once for each newly rendered face. The pool stays on the device.
    """

    def __init__(
        self, generator: MobileStyleGAN, mapping: MappingNetwork, parser: FaceParser, size: int, fresh: int
    ) -> None:
        super().__init__(generator, mapping, size, fresh, SIDE)
        self.parser = parser
        self.images = self.images.new_empty(0, 4, SIDE, SIDE)

    @torch.no_grad()
    def render(self, count: int, rng: torch.Generator) -> Tensor:
        """``count`` new faces, uint8 [count, 4, S, S]: RGB, and 255 where an occluder hides the face."""
        faces = super().render(count, rng)
        logits = F.interpolate(self.parser(faces.float() / 127.5 - 1), (SIDE, SIDE), mode="bilinear")
        pictures = faces.permute(0, 2, 3, 1).cpu().numpy()
        return _covered(pictures, logits.argmax(1).byte().cpu().numpy(), rng).to(faces.device)

    def pairs(self, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Faces [count, 3, S, S] in [-1, 1], augmented, and masks of what occluders hide, [count, 1, S, S] in 0..1."""
        pictures, covers = self.pick(count, rng).split([3, 1], dim=1)
        return relit(pictures, rng), (covers + 1) / 2


def _covered(pictures: NDArray[np.uint8], labels: NDArray[np.uint8], rng: torch.Generator) -> Tensor:
    """Faces uint8 [N, S, S, 3] and their classes [N, S, S] -> the result of :meth:`CoveredPool.render`."""
    chance = np.random.default_rng(int(torch.randint(2**62, (1,), generator=rng)))
    result = np.zeros((*pictures.shape[:3], 4), np.uint8)
    for i, (picture, seen) in enumerate(zip(pictures / np.float32(255), labels, strict=True)):
        shown, after = picture, seen
        if chance.random() < COVERED:
            other = lambda: (pictures[j := chance.integers(len(pictures))] / np.float32(255), labels[j])  # noqa: E731
            shown, after = occlude(picture, seen, other, chance)
        result[i, :, :, :3] = (255 * shown.clip(0, 1)).round()
        result[i, :, :, 3] = 255 * (np.isin(seen, FACE) & ~np.isin(after, FACE))
    return torch.from_numpy(result).permute(0, 3, 1, 2).contiguous()


def draw_key_vectors(mapping: MappingNetwork, encoder: InversionEncoder, count: int, rng: torch.Generator) -> Tensor:
    """Random keys distributed like those of ``key_vectors``, in the encoder's coordinates, [count, 3, 512]."""
    unit = torch.randint(256, (count * len(LEVELS), encoder.params.style), generator=rng) / 127.5 - 1
    with torch.no_grad():
        return encoder.to_u(mapping(unit.to(encoder.mean.device))).unflatten(0, (count, len(LEVELS)))


# --- The two stages --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LossWeights:
    """The weights of a stage's losses; the weight of the adversarial loss is 1."""

    identity: float
    pixels: float
    perceived: float = 1.0
    parts: float = 0.1
    regular: float = 0.1
    covers: float = 1.0  # not in the papers


@dataclass(frozen=True)
class Made:
    """The results of a stage for a batch.

    Attributes:
        renders: the generator's pictures [B, 3, S, S], one entry for each kind.
        wanted: the targets of each kind, [B, 3, S, S].
        covers: masks of what occluders hide in the targets, [B, 1, S, S].
        codes: the codes of all renders.
        identity: the stage's identity losses.
    """

    renders: Sequence[Tensor]
    wanted: Sequence[Tensor]
    covers: Sequence[Tensor]
    codes: Tensor
    identity: dict[str, Tensor]


class EditingObjective(Objective):
    """Trains an editor and a discriminator; encoder and generator are frozen.

    Args:
        networks: the editor to train, with its encoder and generator.
        faces: the training faces.
        first_stage: the number of steps of stage one; later steps belong to stage two.
    """

    name: str
    NEAR, FAR = (
        0.1,
        0.8,
    )  # tau+ and tau- of (DBAF 10, HFORD 6), as distances of identity codes; the papers give no values
    FIRST = LossWeights(identity=1.0, pixels=3.5)  # (DBAF 18, HFORD III-F)
    SECOND = LossWeights(identity=2.0, pixels=0.05)  # (DBAF 39, HFORD IV-A)
    GAMMA, R1_EVERY = 10.0, 8  # weight and interval in steps of the gradient penalty (lazy regularisation)

    def __init__(
        self,
        networks: FaceEditor,
        mapping: MappingNetwork,
        teachers: Teachers,
        faces: CoveredPool,
        discriminator: Discriminator,
        first_stage: int,
        batch: int = 2,
    ) -> None:
        self.networks, self.mapping, self.teachers, self.faces = networks, mapping, teachers, faces
        self.discriminator, self.first_stage, self.batch = discriminator, first_stage, batch
        networks.encoder.requires_grad_(False)
        networks.generator.requires_grad_(False)

    @abstractmethod
    def over(self, values: Sequence[Tensor]) -> Tensor:
        """Reduce the losses of all pictures, or pairs of pictures, of a face to one number."""

    @abstractmethod
    def regular(self, codes: Tensor) -> Tensor:
        """Regularisation of codes [B, 14, 512]."""

    def modules(self) -> dict[str, nn.Module]:
        return {self.name: self.networks.editor, f"{self.name}-discriminator": self.discriminator}

    def deployable(self) -> dict[str, dict[str, Tensor]]:
        return {self.name: self.networks.editor.state_dict()}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        faces, covers = self.faces.pairs(self.batch, rng)
        first = step < self.first_stage
        weights = self.FIRST if first else self.SECOND
        with torch.autocast(faces.device.type, torch.bfloat16, enabled=faces.device.type == "cuda"):
            made = self.disentangle(faces, covers) if first else self.anonymize(faces, covers, rng)
            images = [self._image(*kind) for kind in zip(made.renders, made.wanted, made.covers, strict=True)]
        judged = self.adversarial(faces, torch.cat(list(made.renders)).float(), len(made.renders), step)
        losses = {
            **{name: weights.identity * value for name, value in made.identity.items()},
            **{name: getattr(weights, name) * self.over([image[name] for image in images]) for name in images[0]},
            "regular": weights.regular * self.regular(made.codes),
            **judged,
        }
        return {name: value.float() for name, value in losses.items()}

    def disentangle(self, faces: Tensor, covers: Tensor) -> Made:
        """Stage one (DBAF III-C, HFORD III-F): half of the faces keep their own identity, half get another one."""
        with torch.no_grad():
            codes, features = self.networks.encoder(faces)
            own = self.teachers.identity(faces)
        half = len(faces) // 2
        who = torch.arange(len(faces))
        who[half:] = who.roll(1)[half:]
        identity, attributes = self.networks.editor.split(codes)
        mixed = identity[who] + attributes  # (DBAF 5)
        render = self.networks.render(mixed, features, SIDE)  # (DBAF 9)
        distance = 1 - F.cosine_similarity(self.teachers.identity(render), own)  # (DBAF 11, HFORD 7)
        excess = torch.cat([distance[:half] - self.NEAR, self.FAR - distance[half:]])
        contrast = excess.clamp_min(0).mean()  # (DBAF 10, HFORD 6)
        return Made([render], [faces], [covers], mixed, {"contrast": contrast})

    def anonymize(self, faces: Tensor, covers: Tensor, rng: torch.Generator) -> Made:
        """Stage two (DBAF III-D, HFORD III-E): anonymize under two keys; recover under the first and two wrong keys."""
        key, second, wrong, other = (
            draw_key_vectors(self.mapping, self.networks.encoder, len(faces), rng) for _ in range(4)
        )
        with torch.no_grad():
            encoded, own, mask = self.networks.encoder(faces), self.teachers.identity(faces), self.teachers.mask(faces)
        hidden = [self._edited(encoded, k) for k in (key, second)]  # (DBAF 19, 20, 24, 25)
        shown = [rounded(composite(faces, render, mask)) for render, _ in hidden]
        # the original is degraded in the same way as the anonymized photo, so that they can be compared
        together = torch.cat([shown[0], faces, mask, covers], dim=1)
        moved = jitter(together, rng, shift=0.006, scale=0.01, turn=0.01)
        photo, aligned, where, hides = moved.split([3, 3, 1, 1], dim=1)
        arrived = recompressed(photo, rng)
        again = self.networks.encoder(arrived)
        back = [self._edited(again, k) for k in (key, wrong, other)]  # (DBAF 21-23, 26-28)
        right, *false = (composite(arrived, render, where) for render, _ in back)
        synthetic = [self.teachers.identity(picture) for picture in (*shown, *false)]  # S_1
        return Made(
            [render for render, _ in (*hidden, *back)],  # S_2
            [faces, faces, aligned, aligned, aligned],
            [covers, covers, hides, hides, hides],
            torch.cat([codes for _, codes in (*hidden, *back)]),
            {
                "different": self.over([theta_plus(own, x) for x in synthetic]),  # (DBAF 29, HFORD 11)
                "recovered": theta_minus(own, self.teachers.identity(right)),  # (DBAF 30, HFORD 12)
                "diverse": self.over([theta_plus(x, y) for x, y in permutations(synthetic, 2)]),  # (DBAF 31, HFORD 10)
            },
        )

    def _edited(self, encoded: tuple[Tensor, Features], key: Tensor) -> tuple[Tensor, Tensor]:
        codes = self.networks.edit(encoded[0], key)
        return self.networks.render(codes, encoded[1], SIDE), codes

    def _image(self, render: Tensor, wanted: Tensor, covers: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            parts = self.teachers.parts(wanted)
        error = (render - wanted).abs()
        return {
            "perceived": perceptual(self.teachers.features, render, wanted),  # (DBAF 12 and 33, HFORD 8)
            "pixels": error.mean(),  # (DBAF 13 and 34, HFORD 9)
            "parts": root_mean_square(
                (self.teachers.parts(render) - parts).flatten(1)
            ).mean(),  # (DBAF 14 and 35, HFORD 14)
            "covers": (error * covers).sum() / (3 * covers.sum()).clamp_min(1.0),
        }

    def adversarial(self, real: Tensor, made: Tensor, kinds: int, step: int) -> dict[str, Tensor]:
        """The losses of generator and discriminator (DBAF 16, 17, 37 and 38, HFORD 16 and 17).

        Args:
            real: [B, 3, S, S].
            made: generated pictures of ``kinds`` kinds, [kinds * B, 3, S, S].
        """
        penalty = self.R1_EVERY * self.GAMMA if step % self.R1_EVERY == 0 else 0.0
        judged = adversarial_losses(self.discriminator, real, made, penalty)
        caught = list(judged.caught.unflatten(0, (kinds, -1)).mean(1))
        return {
            "fooling": self.over(list(judged.fooling.unflatten(0, (kinds, -1)).mean(1))),
            "catching": self.over([judged.real + kind for kind in caught]) + judged.slope,
        }

    @torch.no_grad()
    def sheet(self) -> NDArray:
        """Columns: faces; anonymized under two keys; the first recovered under the right key and under the other."""
        rng = torch.Generator().manual_seed(99)
        faces = self.faces.render(4, rng)[:, :3].float() / 127.5 - 1
        mask = self.teachers.mask(faces)
        keys = [draw_key_vectors(self.mapping, self.networks.encoder, 4, rng) for _ in range(2)]
        hidden = [rounded(composite(faces, self.networks(faces, key, SIDE), mask)) for key in keys]
        back = [composite(hidden[0], self.networks(hidden[0], key, SIDE), mask) for key in keys]
        return tile([faces, *hidden, *back])


class RetentionObjective(Objective):
    """Trains the attention maps (MAAR, ARM), which retain what latents do not hold, and their strength.

    The target of each render is known. Around the face, and where an occluder hides it, the target is the input
    picture. Inside the face, where maps are 0, it is the render of the codes without maps, with the light of the
    picture. Half of a batch are photos to anonymize. The other half are anonymized pictures to recover.
    """

    BEGIN = 0.05  # initial strength of the maps; at 0 the attention would get no gradient
    PIXELS = 3.5  # weight relative to the perceptual loss, as in both papers' first stage

    def __init__(self, editing: EditingObjective) -> None:
        self.editing = editing

    def modules(self) -> dict[str, nn.Module]:
        return self.editing.modules()

    def deployable(self) -> dict[str, dict[str, Tensor]]:
        return self.editing.deployable()

    def sheet(self) -> NDArray | None:
        return self.editing.sheet()

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        networks, features = self.editing.networks, self.editing.teachers.features
        faces, covers = self.editing.faces.pairs(self.editing.batch, rng)
        with torch.no_grad():
            strength = networks.editor.strength
            strength[strength == 0] = self.BEGIN  # only now, so that untrained maps are never shipped with a strength
            mask = self.editing.teachers.mask(faces)
            codes, seen, wanted = self.wanted(faces, mask, rng)
        render = networks.render(codes, seen, SIDE, mask)
        error = (render - wanted).abs()
        return {
            "perceived": perceptual(features, render, wanted),
            "pixels": self.PIXELS * error.mean(),
            "covers": (error * covers).sum() / (3 * covers.sum()).clamp_min(1.0),
        }

    def wanted(self, faces: Tensor, mask: Tensor, rng: torch.Generator) -> tuple[Tensor, Features, Tensor]:
        """Codes, features and target pictures [B, 3, S, S] of faces that are replaced within masks [B, 1, S, S]."""
        networks, half = self.editing.networks, len(faces) // 2
        own, _ = networks.encoder(faces)
        codes = networks.anonymize(own, draw_key_vectors(self.editing.mapping, networks.encoder, len(faces), rng))
        hidden = self._inside(codes, faces, mask)
        pictures = torch.cat([faces[:half], rounded(hidden[half:])])
        codes = torch.cat([codes[:half], own[half:]])
        back = self._inside(own[half:], pictures[half:], mask[half:])
        return codes, networks.encoder(recompressed(pictures, rng))[1], torch.cat([hidden[:half], back])

    def _inside(self, codes: Tensor, pictures: Tensor, mask: Tensor) -> Tensor:
        """Pictures with the faces of codes, rendered without maps, in the pictures' light."""
        networks = self.editing.networks
        render = networks.generator.synthesize(networks.encoder.to_latents(codes), SIDE)
        return composite(pictures, match_tones(render, pictures, mask), mask)


class DBAFObjective(EditingObjective):
    """DBAF: losses are summed over pictures, codes are regularised towards the mean (equations 15 and 36)."""

    name = "dbaf"

    def over(self, values: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(values)).sum()

    def regular(self, codes: Tensor) -> Tensor:
        return root_mean_square(codes).mean()


class HFORDObjective(EditingObjective):
    """HFORD: losses are averaged over pictures, codes are regularised towards the first one (equation 15)."""

    name = "hford"

    def over(self, values: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(values)).mean()

    def regular(self, codes: Tensor) -> Tensor:
        return root_mean_square(codes[:, 1:] - codes[:, :1]).mean()


def root_mean_square(x: Tensor) -> Tensor:
    """The root mean square over the last axis; its gradient at 0 is 0."""
    return (x.square().mean(-1) + 1e-8).sqrt()
