"""Training of iFADIT's default family: phase I, the flow's warm-up on codes alone, and phase II.

Equation numbers are those of the iFADIT paper. Loss networks of the paper that are not available are replaced: LPIPS by
``perceptual``, a distance of MobileNetV2 features; E_LM by the 468-point landmark network; E_FP by ``regions``, soft
maps of the parts of the face computed from those landmarks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from anonface.faces.analysis import LandmarkNetwork, mesh_in_crop
from anonface.faces.blend import composite
from anonface.faces.colour_transfer import match_tones
from anonface.models.attribute_encoder import (
    AttributeEncoder,
    IdentityCompensation,
    LatentMapper,
    MobileNetV2Features,
    PrincipalLatents,
    perceptual,
)
from anonface.models.identity import IdentityEncoder
from anonface.models.identity_flow import SecureIdentityFlow
from anonface.models.mobile_stylegan import MappingNetwork, MobileStyleGAN
from anonface.training.data import FaceBank, draw_keys, jitter, photograph, recompressed, rounded, tile
from anonface.training.loop import Objective

SIDE = 128  # px of the pictures in losses; renders come from the 256-px head
GRID, REACH = 24, 0.04  # cells along a side of ``regions``, and their standard deviation in shares of the side
SOFTNESS = 0.02  # of the mask's border, in shares of the side


@dataclass(frozen=True)
class Fixed:
    """Networks that no phase trains."""

    generator: MobileStyleGAN
    mapping: MappingNetwork
    encoder: IdentityEncoder
    landmarks: LandmarkNetwork
    features: MobileNetV2Features


def _draw(generator: MobileStyleGAN, w: Tensor) -> Tensor:
    return F.avg_pool2d(generator.synthesize(w, 2 * SIDE), 2)


# --- Losses ----------------------------------------------------------------------------------------------------------


def ssim(x: Tensor, y: Tensor) -> Tensor:
    """Mean structural similarity of images in [-1, 1] (Gaussian window of 11 px, sigma 1.5)."""
    offsets = torch.arange(11, dtype=x.dtype, device=x.device) - 5
    g = torch.exp(-(offsets**2) / (2 * 1.5**2))
    kernel = (g[:, None] * g[None] / g.sum() ** 2).expand(3, 1, 11, 11)
    blur = lambda a: F.conv2d(a, kernel, groups=3)  # noqa: E731
    c1, c2 = (0.01 * 2) ** 2, (0.03 * 2) ** 2
    mx, my = blur(x), blur(y)
    vx, vy, vxy = blur(x * x) - mx * mx, blur(y * y) - my * my, blur(x * y) - mx * my
    return (((2 * mx * my + c1) * (2 * vxy + c2)) / ((mx * mx + my * my + c1) * (vx + vy + c2))).mean()


def visual_quality(render: Tensor, face: Tensor) -> Tensor:
    """Equation 12: alpha (1 - SSIM) + beta L1, with alpha 0.84 and beta 0.16."""
    return 0.84 * (1 - ssim(render, face)) + 0.16 * (render - face).abs().mean()


def theta_plus(x: Tensor, y: Tensor) -> Tensor:
    """Equation 16: the positive part of the cosine, averaged."""
    return F.cosine_similarity(x, y).clamp_min(0).mean()


def theta_minus(x: Tensor, y: Tensor) -> Tensor:
    """Equation 19: one minus the cosine, averaged."""
    return (1 - F.cosine_similarity(x, y)).mean()


_PARTS = {  # rows of the 468-point mesh
    "outline": (10, 297, 284, 389, 454, 361, 397, 379, 400, 152, 176, 150, 172, 132, 234, 162, 54, 67),
    "eyes": (33, 160, 158, 133, 153, 144, 362, 385, 387, 263, 373, 380),
    "brows": (70, 63, 105, 66, 107, 336, 296, 334, 293, 300),
    "nose": (168, 6, 195, 4, 98, 327, 2),
    "lips": (61, 40, 37, 0, 267, 270, 291, 321, 314, 17, 84, 91),
}


def regions(mesh: Tensor) -> Tensor:
    """The substitute of E_FP: landmarks [B, 468, 2] in 0..1 -> soft maps of the face's parts [B, 5, GRID, GRID]."""
    cells = (torch.arange(GRID, dtype=mesh.dtype, device=mesh.device) + 0.5) / GRID
    maps = []
    for rows in _PARTS.values():
        points = mesh[:, list(rows)]
        bell = lambda along: torch.exp(-0.5 * ((cells - along[..., None]) / REACH) ** 2)  # noqa: E731
        maps.append(torch.einsum("bny,bnx->byx", bell(points[..., 1]), bell(points[..., 0])))
    return torch.stack(maps, dim=1)


