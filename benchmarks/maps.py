"""The effect of the attention maps of DBAF and HFORD: faces rendered with maps and without.

python benchmarks/maps.py PHOTOS [--of hford] [--model RUN] [--limit 20] [--sheet FILE]

The first face of each photo is rendered under one key. The table gives mean absolute differences from the photo in grey
levels, around the face and where an occluder hides it. After compositing into the photo, it gives the cosine between
the identity codes of result and photo, and the mean change by the maps within the face.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from anonface.backends.latent_editing.backend import EDITORS, LatentEditingBackend, key_vectors
from anonface.crypto.keys import CONSISTENT_SALT, Key
from anonface.evaluation.judges import photos_of
from anonface.faces import align, parse
from anonface.faces.blend import composite
from anonface.faces.colour_transfer import match_tones
from anonface.faces.detect import build_detector

SIDE = 256
LEVELS = 127.5  # grey levels per unit of [-1, 1]
COLUMNS = ("about the face", "where something hides it", "cosine to the photo's code", "changed within the face")


def crops(photos: list[Path]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The first face of each photo: the crop [1, 3, S, S], its mask and its outline, binary [1, 1, S, S]."""
    detector, found = build_detector("yunet"), []
    for file in photos:
        rgb = np.asarray(Image.open(file).convert("RGB"))
        for face in detector.detect(rgb)[:1]:
            mesh = align.landmarks468(rgb, face)
            quad = align.ffhq_quad(mesh)
            crop = np.asarray(align.crop(rgb, quad, SIDE), np.uint8)
            points = align.transform(align.photo_to_crop(quad, SIDE), mesh)
            masks = (parse.face_mask(crop, points, SIDE, parser) for parser in ("trained", "landmarks"))
            mask, outline = (torch.from_numpy(np.asarray(one))[None, None] for one in masks)
            picture = torch.from_numpy(crop).permute(2, 0, 1)[None].float() / LEVELS - 1
            found.append((picture, mask, outline))
    return found


@torch.no_grad()
def renders(backend: LatentEditingBackend, picture: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """An anonymized face rendered without maps, with maps, and with maps within the face too."""
    networks = backend.networks
    codes, features = networks.encoder(picture)
    key = key_vectors(Key.from_bytes(bytes(range(32))).face(CONSISTENT_SALT, backend.name, 0), backend.mapping)
    latents = networks.encoder.to_latents(networks.anonymize(codes, networks.encoder.to_u(key)[None]))
    draw = networks.generator.synthesize
    details = networks.editor.details(features, mask), networks.editor.details(features)
    plain, kept, whole = draw(latents, SIDE), *(draw(latents, SIDE, details=some) for some in details)
    return plain.clamp(-1, 1), kept.clamp(-1, 1), whole.clamp(-1, 1)


def mean_within(error: Tensor, where: Tensor) -> float:
    """Mean of [1, 3, S, S] within a binary mask [1, 1, S, S]; NaN if it is empty."""
    return float((error * where).sum() / (3 * where.sum()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--of", choices=sorted(EDITORS), default="hford")
    parser.add_argument("--model", default="", help="a run's folder; without it the package's own weights")
    parser.add_argument("--limit", default=20, type=int)
    parser.add_argument("--sheet", type=Path, help="photo and the three renders, as a PNG")
    args = parser.parse_args()
    settings = {"model": args.model} if args.model else {}
    backend = LatentEditingBackend.load(args.of, torch.device("cpu"), settings)
    rows: dict[str, list[list[float]]] = {name: [] for name in ("without maps", "with maps", "within the face, too")}
    tiles = []
    for picture, mask, outline in crops(list(photos_of(args.photos))[: args.limit]):
        drawn = renders(backend, picture, mask)
        hidden = ((1 - mask) * outline).round()
        with torch.no_grad():
            blended = [composite(picture, match_tones(render, picture, mask), mask) for render in drawn]
            own, *codes = (backend.looks(one) for one in (picture, *blended))
        for results, render, shown, code in zip(rows.values(), drawn, blended, codes, strict=True):
            error = LEVELS * (render - picture).abs()
            change = mean_within(LEVELS * (shown - blended[0]).abs(), mask)
            alike = float(F.cosine_similarity(own, code))
            results.append([mean_within(error, (1 - mask) * (1 - outline)), mean_within(error, hidden), alike, change])
        tiles.append(torch.cat([picture, *drawn], dim=3)[0])
    print(f"| {args.of}, {len(tiles)} faces | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}")
    for name, results in rows.items():
        means = [statistics.fmean(value for value in column if value == value) for column in zip(*results, strict=True)]
        print(f"| {name} | {means[0]:.1f} | {means[1]:.1f} | {means[2]:.3f} | {means[3]:.1f} |")
    if args.sheet:
        sheet = (torch.cat(tiles, dim=1).permute(1, 2, 0) + 1) * LEVELS
        Image.fromarray(sheet.round().byte().numpy()).save(args.sheet)


if __name__ == "__main__":
    main()
