"""What the critic learns from: drawn faces as they were photographed, and the same with somebody else in their place.

Somebody else is made just as a new face is begun (``backends/persona.py``), more boldly and less boldly than there, and
shaken as refinement might; or just as one is cast, and as one is finished, refined in the eyes of the critic of before,
which shows what that one does not mind. Better than any of these are, in the same photo, the photo itself and what the
encoder made of it: so the critic learns neither where masks end nor that a render is no photo, but what goes wrong
between. And any picture is better than the same with faults made by hand (``spoiling.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface.backends.eyes import Eyes, Sight, mesh_in_crop
from anonface.backends.ifadit import IFADIT
from anonface.backends.persona import FEATURED, exchanged, strangeness
from anonface.backends.refine import refine
from anonface.backends.tones import match_tones
from anonface.faces import parse
from anonface.faces.blend import composite, soften
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
from anonface.training.degradation import spoilt
from anonface.training.loop import Objective

SIDE = 256  # px
ASKED = 64  # people of whom the likeliest takes the photo's place
LEFT, OWN = (0.8, 1.5), (1.0, 1.9)  # as in Exchange
SHAKEN = 0.25  # deviations of a whitened latent by which all move together, at the most
OTHERS = 2  # people in each photo
LATER = 7  # where the first is refined, the second is one of so many who fit less than the first, as drawn
BADLY = 0.3  # share of the photos that are taken badly
HARD = 0.5  # share of the photos in hard light, of which some is lost above and below what a file can hold
CONTRAST, SIDELIGHT = (1.1, 1.8), (0.0, 1.2)  # of these, and by how much light falls off across the face, in nats
SAVED_EVERY, REFINED_EVERY = 200, 5  # photos: those of refined people take half a minute each
HELD_OUT = 64  # photos


@dataclass(frozen=True)
class SampleNetworks:
    """Frozen networks by which tries are made."""

    eyes: Eyes
    generator: MobileStyleGAN
    mapping: MappingNetwork
    census: LatentAttributes
    inversion: InversionEncoder


@dataclass(frozen=True)
class CriticSamples:
    """Photos of drawn faces [N, 3, S, S], what the encoder made of them, what stands there instead, [N, OTHERS, 3, S,
    S], and the soft masks [N, 1, S, S] within which they differ; all uint8."""

    photos: Tensor
    inverted: Tensor
    others: Tensor
    masks: Tensor

    def __len__(self) -> int:
        return len(self.photos)


def load_critic_samples(
    file: Path,
    makers: SampleNetworks,
    count: int,
    seed: int = 13,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> CriticSamples:
    """The pictures in ``file``, made first where the file is missing or holds fewer photos than ``count``."""
    draw = lambda done: _tried(makers, row_generator(seed, done))  # noqa: E731
    return CriticSamples(**drawn_rows(file, count, draw, SAVED_EVERY, progress))


def load_refined_samples(
    file: Path,
    backend: IFADIT,
    count: int,
    seed: int = 17,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> CriticSamples:
    """The same with people who were refined under random keys, in the eyes of the backend's critic."""
    draw = lambda done: _refined(backend, row_generator(seed, done))  # noqa: E731
    return CriticSamples(**drawn_rows(file, count, draw, REFINED_EVERY, progress))


