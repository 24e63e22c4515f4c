"""Training data: faces drawn by the generator, and their augmentations.

Images are [B, 3, S, S] in [-1, 1]. Every random function takes a torch.Generator, so a step's data depend on its seed
alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from anonface.models.identity_flow import FlowKey, SecureIdentityFlowParams, orthogonal_mixes
from anonface.models.mobile_stylegan import MappingNetwork, MobileStyleGAN


def draw_latents(
    mapping: MappingNetwork, count: int, rng: torch.Generator, n_latents: int = MobileStyleGAN.TIED, mix: float = 0.5
) -> Tensor:
    """Random W+ codes [count, n_latents, 512]; a share ``mix`` has styles of two w, mixed at a random layer."""
    z = torch.randn(2 * count, 512, generator=rng)
    with torch.no_grad():
        w = mapping(z.to(next(mapping.parameters()).device))
    first, second = w[:count, None], w[count:, None]
    cut = torch.randint(1, n_latents, (count, 1, 1), generator=rng)
    cut = torch.where(torch.rand(count, 1, 1, generator=rng) < mix, cut, n_latents).to(w.device)
    late = torch.arange(n_latents, device=w.device)[None, :, None] >= cut
    return torch.where(late, second, first).contiguous()


def draw_keys(mapping: MappingNetwork, count: int, rng: torch.Generator, params: SecureIdentityFlowParams) -> FlowKey:
    """Random keys distributed like those of the key generator (equation 4)."""
    unit = torch.randint(256, (count, params.key), generator=rng) / 127.5 - 1
    with torch.no_grad():
        k = mapping(unit)
    normals = torch.randn(count, *params.mixes, generator=rng, dtype=torch.float64)
    low, high = params.cosines
    cosines = low + (high - low) * torch.rand(count, generator=rng, dtype=torch.float64)
    return FlowKey(k, torch.from_numpy(orthogonal_mixes(normals.numpy(), cosines.numpy())).float())


HELD_OUT = 64  # validation faces at the end of a bank
BANK_SIDE, BANK_SEED = 128, 7


@dataclass
class FaceBank:
    """Stored faces: images uint8 [N, 3, S, S] and their latents float16 [N, n, 512]; the last HELD_OUT validate."""

    images: Tensor
    latents: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def draw(self, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Indices [count], images in [-1, 1] and latents float32 of random training faces."""
        chosen = torch.randint(len(self) - HELD_OUT, (count,), generator=rng)
        return chosen, self.faces(chosen), self.latents[chosen].float()

    def faces(self, index: Tensor | slice) -> Tensor:
        return self.images[index].float() / 127.5 - 1

    def held_out(self, count: int) -> tuple[Tensor, Tensor]:
        """Images and latents of validation faces."""
        index = slice(len(self) - HELD_OUT, len(self) - HELD_OUT + count)
        return self.faces(index), self.latents[index].float()


def drawn_rows(
    file: Path,
    count: int,
    draw: Callable[[int], dict[str, Tensor]],
    saved_every: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Tensor]:
    """The first ``count`` rows of the columns in ``file``; missing rows are drawn and saved.

    Args:
        draw: the number of existing rows -> further rows of every column. It depends on that number alone.
        saved_every: rows between two saves.
        progress: called with (existing rows, count).
    """
    from safetensors.torch import load_file, save_file

    rows = load_file(str(file)) if file.exists() else {}
    parts = [rows] if rows else []
    done = len(next(iter(rows.values()))) if rows else 0
    while done < count:
        parts.append(draw(done))
        done += len(next(iter(parts[-1].values())))
        if done % saved_every == 0 or done >= count:
            rows = {name: torch.cat([part[name] for part in parts]).contiguous() for name in parts[0]}
            parts = [rows]
            file.parent.mkdir(parents=True, exist_ok=True)
            save_file(rows, f"{file}.part")
            Path(f"{file}.part").replace(file)
        progress(done, count)
    return {name: column[:count] for name, column in rows.items()}


def row_generator(seed: int, row: int) -> torch.Generator:
    """The random generator of the rows that start at ``row``."""
    return torch.Generator().manual_seed(seed * 1_000_003 + row)


