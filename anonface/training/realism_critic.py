"""Training of the realism critic on photos of drawn faces, and on the same photos with another face.

There are two kinds of other faces. The first is made like the start of an anonymized face
(``backends/ifadit/target_identity.py``), with random weights and random changes of its latents. The second is the
result of refinement with the previous critic, which shows that critic's blind spots. The critic learns that the photo
itself, and its reconstruction by the inversion encoder, look better than photos with another face. The reconstruction
keeps it from learning mask borders, or that every render is unrealistic. It also learns that a picture looks better
than the same picture with synthetic artifacts (``degradation.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface.backends.ifadit.backend import IFADIT
from anonface.backends.ifadit.refinement import refine
from anonface.backends.ifadit.target_identity import FEATURED, attribute_mismatch, exchanged
from anonface.faces import parse
from anonface.faces.analysis import AnalysisNetworks, FaceAnalysis, mesh_in_crop
from anonface.faces.blend import composite, soften
from anonface.faces.colour_transfer import match_tones
from anonface.models.identity_flow import FlowKey
from anonface.models.inversion import CODE_OF_LATENT, InversionEncoder
from anonface.models.latent_attributes import LatentAttributes
from anonface.models.mobile_stylegan import MappingNetwork, MobileStyleGAN
from anonface.models.realism_critic import RealismCritic, within
from anonface.training.data import (
    draw_keys,
    drawn_rows,
    levels,
    photograph,
    recompressed,
    relit,
    row_generator,
    uniform,
)
from anonface.training.degradation import with_artifacts
from anonface.training.loop import Objective

SIDE = 256  # px
CANDIDATES = 64  # drawn styles per other face, of which the best match is taken
LEFT, OWN = (0.8, 1.5), (1.0, 1.9)  # ranges of the weights in ``Exchange``
PERTURBATION = 0.25  # largest random change of the latents, in standard deviations
OTHERS = 2  # other faces for each photo
LATER = 7  # the second face of a refined sample is one of the next matches, unrefined
DEGRADED = 0.3  # share of the photos that are degraded
HARD_LIGHT = 0.5  # share of the photos in hard light, partly overexposed or underexposed
CONTRAST, SIDELIGHT = (1.1, 1.8), (0.0, 1.2)  # ranges in hard light; SIDELIGHT: fall-off across the face in nats
SAVED_EVERY, REFINED_EVERY = 200, 5  # photos between two saves; a refined one takes half a minute
HELD_OUT = 64  # photos


@dataclass(frozen=True)
class SampleNetworks:
    """Frozen networks that make the samples."""

    eyes: AnalysisNetworks
    generator: MobileStyleGAN
    mapping: MappingNetwork
    regressor: LatentAttributes
    inversion: InversionEncoder


@dataclass(frozen=True)
class CriticSamples:
    """Pictures to compare, all uint8.

    Attributes:
        photos: photos of drawn faces [N, 3, S, S].
        inverted: the photos with the encoder's reconstruction of the face, [N, 3, S, S].
        others: the photos with other faces, [N, OTHERS, 3, S, S].
        masks: soft masks [N, 1, S, S] outside which the pictures are equal.
    """

    photos: Tensor
    inverted: Tensor
    others: Tensor
    masks: Tensor

    def __len__(self) -> int:
        return len(self.photos)


def load_critic_samples(
    file: Path,
    networks: SampleNetworks,
    count: int,
    seed: int = 13,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> CriticSamples:
    """The first ``count`` samples of ``file``; missing ones are made and saved first."""
    draw = lambda done: _sample(networks, row_generator(seed, done))  # noqa: E731
    return CriticSamples(**drawn_rows(file, count, draw, SAVED_EVERY, progress))


def load_refined_samples(
    file: Path,
    backend: IFADIT,
    count: int,
    seed: int = 17,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> CriticSamples:
    """Like :func:`load_critic_samples`, with faces refined under random keys with the backend's critic."""
    draw = lambda done: _refined_sample(backend, row_generator(seed, done))  # noqa: E731
    return CriticSamples(**drawn_rows(file, count, draw, REFINED_EVERY, progress))


