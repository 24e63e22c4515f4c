"""Training data of the face inpainter: aligned photos, real and drawn, with mask, identity code and embedding."""

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

from anonface.backends.generator import load_generator, load_mapping
from anonface.faces import align, parse
from anonface.faces.analysis import AnalysisNetworks, FaceAnalysis, load_analysis_networks
from anonface.faces.blend import soften
from anonface.faces.detect import build_detector
from anonface.models.mobile_stylegan import MappingNetwork, MobileStyleGAN
from anonface.training.data import levels, photograph, relit, row_generator
from anonface.training.recognizer import Recognizer, frames, load_recognizer

RENDER_SIDE = 256  # px at which faces are drawn, parsed and recognized
SIDE = 320  # px of the squares that are kept
TRUNCATION = 0.8  # of drawn photos: share of a style's way from the mean
SHARD = 100  # rows a file
MEAN_OF = 4096  # styles whose mean truncation goes towards
COVERED = 0.2  # share of drawn photos with something before the face


@dataclass(frozen=True)
class PortraitNetworks:
    """Frozen networks that make the rows."""

    analysis: AnalysisNetworks
    recognizer: Recognizer
    generator: MobileStyleGAN
    mapping: MappingNetwork
    mean: Tensor  # of styles, [512]

    @classmethod
    @torch.no_grad()
    def load(cls) -> PortraitNetworks:
        mapping = load_mapping()
        mean = mapping(torch.randn(MEAN_OF, 512, generator=torch.Generator().manual_seed(0))).mean(0)
        return cls(load_analysis_networks(), load_recognizer(), load_generator(), mapping, mean)


@dataclass(frozen=True)
class Portraits:
    """Rows of training data, S = SIDE.

    Attributes:
        photos: uint8 [N, 3, S, S], FFHQ-aligned.
        masks: uint8 [N, 1, S, S], the soft mask of the face.
        codes: float16 [N, 448], identity codes.
        known: float16 [N, 512], ArcFace embeddings.
        seems: float16 [N, 2], apparent sex (logit of "male") and age (years).
        styles: float16 [N, 512], the generator's latent W of drawn rows; zeros of photos.
    """

    photos: Tensor
    masks: Tensor
    codes: Tensor
    known: Tensor
    seems: Tensor
    styles: Tensor

    def __len__(self) -> int:
        return len(self.photos)


def photo_files(folders: Sequence[Path], seed: int = 19) -> list[Path]:
    """The JPEG and PNG files of some folders, mixed."""
    files = [file for folder in folders for file in sorted(folder.iterdir()) if file.suffix in (".jpg", ".png")]
    return [files[i] for i in torch.randperm(len(files), generator=torch.Generator().manual_seed(seed))]


def draw_shard(file: Path, number: int, photos: Sequence[Path], networks: PortraitNetworks, seed: int = 19) -> None:
    """Write one shard of :class:`Portraits`: photos while there are some, then drawn faces.

    It is a function of its number, the photos and the seed alone.
    """
    from safetensors.torch import save_file

    rows = []
    for row in range(number * SHARD, (number + 1) * SHARD):
        if row < len(photos):
            photo, styles = _aligned(photos[row]), torch.zeros(1, 512)
        else:
            photo, styles = _drawn(networks, row_generator(seed, row))
        rows.append({**_row(networks, photo), "styles": styles[0].half()})
    columns = {name: torch.stack([row[name] for row in rows]).contiguous() for name in rows[0]}
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(columns, f"{file}.part")
    Path(f"{file}.part").replace(file)


def load_shards(folder: Path, known: dict[Path, Portraits]) -> Portraits:
    """All shards of a folder, in order; those already ``known`` are not read again."""
    from safetensors.torch import load_file

    for file in sorted(folder.glob("*.safetensors")):
        if file not in known:
            known[file] = Portraits(**load_file(str(file)))
    parts = [known[file] for file in sorted(known)]
    return Portraits(**{name: torch.cat([getattr(part, name) for part in parts]) for name in vars(parts[0])})


@torch.no_grad()
def _row(networks: PortraitNetworks, square: Tensor) -> dict[str, Tensor]:
    """One row of an aligned square [1, 3, SIDE, SIDE]."""
    photo = levels(F.interpolate(square, (RENDER_SIDE, RENDER_SIDE), mode="area")).float() / 127.5 - 1
    crop = levels(photo)[0].permute(1, 2, 0).contiguous().numpy()
    analysis = FaceAnalysis(photo, networks.analysis)
    points = analysis.mesh[0].double().numpy() * RENDER_SIDE
    face = parse.face_mask(crop, points, RENDER_SIDE)
    mask = torch.from_numpy(soften(parse.with_margin(face, crop, points)))[None, None]
    return {
        "photos": levels(square)[0],
        "masks": levels(F.interpolate(mask * 2 - 1, (SIDE, SIDE), mode="bilinear"))[0],
        "codes": analysis.code[0].half(),
        "known": networks.recognizer(photo, frames(analysis.mesh))[0].half(),
        "seems": analysis.seems.half(),
    }


@torch.no_grad()
def _drawn(networks: PortraitNetworks, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """A drawn face, relit, and its latent W [1, 512]; half of the faces as a camera might take them."""
    styles = torch.lerp(networks.mean, networks.mapping(torch.randn(1, 512, generator=rng)), TRUNCATION)
    latents = styles[:, None].expand(-1, MobileStyleGAN.TIED, -1)
    drawn = F.interpolate(networks.generator.synthesize(latents, 2 * RENDER_SIDE), (SIDE, SIDE), mode="area")
    photo = relit(drawn.clamp(-1, 1), rng)
    if torch.rand((), generator=rng) < 0.5:
        photo = photograph(photo, rng, covered=COVERED)
    return photo, styles


def _aligned(file: Path) -> Tensor:
    """The largest face of a photo as FFHQ aligns it, or the whole square where none is found; [1, 3, S, S]."""
    pixels: NDArray[np.uint8] = np.asarray(Image.open(file).convert("RGB"))
    if faces := build_detector("yunet").detect(pixels):
        face = max(faces, key=lambda one: one.box[2] * one.box[3])
        quad = align.ffhq_quad(align.mesh468(pixels, face))
        pixels = align.crop(pixels, quad, SIDE)
    whole = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
    return F.interpolate(whole, (SIDE, SIDE), mode="bilinear", antialias=True).clamp(-1, 1)