# --- Phase I ---------------------------------------------------------------------------------------------------------


class PhaseOne(Objective):
    """Trains E_Attr and M (equations 12-14); the other networks are frozen.

    There are two additions to the paper's loss. The latents of synthetic faces are known, so they are regressed too,
    which makes training much faster. And half of each batch is rendered with *another* face's identity code: the render
    shall have the embedding of that face, with the landmarks and the light of the first one. Otherwise M could read the
    identity from the attributes.
    """

    LAMBDA = 0.01  # equation 14

    def __init__(self, fixed: Fixed, bank: FaceBank, rendered_from: int, batch: int = 8) -> None:
        """Before the step ``rendered_from`` only latents are regressed, on batches four times as large."""
        self.fixed, self.bank, self.batch, self.rendered_from = fixed, bank, batch, rendered_from
        self.attributes, self.mapper = AttributeEncoder(), LatentMapper()
        self.attributes.backbone.load_state_dict(fixed.features.state_dict())
        principal_latents(self.mapper, fixed.mapping)
        with torch.inference_mode():
            codes = [fixed.encoder(bank.faces(slice(i, i + 32))) for i in range(0, len(bank), 32)]
        self.codes = torch.cat(codes).clone()

    def modules(self) -> dict[str, nn.Module]:
        return {"attributes": self.attributes, "mapper": self.mapper}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        rendered = step >= self.rendered_from
        index, clean, latents = self.bank.draw(self.batch if rendered else 4 * self.batch, rng)
        seen = jitter(photograph(clean, rng), rng)
        attributes = self.attributes(seen)
        w = self.mapper(self.codes[index], attributes)
        regression = (
            w - latents
        ).square().mean() / self.mapper.std.square().mean()  # unexplained share of the variance
        zero = regression.detach() * 0
        if not rendered:
            return {"latents": regression, **{k: zero for k in ("quality", "identity", "mesh", "other", "othermesh")}}
        half = self.batch // 2
        other = self.codes[index.roll(1)[:half]]
        w = torch.cat([w[half:], self.mapper(other, attributes[:half])])
        render = _draw(self.fixed.generator, w)
        own, swapped = render[: self.batch - half], render[self.batch - half :]
        with torch.no_grad():
            mesh = mesh_in_crop(self.fixed.landmarks, clean)
        toned = match_tones(swapped, clean[:half], torch.ones_like(swapped[:, :1]))
        return {
            "latents": 0.3 * regression,
            # equation 12, at ten times equation 14's lambda
            "quality": self.LAMBDA * 10 * visual_quality(own, clean[half:]),
            "identity": theta_minus(self.fixed.encoder(own), self.codes[index[half:]]),  # equation 13, as a cosine
            "mesh": 20 * (mesh_in_crop(self.fixed.landmarks, own) - mesh[half:]).abs().mean(),  # equation 13
            "other": theta_minus(self.fixed.encoder(toned), other),
            "othermesh": 20 * (mesh_in_crop(self.fixed.landmarks, toned) - mesh[:half]).abs().mean()
            + 0.3 * (toned - swapped).abs().mean(),
        }

    @torch.no_grad()
    def sheet(self) -> NDArray:
        faces, _ = self.bank.held_out(6)
        codes = self.fixed.encoder(faces)
        attributes = self.attributes(faces)
        own = self.fixed.generator.synthesize(self.mapper(codes, attributes), 256)
        swapped = self.fixed.generator.synthesize(self.mapper(codes.roll(1, 0), attributes), 256)
        return tile([F.interpolate(faces, (256, 256), mode="bilinear"), own, swapped])