@torch.no_grad()
def _sample(networks: SampleNetworks, rng: torch.Generator) -> dict[str, Tensor]:
    """One photo with its other faces."""
    eyes, inversion = networks.eyes, networks.inversion
    photo, mask = _photographed(networks, rng)
    codes, _ = inversion(photo)
    inverted = inversion.to_w(codes)
    candidates = networks.mapping(torch.randn(OTHERS * CANDIDATES, 512, generator=rng))
    seems = eyes.apparent(photo)[0]
    mismatch = attribute_mismatch(networks.regressor(candidates), networks.regressor, eyes.encoder(photo), seems)
    matches = candidates[mismatch.argsort()[:OTHERS]]
    pictures = [_placed(networks, inverted, photo, mask)]
    for features in networks.regressor.features(matches):
        left, own, perturbation = (uniform(rng, *ends) for ends in (LEFT, OWN, (0.0, PERTURBATION)))
        codes = inversion.to_u(exchanged(inverted, features, networks.regressor, left, own))
        together = torch.randn(1, 1, codes.shape[2], generator=rng)
        apart = torch.randn(codes.shape, generator=rng) / 4
        codes[:, :FEATURED] += perturbation * (together + apart)[:, :FEATURED]
        pictures.append(_placed(networks, inversion.to_w(codes), photo, mask))
    return _stored(photo, mask, pictures)


def _refined_sample(backend: IFADIT, rng: torch.Generator) -> dict[str, Tensor]:
    """One photo with the best match after refinement, and with a worse match without refinement."""
    renderer, identity = backend.renderer, backend.identity
    networks, mapping = renderer.networks, renderer.mapping
    drawing = SampleNetworks(networks, networks.generator, mapping, networks.regressor, networks.inversion)
    photo, mask = _photographed(drawing, rng)
    key = draw_keys(mapping, 1, rng, identity.flow.params)
    hidden = identity.flow(identity.embed(photo), FlowKey(key.k.double(), key.mix.double()))
    candidates, order, kept, scene = renderer.rank(hidden, FaceAnalysis(photo, networks), mask)
    with torch.no_grad():
        pictures = [_placed(drawing, networks.inversion.to_w(networks.inversion(photo)[0]), photo, mask)]
    scene.choose(order[0])
    first = refine(candidates[order[0]], kept, scene, networks.mapper)
    with torch.no_grad():
        for w in (first, candidates[order[int(torch.randint(1, 1 + LATER, (), generator=rng))]]):
            _, toned = scene.drawn(w)
            pictures.append(composite(photo, toned, scene.seen(toned)[0]))
    return _stored(photo, mask, pictures)