@torch.no_grad()
def _tried(makers: SampleNetworks, rng: torch.Generator) -> dict[str, Tensor]:
    """One photo, and who was put into it."""
    eyes, inversion = makers.eyes, makers.inversion
    photo, mask = _photographed(makers, rng)
    codes, _ = inversion(photo)
    inverted = inversion.to_w(codes)
    asked = makers.mapping(torch.randn(OTHERS * ASKED, 512, generator=rng))
    seems = eyes.apparent(photo)[0]
    strange = strangeness(makers.census(asked), makers.census, eyes.encoder(photo), seems)
    likeliest = asked[strange.argsort()[:OTHERS]]
    pictures = [_placed(makers, inverted, photo, mask)]
    for own in makers.census.features(likeliest):
        left, bold, shaken = (uniform(rng, *ends) for ends in (LEFT, OWN, (0.0, SHAKEN)))
        codes = inversion.to_u(exchanged(inverted, own, makers.census, left, bold))
        together = torch.randn(1, 1, codes.shape[2], generator=rng)
        apart = torch.randn(codes.shape, generator=rng) / 4
        codes[:, :FEATURED] += shaken * (together + apart)[:, :FEATURED]
        pictures.append(_placed(makers, inversion.to_w(codes), photo, mask))
    return _stored(photo, mask, pictures)


def _refined(backend: IFADIT, rng: torch.Generator) -> dict[str, Tensor]:
    """One photo, and who was put into it: who fits best, refined, and somebody who fits less, as drawn."""
    networks, mapping = backend.networks, backend.keygen.mapping
    makers = SampleNetworks(networks, networks.generator, mapping, networks.census, networks.inversion)
    photo, mask = _photographed(makers, rng)
    key = draw_keys(mapping, 1, rng, backend.flow.params)
    hidden = backend.flow(backend.embed(photo), FlowKey(key.k.double(), key.mix.double()))
    people, order, kept, scene = backend.ranked(hidden, Sight(photo, networks), mask)
    with torch.no_grad():
        pictures = [_placed(makers, networks.inversion.to_w(networks.inversion(photo)[0]), photo, mask)]
    scene.take(order[0])
    first = refine(people[order[0]], kept, scene, networks.mapper)
    with torch.no_grad():
        for w in (first, people[order[int(torch.randint(1, 1 + LATER, (), generator=rng))]]):
            _, toned = scene.drawn(w)
            pictures.append(composite(photo, toned, scene.seen(toned)[0]))
    return _stored(photo, mask, pictures)


