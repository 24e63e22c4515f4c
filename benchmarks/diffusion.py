"""Errors of a diffusion model's recovery, step by step, and its speed.

python benchmarks/diffusion.py MODEL [--faces 4] [--steps 50] [--device cuda] [--only "round trips" ...]

MODEL is a value of --model. The faces are synthetic, drawn by the default generator. Errors of latents are relative,
inside the region. Errors of pictures are PSNR in dB within the visible mask. The last table compares the time of a
whole face with a plain loop of diffusers' two schedulers over the same networks, and with a lower bound: the counted
operations divided by the rate of large matrix products on this machine.
"""

from __future__ import annotations

import argparse
import copy
import functools
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from faces import matmul_rate, operations, seconds
from numpy.typing import NDArray
from torch import Tensor

from anonface.backends.base import Settings
from anonface.backends.diffusion.backend import BACKGROUNDS, Diffusion
from anonface.backends.diffusion.ddim import Schedule, denoise, invert
from anonface.backends.diffusion.files import load_model
from anonface.backends.generator import load_generator, load_mapping
from anonface.crypto import keyed_noise
from anonface.crypto.keys import CONSISTENT_SALT, FaceKey, Key
from anonface.images import Photo, encode_photo, read_photo
from anonface.models.latent_diffusion import LatentDiffusion
from anonface.models.mobile_stylegan import MappingNetwork, MobileStyleGAN
from anonface.training.data import draw_latents, through_jpeg

CHOSEN, ENCODED = 64, 20

Row = tuple[str, ...]


