"""Make the example photos: people who do not exist, drawn from the generator that anonface ships with.

python examples/make.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from anonface.backends.generator import load_generator, load_mapping

Pixels = NDArray[np.uint8]

TRUNCATION = 0.75  # towards the mean face: fewer strange ones
MEAN_OF = 512  # latents
SIDE = 1024  # px, of a rendered face

CALL, GAP, WALL = (1061, 800), 16, (26, 28, 34)  # px, px, RGB
SPEAKER = 46
LISTENERS = (17, 24, 29)


def people(numbers: list[int]) -> dict[int, Image.Image]:
    """One rendered face a number; the same number is the same person everywhere."""
    generator, mapping = load_generator(), load_mapping()

    def latent(number: int, count: int = 1) -> torch.Tensor:
        draws = np.random.default_rng(number).standard_normal((count, 512)).astype(np.float32)
        return mapping(torch.from_numpy(draws))

    faces = {}
    with torch.inference_mode():
        mean = latent(999, MEAN_OF).mean(0, keepdim=True)
        for number in numbers:
            code = mean + TRUNCATION * (latent(number) - mean)
            image = generator.synthesize(code[:, None].repeat(1, generator.n_latents, 1), SIDE)[0]
            levels = ((image.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
            faces[number] = Image.fromarray(levels.permute(1, 2, 0).numpy())
    return faces


def lit(face: Image.Image, gamma: float = 1.0, colour: tuple[float, float, float] = (1, 1, 1)) -> Image.Image:
    """Another light: gamma above 1 darkens, ``colour`` scales red, green and blue."""
    values = (np.asarray(face) / 255.0) ** gamma * np.asarray(colour)
    return Image.fromarray((values.clip(0, 1) * 255).round().astype(np.uint8))


def call(faces: dict[int, Image.Image]) -> Image.Image:
    """A group: the screen of a video call, one speaker and three listeners."""
    screen = Image.new("RGB", CALL, WALL)
    small = (CALL[1] - 4 * GAP) // 3
    large = CALL[1] - 2 * GAP
    screen.paste(faces[SPEAKER].resize((large, large), Image.Resampling.LANCZOS), (GAP, GAP))
    for place, number in enumerate(LISTENERS):
        tile = faces[number].resize((small, small), Image.Resampling.LANCZOS)
        screen.paste(tile, (2 * GAP + large, GAP + place * (small + GAP)))
    return screen


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    faces = people([21, 31, 32, SPEAKER, *LISTENERS])
    faces[17] = lit(faces[17], 1.5)
    faces[24] = lit(faces[24], 0.9, (1.0, 0.93, 0.82))
    photos = {
        "large.jpg": faces[32],
        "evening.jpg": lit(faces[31].resize((640, 640), Image.Resampling.LANCZOS), 1.2, (1.0, 0.93, 0.82)),
        "small.jpg": faces[21].resize((256, 256), Image.Resampling.LANCZOS),
        "call.jpg": call(faces),
    }
    for name, photo in photos.items():
        photo.save(folder / name, quality=88)


if __name__ == "__main__":
    main()
