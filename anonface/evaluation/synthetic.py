"""Photos of synthetic faces, drawn by the generator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from anonface.backends.generator import load_generator, load_mapping
from anonface.images import Photo, encode_photo, write_atomic

SIDE = 256  # px, as published figures are taken at
FINE = 512  # px, of the rendering, which is then reduced to SIDE
SEED = 20_000_003  # training uses other seeds


def draw_photos(folder: Path, count: int, seed: int = SEED) -> None:
    """Write ``count`` faces as PNG files, SIDE px square, from untruncated style codes w = f(z).

    The n-th face is the same whatever the count.

    Raises:
        WeightsError: the generator's weights cannot be had.
    """
    generator, mapping = load_generator(), load_mapping()
    for number in range(count):
        rng = torch.Generator().manual_seed(seed + number)
        with torch.inference_mode():
            w = mapping(torch.randn(1, 512, generator=rng))
            face = F.adaptive_avg_pool2d(generator.synthesize(w[:, None], FINE), SIDE)[0]
        pixels = ((face.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(1, 2, 0).numpy()
        photo = Photo(np.ascontiguousarray(pixels), None, None, "png")
        write_atomic(folder / f"synthetic {number:04}.png", encode_photo(photo))
