"""Training triplets for a face translator: a photo, the same photo with another person's face, and who both are.

The photo is a real one, or drawn by the generator. The other faces are drawn: the photo's own latents, or for a real
photo their inversion, in which another person's identity features take the place of the photo's. Pose, expression and
light stay nearly the same, so the two pictures supervise a translator in both directions. From the composite back to
the photo the target is a photograph without any fault, as in ReliableSwap (Yuan et al. 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from anonface.backends.ifadit.target_identity import attribute_mismatch, exchanged
from anonface.faces import align, parse
from anonface.faces.analysis import FaceAnalysis, mesh_in_crop
from anonface.faces.blend import composite, soften
from anonface.faces.detect import build_detector
from anonface.faces.occlusion import keep_photo_skin
from anonface.faces.recognizer import frames
from anonface.models.inversion import CODE_OF_LATENT
from anonface.models.latent_editing import CODES
from anonface.training.data import levels, photograph, relit, row_generator, uniform
from anonface.training.realism_critic import SampleNetworks

RENDER_SIDE = 256  # px at which faces are drawn and parsed
SIDE = 160  # px of the aligned squares that are kept
OTHERS = 2  # other people in each photo
ASKED = 64  # drawn people of whom those are taken who fit the photo's sex, age and skin tone best
BOLDNESS = (1.0, 1.5)  # weight of the other person's identity features
TRUNCATION = 0.8  # of drawn photos: share of a style's way from the mean
SHARD = 100  # rows a file
KEPT_OUT = 100  # the first shard's rows, for sheets
PAIRS, PHOTOS = "[0-9]*.safetensors", "photos-*.safetensors"  # names of shards


@dataclass(frozen=True)
class Exchanges:
    """Rows of training data, S = SIDE.

    Attributes:
        photos: uint8 [N, 3, S, S], FFHQ-aligned.
        others: uint8 [N, OTHERS, 3, S, S], the photo with somebody else's face; none in shards of photos alone.
        masks: uint8 [N, 1, S, S], the soft mask within which they differ.
        codes: float16 [N, 1 + OTHERS, 448], identity codes of the photo and the others.
        known: float16 [N, 1 + OTHERS, 512], ArcFace embeddings of the same.
        mesh: float16 [N, 468, 2], the photo's landmarks in shares of the side.
        seems: float16 [N, 2], apparent sex (logit of "male") and age (years) of the photo.
        real: uint8 [N], 1 where the photo is a photograph of a real person.
    """

    photos: Tensor
    others: Tensor
    masks: Tensor
    codes: Tensor
    known: Tensor
    mesh: Tensor
    seems: Tensor
    real: Tensor

    def __len__(self) -> int:
        return len(self.photos)


def photo_files(folders: Sequence[Path]) -> list[Path]:
    """The JPEG and PNG files of some folders, sorted by folder and name."""
    return [file for folder in folders for file in sorted(folder.iterdir()) if file.suffix in (".jpg", ".png")]


def draw_shard(
    file: Path, number: int, photos: Sequence[Path], networks: SampleNetworks, seed: int = 19, alone: bool = False
) -> None:
    """Write one shard of :class:`Exchanges`: a function of its number, the photos and the seed alone.

    Three of four rows show real photos in turn, where there are some; the others are drawn. ``alone`` writes real
    photos without other faces, as many as are left from the shard's first on.
    """
    from safetensors.torch import save_file

    rows = []
    for row in range(number * SHARD, (number + 1) * SHARD):
        rng = row_generator(seed, row)
        if alone:
            if row < len(photos):
                rows.append(_row(networks, rng, photos[row], others=0))
            continue
        real = bool(photos) and row % 4 != 3
        picked = photos[(row // 4 * 3 + row % 4) % len(photos)] if real else None
        rows.append(_row(networks, rng, picked))
    columns = {name: torch.stack([row[name] for row in rows]).contiguous() for name in rows[0]}
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(columns, f"{file}.part")
    Path(f"{file}.part").replace(file)


def load_shards(folder: Path, known: dict[Path, Exchanges], names: str = PAIRS) -> Exchanges:
    """All shards of a folder under such names, in order; those already ``known`` are not read again."""
    from safetensors.torch import load_file

    for file in sorted(folder.glob(names)):
        if file not in known:
            known[file] = Exchanges(**load_file(str(file)))
    parts = [known[file] for file in sorted(known) if file.match(names)]
    return Exchanges(**{name: torch.cat([getattr(part, name) for part in parts]) for name in vars(parts[0])})


@torch.no_grad()
def _row(networks: SampleNetworks, rng: torch.Generator, file: Path | None, others: int = OTHERS) -> dict[str, Tensor]:
    eyes, inversion = networks.eyes, networks.inversion
    if file is None:
        style = networks.mapping(torch.randn(1, 512, generator=rng))
        latents = torch.lerp(networks.regressor.mean, style, TRUNCATION)[:, None].expand(-1, CODES, -1)
        photo = relit(_drawn(networks, latents), rng)
        photo = photograph(photo, rng, covered=0.2) if torch.rand((), generator=rng) < 0.5 else photo
    else:
        photo = _aligned(file)
        latents = inversion.to_w(inversion(photo)[0]) if others else photo
    photo = levels(photo).float() / 127.5 - 1
    crop = levels(photo)[0].permute(1, 2, 0).contiguous().numpy()
    mesh = mesh_in_crop(eyes.landmarks, photo)
    points = mesh[0].double().numpy() * RENDER_SIDE
    face = parse.face_mask(crop, points, RENDER_SIDE)
    mask = torch.from_numpy(soften(parse.with_margin(face, crop, points)))[None, None]
    analysis = FaceAnalysis(photo, eyes)
    pictures = [photo]
    for features in _other_features(networks, analysis, rng) if others else ():
        codes = exchanged(latents, features, networks.regressor, 1.0, uniform(rng, *BOLDNESS))
        pictures.append(composite(photo, keep_photo_skin(_drawn(networks, codes), photo, mask, analysis), mask))
    every = torch.cat(pictures)
    meshes = torch.cat([mesh_in_crop(eyes.landmarks, one[None]) for one in every])
    small = F.interpolate(torch.cat([every, mask.expand(1, 3, -1, -1) * 2 - 1]), (SIDE, SIDE), mode="area")
    stored = levels(small)
    return {
        "photos": stored[0],
        "others": stored[1:-1],
        "masks": stored[-1, :1],
        "codes": eyes.encoder(every).half(),
        "known": eyes.recognizer(every, frames(meshes)).half(),
        "mesh": mesh[0].half(),
        "seems": analysis.seems.half(),
        "real": torch.tensor(file is not None, dtype=torch.uint8),
    }


def _other_features(networks: SampleNetworks, analysis: FaceAnalysis, rng: torch.Generator) -> Tensor:
    """Identity features of those of ASKED drawn people who fit a photo's sex, age and skin tone best."""
    asked = networks.mapping(torch.randn(ASKED, 512, generator=rng))
    strange = attribute_mismatch(networks.regressor(asked), networks.regressor, analysis.code, analysis.seems)
    return networks.regressor.features(asked[strange.argsort()[:OTHERS]])


def _drawn(networks: SampleNetworks, codes: Tensor) -> Tensor:
    """The face of codes [1, 14, 512], [1, 3, RENDER_SIDE, RENDER_SIDE] in [-1, 1]."""
    return networks.generator.synthesize(codes[:, list(CODE_OF_LATENT)], RENDER_SIDE).clamp(-1, 1)


def _aligned(file: Path) -> Tensor:
    """The largest face of a photo as FFHQ aligns it, or the whole square where none is found; [1, 3, S, S]."""
    pixels: NDArray[np.uint8] = np.asarray(Image.open(file).convert("RGB"))
    if faces := build_detector("yunet").detect(pixels):
        face = max(faces, key=lambda one: one.box[2] * one.box[3])
        quad = align.ffhq_quad(align.mesh468(pixels, face))
        pixels = align.crop(pixels, quad, RENDER_SIDE)
    whole = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
    return F.interpolate(whole, (RENDER_SIDE, RENDER_SIDE), mode="bilinear", antialias=True).clamp(-1, 1)