@torch.no_grad()
def _photographed(networks: SampleNetworks, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """A photo of a drawn face, [1, 3, S, S] in [-1, 1], and the soft mask of the face, [1, 1, S, S]."""
    style = networks.mapping(torch.randn(1, 512, generator=rng))
    photo = relit(networks.generator.synthesize(style[:, None], SIDE).clamp(-1, 1), rng)
    if torch.rand((), generator=rng) < HARD_LIGHT:
        photo = _in_hard_light(photo, rng)
    if torch.rand((), generator=rng) < DEGRADED:
        photo = photograph(photo, rng, covered=0.0)
    photo = levels(photo).float() / 127.5 - 1
    crop = levels(photo)[0].permute(1, 2, 0).contiguous().numpy()
    mesh = mesh_in_crop(networks.eyes.landmarks, photo)[0].double().numpy() * SIDE
    return photo, torch.from_numpy(soften(parse.face_mask(crop, mesh, SIDE)))[None, None]


def _in_hard_light(photo: Tensor, rng: torch.Generator) -> Tensor:
    """A photo [1, 3, S, S] in [-1, 1] lit from one side, partly overexposed or underexposed."""
    angle, fall, contrast = (uniform(rng, *ends) for ends in ((0.0, 2 * math.pi), SIDELIGHT, CONTRAST))
    places = torch.linspace(-1, 1, photo.shape[-1])
    ramp = places[:, None] * math.sin(angle) + places[None, :] * math.cos(angle)
    lit = (photo + 1) / 2 * torch.exp(fall * ramp / 2)
    return (contrast * (2 * lit - 1) + uniform(rng, -0.2, 0.3)).clamp(-1, 1)


def _stored(photo: Tensor, mask: Tensor, pictures: list[Tensor]) -> dict[str, Tensor]:
    """A row of CriticSamples; the first of the pictures is the reconstruction."""
    stored = levels(torch.cat([photo, *pictures]))
    masks = (mask * 255).round().to(torch.uint8)
    return {"photos": stored[:1], "inverted": stored[1:2], "others": stored[None, 2:], "masks": masks}


def _placed(networks: SampleNetworks, codes: Tensor, photo: Tensor, mask: Tensor) -> Tensor:
    """The photo with the face of codes [1, 14, 512]."""
    render = networks.generator.synthesize(codes[:, list(CODE_OF_LATENT)], SIDE)
    return composite(photo, match_tones(render, photo, mask), mask)


class RealismCriticObjective(Objective):
    """Logistic ranking loss: within the mask, photo and reconstruction shall have higher logits than the other faces.

    Only pictures of the same photo are compared. In every step each member of the critic gets its own batch of each
    kind of samples.
    """

    def __init__(self, critic: RealismCritic, *kinds: CriticSamples, batch: int = 4) -> None:
        self.critic, self.kinds, self.batch = critic, kinds, batch
        for parameter in critic.parameters():  # channels last: less time on a CPU
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)

    def modules(self) -> dict[str, nn.Module]:
        return {"critic": self.critic}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        for number, samples in enumerate(self.kinds):
            for member in range(len(self.critic.members)):
                own = self._member_losses(samples, member, rng, validate=step % 50 == 0)
                losses |= {f"{name}_{number}_{member}": value for name, value in own.items()}
        return losses

    def _member_losses(
        self, samples: CriticSamples, member: int, rng: torch.Generator, validate: bool
    ) -> dict[str, Tensor]:
        """The losses of a member on a batch, and its accuracy on held-out samples if ``validate``."""
        seen, losses = len(samples) - held_out(samples), {}
        pictures, masks = pictures_of(samples, torch.randint(seen, (self.batch,), generator=rng))
        if torch.rand((), generator=rng) < 0.5:
            pictures, masks = pictures.flip(4), masks.flip(3)
        whole = pictures[:, int(torch.randint(pictures.shape[1], (), generator=rng))]
        worse, where = with_artifacts(whole, pictures[:, 2], masks, rng)
        flat = recompressed(torch.cat([pictures.flatten(0, 1), whole, worse]), rng)
        compared, whole, worse = flat.split([pictures.shape[:2].numel(), len(whole), len(worse)])
        losses["critic"], losses["_right"] = self.ranking(compared.view_as(pictures), masks, member)
        gap = self.critic(whole, member) - self.critic(worse, member)
        losses["spoilt"] = within(F.softplus(-gap), where).mean()
        losses["_right_spoilt"] = (within(gap, where) > 0).float().mean()
        if validate and seen < len(samples):
            with torch.no_grad():
                _, losses["_held_out"] = self.ranking(*pictures_of(samples, torch.arange(seen, len(samples))), member)
        return losses

    def ranking(self, pictures: Tensor, masks: Tensor, member: int | None = None) -> tuple[Tensor, Tensor]:
        """The loss of one member or of all, and the share of pairs that are ranked correctly."""
        logits = self.critic(pictures.flatten(0, 1).contiguous(memory_format=torch.channels_last), member)
        logits = logits.unflatten(0, pictures.shape[:2])
        gap = logits[:, :2, None] - logits[:, None, 2:]  # [n, 2, OTHERS, 16, 16]
        covers = masks[:, None, None].expand(-1, 2, gap.shape[2], -1, -1, -1).flatten(0, 2)
        wrong = within(F.softplus(-gap).flatten(0, 2), covers)
        return wrong.mean(), (within(gap.flatten(0, 2), covers) > 0).float().mean()


def held_out(samples: CriticSamples) -> int:
    """The number of photos at the end that are for validation only."""
    return min(HELD_OUT, len(samples) // 8)


def pictures_of(samples: CriticSamples, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Pictures [n, 2 + OTHERS, 3, S, S] in [-1, 1] of the chosen samples, the better two first, and masks in 0..1."""
    parts = samples.photos[chosen][:, None], samples.inverted[chosen][:, None], samples.others[chosen]
    return torch.cat(parts, dim=1).float() / 127.5 - 1, samples.masks[chosen].float() / 255