def load_bank(
    file: Path,
    generator: MobileStyleGAN,
    mapping: MappingNetwork,
    count: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> FaceBank:
    """The first ``count`` faces of the bank in ``file``, at BANK_SIDE px; missing ones are rendered and saved first."""

    @torch.inference_mode()
    def draw(done: int) -> dict[str, Tensor]:
        w = draw_latents(mapping, 4, row_generator(BANK_SEED, done))
        render = F.adaptive_avg_pool2d(generator.synthesize(w, 256), BANK_SIDE)
        return {"images": levels(render), "latents": w.half()}

    return FaceBank(**drawn_rows(file, count, draw, 1000, progress))


class FacePool:
    """Rendered faces on the generator's device, which are gradually replaced.

    Args:
        size: number of faces in the pool, uint8; a face of 256 px takes 0.2 MB.
        fresh: number of faces rendered at each draw once the pool is full. With the batch size every face is used about
            once. On a CPU, where rendering takes as long as a training step, it is one.
    """

    def __init__(self, generator: MobileStyleGAN, mapping: MappingNetwork, size: int, fresh: int, side: int = 256):
        self.generator, self.mapping, self.size, self.fresh, self.side = generator, mapping, size, fresh, side
        self.images = torch.empty(0, 3, side, side, dtype=torch.uint8, device=next(mapping.parameters()).device)

    @torch.no_grad()
    def render(self, count: int, rng: torch.Generator) -> Tensor:
        """``count`` new faces, uint8 [count, 3, S, S]."""
        faces = self.generator.synthesize(draw_latents(self.mapping, count, rng), self.side)
        return levels(faces)

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """Random faces [count, 3, S, S] in [-1, 1], mirrored and relit at random."""
        return relit(self.pick(count, rng), rng)

    @torch.no_grad()
    def pick(self, count: int, rng: torch.Generator) -> Tensor:
        """Refresh the pool, then take random members [count, C, S, S] in [-1, 1], mirrored at random."""
        filling = len(self.images) < self.size
        new = self.render(max(self.fresh, count) if filling else self.fresh, rng)
        self.images = torch.cat([self.images, new])[-self.size :]
        chosen = torch.randint(len(self.images), (count,), generator=rng)
        return mirrored(self.images[chosen.to(self.images.device)].float() / 127.5 - 1, rng)


def mirrored(pictures: Tensor, rng: torch.Generator) -> Tensor:
    """Pictures [B, C, S, S], each flipped horizontally with probability 0.5; runs on their device."""
    turned = torch.rand(len(pictures), 1, 1, 1, generator=rng).to(pictures.device) < 0.5
    return torch.where(turned, pictures.flip(3), pictures)


def cropped(pictures: Tensor, side: int, rng: torch.Generator) -> Tensor:
    """A random square of each picture [B, C, S, S], aligned to a grid of 8 px."""
    room = (pictures.shape[-1] - side) // 8 + 1
    return squares(pictures, 8 * torch.randint(room, (len(pictures), 2), generator=rng), side)


def squares(pictures: Tensor, corners: Tensor, side: int) -> Tensor:
    """One square of each picture [B, C, S, S], its upper left corner at ``corners`` [B, 2] (row, column)."""
    return torch.stack([p[:, y : y + side, x : x + side] for p, (y, x) in zip(pictures, corners.tolist(), strict=True)])


def relit(faces: Tensor, rng: torch.Generator) -> Tensor:
    """Faces [B, 3, S, S] in [-1, 1] with random gamma, gain and colour cast, some grey; runs on the faces' device."""

    def uniform(low: float, high: float, channels: int = 1) -> Tensor:
        drawn = torch.rand(len(faces), channels, 1, 1, generator=rng)
        return (low + (high - low) * drawn).to(faces)

    light = ((faces + 1) / 2).clamp(1e-4, 1) ** uniform(0.7, 1.4)
    light = light * uniform(0.75, 1.15) * uniform(0.9, 1.1, 3)
    grey = light.mean(1, keepdim=True).expand_as(light)
    return torch.where(uniform(0, 1) < 0.1, grey, light).clamp(0, 1) * 2 - 1


def jitter(
    faces: Tensor, rng: torch.Generator, shift: float = 0.015, scale: float = 0.03, turn: float = 0.03
) -> Tensor:
    """Faces [B, 3, S, S] with a random re-alignment error.

    The standard deviations are ``shift`` in shares of the side (0.015 is 4 px of 256), half of ``scale``, and half of
    ``turn`` in radians.
    """
    n = len(faces)
    dx, dy, ds, a = (torch.randn(n, generator=rng) * 0.5 * s for s in (2 * shift, 2 * shift, scale, turn))
    cos, sin = (1 + ds) * torch.cos(a), (1 + ds) * torch.sin(a)
    theta = torch.stack([torch.stack([cos, -sin, dx], 1), torch.stack([sin, cos, dy], 1)], 1).to(faces)
    grid = F.affine_grid(theta, list(faces.shape), align_corners=False)
    return F.grid_sample(faces, grid, padding_mode="reflection", align_corners=False)


def photograph(faces: Tensor, rng: torch.Generator, covered: float = 0.3) -> Tensor:
    """Faces with random degradations of cameras and files: light, colour cast, blur, noise, resizing, JPEG.

    With probability ``covered`` a face gets a plain occluder.
    """
    return torch.stack([_photograph_one(face, rng, covered) for face in faces])


def rounded(faces: Tensor) -> Tensor:
    """8-bit rounding with a straight-through gradient."""
    stored = ((faces.clamp(-1, 1) + 1) * 127.5).round() / 127.5 - 1
    return faces + (stored - faces).detach()


def recompressed(faces: Tensor, rng: torch.Generator) -> Tensor:
    """Faces [B, 3, S, S] in [-1, 1] after JPEG compression of quality 60 to 100, with a straight-through gradient."""
    pixels = levels(faces.detach()).permute(0, 2, 3, 1).cpu().numpy()
    qualities = torch.randint(60, 101, (len(faces),), generator=rng).tolist()
    pictures = np.stack([through_jpeg(*photo) for photo in zip(pixels, qualities, strict=True)])
    stored = torch.from_numpy(pictures).permute(0, 3, 1, 2).to(faces) / 127.5 - 1
    return faces + (stored - faces).detach()


def levels(pictures: Tensor) -> Tensor:
    """Pictures in [-1, 1], clamped, as uint8 of the same shape."""
    return ((pictures.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def uniform(rng: torch.Generator, low: float, high: float) -> float:
    """A random number between two."""
    return low + (high - low) * float(torch.rand((), generator=rng))


def _photograph_one(face: Tensor, rng: torch.Generator, covered: float) -> Tensor:
    image: NDArray = ((face.permute(1, 2, 0).numpy() + 1) / 2).clip(0, 1).astype(np.float32)
    side = image.shape[0]
    if uniform(rng, 0, 1) < covered:
        image = _occlude(image, rng)
    image = image ** uniform(rng, 0.6, 1.6)
    cast = np.array([uniform(rng, 0.85, 1.15) for _ in range(3)], np.float32)
    image = (image - 0.5) * uniform(rng, 0.7, 1.2) + 0.5 + uniform(rng, -0.1, 0.1)
    image = image * cast
    if uniform(rng, 0, 1) < 0.15:
        image = np.repeat(image.mean(2, keepdims=True), 3, axis=2)
    if uniform(rng, 0, 1) < 0.4:
        image = cv2.GaussianBlur(image, (0, 0), uniform(rng, 0.3, 1.3) * side / 128)
    if uniform(rng, 0, 1) < 0.4:
        small = round(side * uniform(rng, 0.4, 0.9))
        image = cv2.resize(cv2.resize(image, (small, small), interpolation=cv2.INTER_AREA), (side, side))
    if uniform(rng, 0, 1) < 0.4:
        noise = torch.randn(side, side, 3, generator=rng).numpy()
        image = image + noise * uniform(rng, 0.005, 0.04)
    pixels = (image.clip(0, 1) * 255).round().astype(np.uint8)
    if uniform(rng, 0, 1) < 0.5:
        quality = int(uniform(rng, 50, 95))
        pixels = through_jpeg(pixels, quality)
    return torch.from_numpy(pixels.astype(np.float32) / 127.5 - 1).permute(2, 0, 1)


def through_jpeg(pixels: NDArray, quality: int) -> NDArray:
    """uint8 [H, W, 3] after JPEG compression."""
    decoded = cv2.imdecode(cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])[1], cv2.IMREAD_COLOR)
    assert decoded is not None
    return decoded


def _occlude(image: NDArray, rng: torch.Generator) -> NDArray:
    """The crop with an ellipse of one colour at a random place, of the size of a hand, a cup or a strand."""
    side = image.shape[0]
    canvas = image.copy()
    centre = (int(uniform(rng, 0, side)), int(uniform(rng, 0.3 * side, side)))
    axes = (int(uniform(rng, 0.04, 0.16) * side), int(uniform(rng, 0.08, 0.3) * side))
    colour = tuple(uniform(rng, 0, 1) for _ in range(3))
    cv2.ellipse(canvas, centre, axes, uniform(rng, 0, 180), 0, 360, colour, -1, cv2.LINE_AA)
    return cv2.addWeighted(canvas, 0.9, image, 0.1, 0)


def tile(columns: list[Tensor]) -> np.ndarray:
    """A contact sheet with one column for each [B, 3, S, S] in [-1, 1]: uint8 [B*S, len*S, 3]."""
    sheet = torch.cat([torch.cat(list(c.float().cpu()), dim=1) for c in columns], dim=2)
    return levels(sheet).permute(1, 2, 0).numpy()