@torch.no_grad()
def _photographed(makers: SampleNetworks, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """A photo of somebody drawn, [1, 3, S, S] in [-1, 1], and the soft mask of the face, [1, 1, S, S]."""
    style = makers.mapping(torch.randn(1, 512, generator=rng))
    photo = relit(makers.generator.synthesize(style[:, None], SIDE).clamp(-1, 1), rng)
    if torch.rand((), generator=rng) < HARD:
        photo = _in_hard_light(photo, rng)
    if torch.rand((), generator=rng) < BADLY:
        photo = photograph(photo, rng, covered=0.0)
    photo = levels(photo).float() / 127.5 - 1
    crop = levels(photo)[0].permute(1, 2, 0).contiguous().numpy()
    mesh = mesh_in_crop(makers.eyes.landmarks, photo)[0].double().numpy() * SIDE
    return photo, torch.from_numpy(soften(parse.face_mask(crop, mesh, SIDE)))[None, None]


def _in_hard_light(photo: Tensor, rng: torch.Generator) -> Tensor:
    """A photo [1, 3, S, S] in [-1, 1] lit from one side, and overexposed or underexposed in part."""
    angle, fall, contrast = (uniform(rng, *ends) for ends in ((0.0, 2 * math.pi), SIDELIGHT, CONTRAST))
    places = torch.linspace(-1, 1, photo.shape[-1])
    ramp = places[:, None] * math.sin(angle) + places[None, :] * math.cos(angle)
    lit = (photo + 1) / 2 * torch.exp(fall * ramp / 2)
    return (contrast * (2 * lit - 1) + uniform(rng, -0.2, 0.3)).clamp(-1, 1)


def _stored(photo: Tensor, mask: Tensor, pictures: list[Tensor]) -> dict[str, Tensor]:
    """A row of CriticSamples: of the pictures the first is the inverted one."""
    stored = levels(torch.cat([photo, *pictures]))
    masks = (mask * 255).round().to(torch.uint8)
    return {"photos": stored[:1], "inverted": stored[1:2], "others": stored[None, 2:], "masks": masks}


def _placed(makers: SampleNetworks, codes: Tensor, photo: Tensor, mask: Tensor) -> Tensor:
    """The face of codes [1, 14, 512] in the photo."""
    render = makers.generator.synthesize(codes[:, list(CODE_OF_LATENT)], SIDE)
    return composite(photo, match_tones(render, photo, mask), mask)


class RealismCriticObjective(Objective):
    """At every place within the mask, either of the better pictures shall look better than either of the others: the
    logistic loss of differences, between pictures of the same photo alone. Of several kinds of tries each member of the
    critic has a batch of its own in every step."""

    def __init__(self, critic: RealismCritic, *kinds: CriticSamples, batch: int = 4) -> None:
        self.critic, self.kinds, self.batch = critic, kinds, batch
        for parameter in critic.parameters():  # channels last: less time on a CPU
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)

    def modules(self) -> dict[str, nn.Module]:
        return {"critic": self.critic}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        for number, tries in enumerate(self.kinds):
            for member in range(len(self.critic.members)):
                told = self._told(tries, member, rng, held=step % 50 == 0)
                losses |= {f"{name}_{number}_{member}": value for name, value in told.items()}
        return losses

    def _told(self, tries: CriticSamples, member: int, rng: torch.Generator, held: bool) -> dict[str, Tensor]:
        """The losses of a member on a batch of tries, and now and then how well it knows those held out."""
        seen, told = len(tries) - held_out(tries), {}
        pictures, masks = rows(tries, torch.randint(seen, (self.batch,), generator=rng))
        if torch.rand((), generator=rng) < 0.5:
            pictures, masks = pictures.flip(4), masks.flip(3)
        whole = pictures[:, int(torch.randint(pictures.shape[1], (), generator=rng))]
        worse, where = spoilt(whole, pictures[:, 2], masks, rng)
        flat = recompressed(torch.cat([pictures.flatten(0, 1), whole, worse]), rng)
        compared, whole, worse = flat.split([pictures.shape[:2].numel(), len(whole), len(worse)])
        told["critic"], told["_right"] = self.judged(compared.view_as(pictures), masks, member)
        gap = self.critic(whole, member) - self.critic(worse, member)
        told["spoilt"] = within(F.softplus(-gap), where).mean()
        told["_right_spoilt"] = (within(gap, where) > 0).float().mean()
        if held and seen < len(tries):
            with torch.no_grad():
                _, told["_held_out"] = self.judged(*rows(tries, torch.arange(seen, len(tries))), member)
        return told

    def judged(self, pictures: Tensor, masks: Tensor, member: int | None = None) -> tuple[Tensor, Tensor]:
        """The loss, and in what share of the pairs the better picture is known; by one member or all."""
        logits = self.critic(pictures.flatten(0, 1).contiguous(memory_format=torch.channels_last), member)
        logits = logits.unflatten(0, pictures.shape[:2])
        gap = logits[:, :2, None] - logits[:, None, 2:]  # [n, 2, OTHERS, 16, 16]
        covers = masks[:, None, None].expand(-1, 2, gap.shape[2], -1, -1, -1).flatten(0, 2)
        wrong = within(F.softplus(-gap).flatten(0, 2), covers)
        return wrong.mean(), (within(gap.flatten(0, 2), covers) > 0).float().mean()


def held_out(tries: CriticSamples) -> int:
    """How many of the last photos the critic never learns from."""
    return min(HELD_OUT, len(tries) // 8)


def rows(tries: CriticSamples, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Pictures [n, 2 + OTHERS, 3, S, S] in [-1, 1] of some photos, the better two first, and masks."""
    parts = tries.photos[chosen][:, None], tries.inverted[chosen][:, None], tries.others[chosen]
    return torch.cat(parts, dim=1).float() / 127.5 - 1, tries.masks[chosen].float() / 255