@torch.no_grad()
def principal_latents(mapper: PrincipalLatents, mapping: MappingNetwork) -> None:
    """Set a network's whitening: mean, principal axes and standard deviations of the generator's w."""
    count = 20_000
    z = torch.randn(count, 512, generator=torch.Generator().manual_seed(11))
    w = mapping(z.to(next(mapping.parameters()).device))
    mean = w.mean(0)
    _, singular, axes = torch.linalg.svd(w - mean, full_matrices=False)
    mapper.mean.copy_(mean)
    mapper.std.copy_(singular / count**0.5)
    mapper.axes.copy_(axes)


# --- The flow on codes alone -----------------------------------------------------------------------------------------


class FlowWarmUp(Objective):
    """Trains flow and compensation on codes, without rendering: equations 15-19 and further losses.

    - ``faces``: hidden codes shall be as near to codes of faces as these are to each other, because other codes cannot
      be rendered.
    - ``spectrum``: the mean energy of hidden codes shall be distributed as that of faces. Codes are sorted by variance,
      and renders do not show coordinates in which faces do not vary.
    - ``right``: inversion of noisy hidden codes; the noise is as strong as the measured error of re-embedded renders.
    - ``steady``: the inverse shall not amplify noise of any kind.
    - ``rest``: couplings and compensation shall change codes as little as possible, because what they learn from
      synthetic faces does not fully apply to real ones.

    Args:
        codes: [3 N, 448], codes of N faces under three augmentations, one after the other.
    """

    NOISE = (0.5, 1.4)  # tangent of the angle between a hidden and its re-embedded code

    def __init__(
        self,
        flow: SecureIdentityFlow,
        compensation: IdentityCompensation,
        codes: Tensor,
        mapping: MappingNetwork,
        batch: int = 64,
    ) -> None:
        self.flow, self.compensation, self.codes = flow, compensation, codes
        self.mapping, self.batch = mapping, batch
        self.shares = self._shares(codes)
        _key_statistics(flow, mapping)
        flow.neutral.copy_(codes[:, : flow.params.kept].mean(0))

    def modules(self) -> dict[str, nn.Module]:
        return {"flow": self.flow, "compensation": self.compensation}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        z = self.codes[torch.randint(len(self.codes), (self.batch,), generator=rng)]
        key, wrong = (draw_keys(self.mapping, self.batch, rng, self.flow.params) for _ in range(2))
        hidden = self.flow(z, key)
        low, high = self.NOISE
        level = low + (high - low) * torch.rand(self.batch, 1, generator=rng)
        noisy = F.normalize(hidden + level * self._noise(hidden, z, rng), dim=1)
        seen = self.compensation(noisy)
        growth = F.cosine_similarity(noisy, hidden) - F.cosine_similarity(self.flow.inverse(noisy, key), z)
        near = (hidden @ self.codes.T).topk(8, dim=1).values.mean()
        return {
            "anon": theta_plus(hidden, z),  # equation 15
            "diversity": theta_plus(hidden, self.flow(z, wrong))  # equation 17, between keys
            + theta_plus(hidden, self.flow(z.roll(1, 0), key)),  # and between people
            "right": theta_minus(self.flow.inverse(seen, key), z),  # equation 18
            "wrong": theta_plus(self.flow.inverse(seen, wrong), z),
            "compensation": theta_minus(seen, hidden.detach()),
            "faces": 1 - near,
            "steady": 10 * growth.clamp_min(0).mean(),
            "rest": 20 * theta_minus(hidden, self.flow.mixed_only(z, key)) + 5 * theta_minus(seen, noisy),
            "spectrum": 5 * (self._shares(hidden).sqrt() - self.shares.sqrt()).square().sum(),
        }

    def _noise(self, hidden: Tensor, z: Tensor, rng: torch.Generator) -> Tensor:
        """Unit vectors orthogonal to the hidden codes: random mixtures of the typical errors of renders.

        These are offsets towards another face, towards the original, between two augmentations of a face, along single
        axes, and isotropic noise.
        """
        faces, count = self.codes.unflatten(0, (3, -1)), len(z)
        some = lambda n: torch.randint(n, (count,), generator=rng)  # noqa: E731
        who = some(faces.shape[1])
        looks = F.normalize(faces[1 + some(2), who] - faces[0, who], dim=1)
        axes = F.one_hot(some(z.shape[1] // 2), z.shape[1]).float() + F.one_hot(some(60), z.shape[1])
        kinds = torch.stack(
            [
                self.codes[some(len(self.codes))],
                z,
                looks,
                axes,
                2 * torch.randn(z.shape, generator=rng) * self.codes.std(0),
            ],
            1,
        )
        weight = (
            torch.randn(count, kinds.shape[1], 1, generator=rng) ** 3
        )  # heavy-tailed, so that one kind often dominates
        noise = (weight * kinds).sum(1)
        return F.normalize(noise - (noise * hidden.detach()).sum(1, keepdim=True) * hidden.detach(), dim=1)

    def _shares(self, codes: Tensor) -> Tensor:
        """Mean energy of codes [B, 448] in each block of the keyed mix, [17]."""
        p = self.flow.params
        return codes[:, p.kept :].square().unflatten(1, (-1, p.mix)).sum(2).mean(0).clamp_min(1e-8)


@torch.no_grad()
def _key_statistics(flow: SecureIdentityFlow, mapping: MappingNetwork) -> None:
    k = draw_keys(mapping, 4000, torch.Generator().manual_seed(12), flow.params).k
    flow.key_mean.copy_(k.mean(0))
    flow.key_scale.copy_(1 / k.std(0))


# --- Phase II --------------------------------------------------------------------------------------------------------

Augmentation = Callable[[Tensor, torch.Generator], Tensor]

_IMAGE_WEIGHTS = {"recovered": (10.0, 1.0, 0.1, 0.01), "other": (0.01, 0.1, 0.1, 0.01)}  # equation 21


class PhaseTwo(Objective):
    """Trains SIF and ICL (equations 15-22) through compositing, 8-bit rounding, jittered re-alignment and compression.

    Attributes:
        trained: names of the networks that are trained; the others are frozen.
        augment: makes the photo of a drawn face.
        degrade: applied to an anonymized face before recovery.
        compared: applied to codes before losses compare them.
    """

    trained: tuple[str, ...] = ("flow", "compensation")

    def __init__(
        self,
        fixed: Fixed,
        bank: FaceBank,
        attributes: AttributeEncoder,
        mapper: LatentMapper,
        flow: SecureIdentityFlow,
        compensation: IdentityCompensation,
        batch: int = 4,
    ) -> None:
        self.fixed, self.bank, self.batch = fixed, bank, batch
        self.attributes, self.mapper = attributes.requires_grad_(False), mapper.requires_grad_(False)
        self.flow, self.compensation = flow, compensation
        self.augment: Augmentation = photograph
        self.degrade: Augmentation = jitter_and_recompress
        self.compared: Callable[[Tensor], Tensor] = lambda codes: codes

    def modules(self) -> dict[str, nn.Module]:
        return {name: getattr(self, name) for name in self.trained}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        fixed = self.fixed
        _, clean, _ = self.bank.draw(self.batch, rng)
        face = self.augment(clean, rng)
        with torch.no_grad():
            z = fixed.encoder(face)
            a = self.attributes(face)
            mesh = mesh_in_crop(fixed.landmarks, face)
            mask = _oval(mesh)
        key, wrong = (draw_keys(fixed.mapping, self.batch, rng, self.flow.params) for _ in range(2))
        hidden = self.flow(z, key)
        anonymized = self._render(hidden, a, face, mask)
        second = self._render(self.flow(z, wrong), a, face, mask)
        degraded = self.degrade(anonymized, rng)
        seen = self.compensation(fixed.encoder(degraded))
        a_seen = self.attributes(degraded)
        recovered = self._render(self.flow.inverse(seen, key), a_seen, degraded, mask)
        false = self._render(self.flow.inverse(seen, wrong), a_seen, degraded, mask)
        e = {
            name: self.compared(fixed.encoder(picture))
            for name, picture in (("anon", anonymized), ("second", second), ("right", recovered), ("wrong", false))
        }
        own = self.compared(z)
        return {
            "anon": theta_plus(e["anon"], own),  # equation 15
            "diversity": theta_plus(e["anon"], e["anon"].roll(1, 0))
            + theta_plus(e["anon"], e["second"]),  # equation 17
            "deanon": theta_minus(e["right"], own) + theta_plus(e["wrong"], own),  # equation 18
            "compensation": theta_minus(seen, hidden.detach()),
            # equation 20, at a tenth of its share in equation 22
            "image": 0.1
            * (
                self._image(recovered, face, mesh, "recovered")
                + self._image(anonymized, face, mesh, "other")
                + self._image(false, face, mesh, "other")
            ),
        }

    def _render(self, code: Tensor, attributes: Tensor, face: Tensor, mask: Tensor) -> Tensor:
        render = _draw(self.fixed.generator, self.mapper(code, attributes))
        return rounded(composite(face, match_tones(render, face, mask), mask))

    def _image(self, picture: Tensor, face: Tensor, mesh: Tensor, kind: str) -> Tensor:
        l1, lpips, points, parts = _IMAGE_WEIGHTS[kind]
        found = mesh_in_crop(self.fixed.landmarks, picture)
        return (
            l1 * (picture - face).abs().mean()
            + lpips * perceptual(self.fixed.features, picture, face)
            + points * 100 * (found - mesh).abs().mean()
            + parts * (regions(found) - regions(mesh)).square().mean().sqrt()
        )

    @torch.no_grad()
    def sheet(self) -> NDArray:
        face, _ = self.bank.held_out(6)
        rng = torch.Generator().manual_seed(5)
        key, wrong = (draw_keys(self.fixed.mapping, 6, rng, self.flow.params) for _ in range(2))
        mask = _oval(mesh_in_crop(self.fixed.landmarks, face))
        a = self.attributes(face)
        z = self.fixed.encoder(face)
        columns = [face] + [self._render(self.flow(z, k), a, face, mask) for k in (key, wrong)]
        seen, a_seen = self.compensation(self.fixed.encoder(columns[1])), self.attributes(columns[1])
        columns += [self._render(self.flow.inverse(seen, k), a_seen, columns[1], mask) for k in (key, wrong)]
        return tile(columns)


def jitter_and_recompress(faces: Tensor, rng: torch.Generator) -> Tensor:
    """Degradation of an anonymized photo before recovery: re-alignment error and JPEG compression."""
    return recompressed(jitter(faces, rng, shift=0.006, scale=0.01, turn=0.01), rng)


def _oval(mesh: Tensor) -> Tensor:
    """Soft mask [B, 1, SIDE, SIDE] of the face: the sigmoid of the signed distance to an ellipse."""
    outline = mesh[:, list(_PARTS["outline"])]
    low, high = outline.amin(1), outline.amax(1)
    low = low - (high - low) * mesh.new_tensor([0.0, 0.08])  # a little of the forehead above the mesh
    centre, half = (low + high) / 2, (high - low) / 2
    cells = (torch.arange(SIDE, dtype=mesh.dtype, device=mesh.device) + 0.5) / SIDE
    x = (cells[None] - centre[:, :1]) / half[:, :1]
    y = (cells[None] - centre[:, 1:]) / half[:, 1:]
    radius = (x[:, None, :] ** 2 + y[:, :, None] ** 2).sqrt()
    depth = (1 - radius) * half.mean(1)[:, None, None]
    return torch.sigmoid((depth - SOFTNESS) / SOFTNESS * 3)[:, None]