def table(title: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Print aligned columns, row by row."""
    print(f"\n{title}")
    print("  ".join(f"{column:>14}" for column in columns))
    for row in rows:
        print("  ".join(f"{cell:>14}" for cell in row), flush=True)


def drawn_faces(count: int, seed: int, backend: Diffusion) -> Tensor:
    """Synthetic faces [count, 3, R, R], in 8 bits."""
    generator, mapping = networks()
    w = draw_latents(mapping, count, torch.Generator().manual_seed(seed), mix=0.0)
    side = backend.model.resolution
    return rounded(F.interpolate(generator.synthesize(w, 512), (side, side), mode="area")).to(backend.device)


@functools.cache
def networks() -> tuple[MobileStyleGAN, MappingNetwork]:
    return load_generator(), load_mapping()


def relative(got: Tensor, wanted: Tensor, cells: Tensor) -> str:
    inside = cells.expand_as(got)
    return f"{float((got - wanted)[inside].norm() / wanted[inside].norm()):.4f}"


def psnr(a: Tensor, b: Tensor, shown: Tensor) -> str:
    squared = ((a - b).square() * shown).sum() / (3 * shown.sum())
    return f"{float(10 * torch.log10(4 / squared)):.1f}"


def rounded(faces: Tensor) -> Tensor:
    return ((faces.clamp(-1, 1) + 1) * 127.5).round() / 127.5 - 1


def round_trips(backend: Diffusion, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Iterable[Row]:
    """The autoencoder alone, on latents of faces and on keyed latents, with and without 8-bit rounding."""
    model, cells, shown = backend.model, backend.cells(masks).to(faces.device), backend.visible(masks).to(faces.device)
    clean = model.encode(faces)
    for name, latents in (("clean", clean), ("turned", backend.transform_latents(clean, cells, keys))):
        picture = model.decode(latents)
        again = [model.encode(seen) for seen in (picture, picture.clamp(-1, 1), rounded(picture))]
        quality = psnr(picture, faces, shown) if name == "clean" else ""
        yield name, quality, *(relative(seen, latents, cells) for seen in again)


def inversions(backend: Diffusion, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Iterable[Row]:
    """Inversion and denoising without a key: the error by steps, iterations and background."""
    model, cells = backend.model, backend.cells(masks).to(faces.device)
    clean = model.encode(faces)
    noise = torch.stack([keyed_noise.background_noise(key, clean.shape[1:]) for key in keys]).to(clean)
    for steps in (backend.settings.steps // 2, backend.settings.steps, 2 * backend.settings.steps):
        schedule = backend.under({"steps": steps}).schedule
        for iterations in (1, 2, 4):
            row = [str(steps), str(iterations)]
            held = schedule.noised(clean, noise)
            for background in (held, None):
                mask = cells if background else None
                trajectory = invert(clean, model.noise, schedule, iterations, mask, background)
                back = denoise(trajectory[-1], model.noise, schedule, cells, background or trajectory)
                row.append(relative(back, clean, cells))
            yield *row, f"{float(trajectory[-1].std()):.3f}"


def by_step(backend: Diffusion, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Iterable[Row]:
    """Each step of inversion alone, then back: the error of every noise level."""
    model, cells, schedule = backend.model, backend.cells(masks).to(faces.device), backend.schedule
    trajectory = invert(model.encode(faces), model.noise, schedule, 1)
    for i in range(0, len(schedule.timesteps), max(1, len(schedule.timesteps) // 10)):
        one = type(schedule)(schedule.timesteps[i : i + 1], schedule.kept[i : i + 2])
        row = [str(schedule.timesteps[i]), f"{schedule.kept[i + 1]:.4f}"]
        for iterations in (1, 2, 4):
            ends = invert(trajectory[i], model.noise, one, iterations)
            row.append(relative(denoise(ends[-1], model.noise, one, cells, ends), trajectory[i], cells))
        yield tuple(row)


def noise_back(backend: Diffusion, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Iterable[Row]:
    """Noise denoised to a face and inverted again, by the spacing of steps and the noise's standard deviation."""
    model, cells = backend.model, backend.cells(masks).to(faces.device)
    clean = model.encode(faces)
    for spacing in ("even", "i^2"):
        schedule = Schedule.of(
            model.diffusion, backend.settings.steps, first=-1 if spacing == "even" else backend.settings.first
        )
        for spread in (1.0, 0.85):
            drawn = spread * torch.stack([keyed_noise.background_noise(key, clean.shape[1:]) for key in keys]).to(clean)
            held = surroundings(backend, schedule, clean, drawn)
            face = denoise(drawn, model.noise, schedule, cells, held)
            again = invert(face, model.noise, schedule, backend.settings.iterations, cells, held)[-1]
            yield spacing, str(spread), relative(again, drawn, cells)


def surroundings(backend: Diffusion, schedule: Schedule, clean: Tensor, noise: Tensor) -> list[Tensor]:
    """The background at each noise level, known at anonymization and at recovery."""
    return [clean] * len(schedule.kept) if backend.model.continues else schedule.noised(clean, noise)


def recoveries(backend: Diffusion, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Iterable[Row]:
    """Anonymization and recovery through 8-bit pictures: with the right mask, a moved mask, and a wrong key."""
    model = backend.model
    moved = masks.roll(masks.shape[-1] // model.side, -1)
    wrong = [Key(bytes([200 + n]) * 32).face(CONSISTENT_SALT, "diffusion", n) for n in range(len(keys))]
    for transform in ("mix", "sign"):
        for background in BACKGROUNDS:
            if background == "clean" and (transform == "sign" or not model.continues):
                continue
            for iterations in (1, 2, 4):
                turned = backend.under({"transform": transform, "background": background, "iterations": iterations})
                cells, shown = turned.cells(masks).to(faces.device), turned.visible(masks).to(faces.device)
                clean = model.encode(faces)
                other = turned.transform_latents(clean, cells, keys)
                anonymized = rounded(shown * model.decode(other).clamp(-1, 1) + (1 - shown) * faces)
                ways = ((masks, keys), (moved, keys), (masks, wrong))
                pictures = [rounded(turned.recover(anonymized, cover, with_keys)) for cover, with_keys in ways]
                yield (
                    transform,
                    background,
                    str(iterations),
                    relative(turned.transform_latents(other, cells, keys, back=True), clean, cells),
                    psnr(anonymized, faces, shown),
                    *(psnr(picture, faces, shown) for picture in pictures),
                )


def plain_loop(backend: Diffusion, faces: Tensor, signs: Tensor) -> Tensor:
    """Encode, invert, flip signs, denoise and decode with diffusers' schedulers, without background and iterations."""
    from diffusers import DDIMInverseScheduler

    model = backend.model
    up, down = DDIMInverseScheduler.from_config(model.diffusion.config), model.diffusion
    up.set_timesteps(backend.settings.steps)
    down.set_timesteps(backend.settings.steps)
    latents = model.encode(faces)
    for timestep in up.timesteps:
        latents = up.step(model.noise(latents, int(timestep)), timestep, latents).prev_sample
    latents = latents * signs
    for timestep in down.timesteps:
        latents = down.step(model.noise(latents, int(timestep)), timestep, latents).prev_sample
    return model.decode(latents)


def precisions(
    backend: Diffusion, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey], plain: LatentDiffusion
) -> Iterable[Row]:
    """The effect of bfloat16 in the UNet on recovery, and the seconds for one face.

    The error is measured on latents directly, and through an 8-bit picture of the anonymized face.
    """
    cells = backend.cells(masks).to(faces.device)
    ways = {name: in_float32(copy.deepcopy(plain), backend) for name in ("float32", "bfloat16")}
    ways["bfloat16"].narrow()
    clean = backend.model.encode(faces)
    for anonymizing, recovering in (
        ("float32",) * 2,
        ("bfloat16",) * 2,
        ("float32", "bfloat16"),
        ("bfloat16", "float32"),
    ):
        other = ways[anonymizing].transform_latents(clean, cells, keys)
        seen = torch.where(
            cells, backend.model.read(rounded(backend.model.picture(other, backend.resolutions[-1]))), clean
        )
        way = ways[recovering]
        took = seconds(functools.partial(way.transform_latents, other[:1], cells[:1], keys[:1]), 1, faces.device)
        errors = [
            relative(way.transform_latents(latents, cells, keys, back=True), clean, cells) for latents in (other, seen)
        ]
        yield anonymizing, recovering, *errors, f"{took:.2f}"


def finishes(backend: Diffusion, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Iterable[Row]:
    """Quality of recovery, by the corrections of the anonymized face and the file format.

    ``shown`` is the decoded face without corrections, ``settled`` the face corrected through the encoder.
    """
    shown = backend.visible(masks).to(faces.device)
    ways: dict[str, Settings] = {
        "shown": {"grain": 0.0, "settling": 0},
        "settled": {"grain": 0.0, "settling": 12, "clear": -1},
        "with grain": {},
    }
    jpegs = [functools.partial(write, quality=q) for write in (as_written, as_others_write) for q in (95, 85)]
    kept = [rounded, *(functools.partial(through, jpeg) for jpeg in jpegs)]
    for name, settings in ways.items():
        way = backend.under(settings)
        finished = way.anonymize(faces, masks, keys).clone()
        for i, key in enumerate(keys):
            for _ in range(way.corrections):
                one = slice(i, i + 1)
                pattern = way.write_watermark(finished[one], faces[one], faces[one], masks[one], key)
                if pattern is not None:
                    finished[one] += F.interpolate(pattern, size=faces.shape[-1], mode="bilinear")
        yield name, *(psnr(way.recover(keep(finished), masks, keys), faces, shown) for keep in kept)


def through(keep: Callable[[NDArray], NDArray], faces: Tensor) -> Tensor:
    """Faces [B, 3, R, R] after ``keep``, a function of uint8 pictures [R, R, 3]."""
    pixels = ((rounded(faces).permute(0, 2, 3, 1) + 1) * 127.5).round().byte().cpu().numpy()
    again = torch.from_numpy(np.stack([keep(face) for face in pixels]))
    return (again.permute(0, 3, 1, 2) / 127.5 - 1).to(faces.device)


def as_written(pixels: NDArray, quality: int) -> NDArray:
    """Through a JPEG of this project, without chroma subsampling."""
    return read_photo(encode_photo(Photo(pixels, None, None, "jpeg"), "jpeg", quality)).pixels


def as_others_write(pixels: NDArray, quality: int) -> NDArray:
    """Through a JPEG with chroma subsampling, as most programs write it."""
    return through_jpeg(pixels[..., ::-1], quality)[..., ::-1]


def in_float32(plain: LatentDiffusion, backend: Diffusion, **settings: bool | int | str) -> Diffusion:
    """The backend with the unmodified float32 model."""
    return Diffusion(plain, backend.device, {"steps": backend.settings.steps, **settings})


def candidates(
    backend: Diffusion,
    faces: Tensor,
    masks: Tensor,
    keys: Sequence[FaceKey],
    plain: LatentDiffusion,
    pool_size: int,
) -> Iterable[Row]:
    """An attack without the key: identify the original among ``pool_size`` candidates that differ inside the region.

    The attacker inverts all candidates and the anonymized picture, as exactly as the owner and with the same knowledge
    of the background, and ranks the candidates by the similarity of their noise to that of the anonymized picture. The
    table gives the mean rank of the true original in percent, where 50 is chance, and its standard error, over CHOSEN
    faces that are each anonymized under its own key.
    """
    model, cells = backend.model, backend.cells(masks[:1]).to(faces.device)
    pool = torch.cat([model.encode(drawn_faces(ENCODED, seed, backend)) for seed in range(pool_size // ENCODED)])
    pool = torch.where(cells, pool, pool[:1])
    own = Key.from_bytes(b"a" * 32).face(CONSISTENT_SALT, "diffusion", 0)

    def noise_of(latents: Tensor, walk: Diffusion, guidance: float) -> Tensor:
        predict = functools.partial(walk.model.noise, guidance=guidance)
        around = keyed_noise.background_noise(own, latents.shape[1:]).to(latents)[None]
        found = []
        for part in latents.split(ENCODED):
            trajectory = walk.settings.background == "trajectory"
            held = None if trajectory else surroundings(walk, walk.schedule, part, around)
            found.append(invert(part, predict, walk.schedule, walk.settings.iterations, cells, held)[-1])
        return torch.cat(found)[:, cells[0].expand(pool.shape[1], -1, -1)].double()

    for transform in ("mix", "sign"):
        turned = backend if transform == "mix" else in_float32(plain, backend, transform=transform)
        fresh = [
            Key.from_bytes(n.to_bytes(32, "big")).face(CONSISTENT_SALT, "diffusion", n)
            for n in range(1, min(CHOSEN, pool_size) + 1)
        ]
        hidden = turned.transform_latents(pool[: len(fresh)], cells.expand(len(fresh), -1, -1, -1), fresh)
        # with the QIM watermark anybody can read the latents; without it, they are encoded from the picture
        marked = turned.settings.grain > 0
        seen = hidden if marked else model.read(rounded(model.picture(hidden, model.resolutions[-1])))
        candidate_noise = noise_of(pool, turned, 0.0)
        attacked = (
            noise_of(torch.where(cells, seen, pool[:1]), turned, turned.settings.guidance) / turned.settings.spread
        )
        scores = {
            "correlation": (F.normalize(attacked, dim=1) @ F.normalize(candidate_noise, dim=1).T).abs(),
            "|z|": centred(attacked.abs()) @ centred(candidate_noise.abs()).T,
            "norm": -(attacked.norm(dim=1)[:, None] - candidate_noise.norm(dim=1)[None]).abs(),
        }
        ranks = {name: (score > score.diagonal()[:, None]).double().mean(1) for name, score in scores.items()}
        yield (
            transform,
            *(f"{100 * rank.mean():.1f} +- {100 * rank.std() / len(rank) ** 0.5:.1f}" for rank in ranks.values()),
        )


def centred(rows: Tensor) -> Tensor:
    return F.normalize(rows - rows.mean(1, keepdim=True), dim=1)


def speeds(
    backend: Diffusion, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey], plain: LatentDiffusion
) -> Iterable[Row]:
    """Seconds per face for one direction. The loop and the published transform use float32, as their authors do."""
    face, mask, key = faces[:1], masks[:1], keys[:1]
    cells = backend.cells(mask)[0, 0]
    signs = keyed_noise.flip(torch.ones(backend.model.encode(face).shape[1:]), cells, key[0]).to(faces.device)
    paper = in_float32(plain, backend, transform="sign")
    rate = matmul_rate(faces.device, 5)
    ways: dict[str, Callable[[], object]] = {
        "diffusers loop": lambda: plain_loop(paper, face, signs),
        "sign": lambda: paper.anonymize(face, mask, key),
        "mix": lambda: backend.anonymize(face, mask, key),
    }
    if faces.device.type == "cuda":
        ways[f"mix, {len(faces)} together"] = lambda: backend.anonymize(faces, masks, keys)
    for name, way in ways.items():
        share = len(faces) if "together" in name else 1
        yield name, f"{seconds(way, 1, faces.device) / share:.2f}", f"{operations(way) / rate / share:.2f}"
    started = time.perf_counter()
    backend.compile()  # cannot be undone, so it comes last
    yield "compiling", f"{time.perf_counter() - started:.2f}", ""
    yield "mix, compiled", f"{seconds(lambda: backend.anonymize(face, mask, key), 1, faces.device):.2f}", ""


@torch.no_grad()  # not inference mode: settling follows gradients
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder, or signflip; '' for the weights of this version")
    parser.add_argument("--faces", default=4, type=int)
    parser.add_argument("--steps", default=50, type=int)
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--candidates", default=1000, type=int, help=f"a multiple of {ENCODED}")
    parser.add_argument("--only", nargs="*", help="names of tables")
    options = parser.parse_args()

    backend = Diffusion.load(options.device, {"model": options.model, "steps": options.steps})
    plain = load_model(options.model)
    side = backend.model.resolution
    faces = drawn_faces(options.faces, 11, backend)
    place = (torch.arange(side) + 0.5) / side
    oval = ((place[:, None] - 0.57) / 0.3) ** 2 + ((place[None] - 0.5) / 0.24) ** 2 <= 1
    masks = oval.float().expand(options.faces, 1, -1, -1)
    keys = [Key(bytes([n]) * 32).face(CONSISTENT_SALT, "diffusion", n) for n in range(options.faces)]
    print(f"{options.device}, {torch.get_num_threads()} threads, {options.faces} faces, {options.steps} steps")
    tables: dict[str, tuple[Callable[..., Iterable[Row]], tuple[str, ...]]] = {
        "round trips": (round_trips, ("latents", "dB", "float", "clamped", "8 bit")),
        "inversions": (inversions, ("steps", "iterations", "noised", "trajectory", "spread of z_T")),
        "noise back": (noise_back, ("steps", "spread", "noise")),
        "by step": (by_step, ("training step", "signal kept", "1 call", "2 calls", "4 calls")),
        "recoveries": (
            recoveries,
            ("transform", "background", "iterations", "latents", "anonymized", "right", "mask moved", "wrong key"),
        ),
        "precisions": (
            functools.partial(precisions, plain=plain),
            ("anonymize", "recover", "latents", "through 8 bit", "seconds"),
        ),
        "finishes": (finishes, ("new face", "8 bit", "JPEG 95", "JPEG 85", "others' 95", "others' 85")),
        "candidates": (
            functools.partial(candidates, plain=plain, pool_size=options.candidates),
            ("transform", "correlation", "|z|", "norm"),
        ),
        "speeds": (functools.partial(speeds, plain=plain), ("way", "seconds", "floor")),
    }
    for name, (measure, columns) in tables.items():
        if not options.only or name in options.only:
            table(name, columns, measure(backend, faces, masks, keys))


if __name__ == "__main__":
    main()
