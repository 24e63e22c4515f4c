"""What every backend promises, whatever is inside it: one test for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

import pytest
import torch
import torch.nn.functional as F
from tiny_diffusion import gaussian_faces, gaussian_model
from tiny_editing import CELL, cell_faces, lossless
from torch import Tensor

from anonface.backends.base import Backend, Watermarking
from anonface.backends.diffusion.backend import Diffusion
from anonface.backends.flow_backend import FlowBackend
from anonface.backends.generator import load_generator, load_mapping
from anonface.backends.ifadit.backend import IFADIT
from anonface.backends.inpaint.backend import Inpaint
from anonface.crypto.keys import CONSISTENT_SALT, FaceKey, Key
from anonface.training.data import draw_latents


@dataclass(frozen=True)
class Case:
    """A backend, two 8-bit faces for it, and how alike it takes two faces to be, 1 being the same."""

    backend: Backend
    faces: Tensor
    alike: Callable[[Tensor, Tensor], float]
    unlike: float  # what it must fall to
    gained: float  # by how much the right key must do better than a wrong one

    @property
    def masks(self) -> Tensor:
        y, x = (torch.linspace(-1, 1, self.faces.shape[-1]) for _ in range(2))
        oval = torch.sigmoid(20 * (1 - ((x[None] / 0.5) ** 2 + ((y[:, None] - 0.12) / 0.6) ** 2)))
        oval = oval * (oval > 0.02)
        return oval.expand(len(self.faces), 1, -1, -1)


def flow(backend: FlowBackend) -> Case:
    w = draw_latents(load_mapping(), 2, torch.Generator().manual_seed(21), mix=0.0)
    with torch.inference_mode():
        faces = rounded(F.avg_pool2d(load_generator().synthesize(w, 512), 2))

    def alike(a: Tensor, b: Tensor) -> float:
        # without sex, age and tone, which no key touches
        return cosine(*(backend.identity.embed(face)[:, backend.identity.flow.params.kept :] for face in (a, b)))

    return Case(backend, faces, alike, unlike=0.42, gained=0.2)


def diffusion(transform: str) -> Case:
    backend = Diffusion(gaussian_model(), settings={"transform": transform, "steps": 30, "iterations": 6})
    faces = gaussian_faces(2)
    inside = backend.cells(Case(backend, faces, cosine, 0, 0).masks).float()

    def alike(a: Tensor, b: Tensor) -> float:
        return cosine(*(inside * backend.model.encode(face) for face in (a, b)))

    # Not 0: at the region's rim the surroundings alone tell something, whatever the key.
    return Case(backend, faces, alike, unlike=0.35, gained=0.5)


def latent_editing(name: str) -> Case:
    """The backend with networks that lose nothing: what training ought to end in."""
    backend, faces = lossless(name), cell_faces(2)
    inside = F.avg_pool2d(Case(backend, faces, cosine, 0, 0).masks, CELL) > 0.99

    def alike(a: Tensor, b: Tensor) -> float:
        return cosine(*(inside * F.avg_pool2d(face, CELL) for face in (a, b)))

    return Case(backend, faces, alike, unlike=0.3, gained=0.6)


def cosine(a: Tensor, b: Tensor) -> float:
    return float(F.cosine_similarity(a.flatten(1), b.flatten(1)).mean())


CASES = {
    "inpaint": lambda: flow(Inpaint.load("cpu", {})),
    "ifadit": lambda: flow(IFADIT()),
    "diffusion": lambda: diffusion("mix"),
    "diffusion, sign": lambda: diffusion("sign"),
    "dbaf": lambda: latent_editing("dbaf"),
    "hford": lambda: latent_editing("hford"),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


def face_keys(case: Case, master: bytes = bytes(range(32))) -> list[FaceKey]:
    key = Key(master)
    return [key.face(CONSISTENT_SALT, case.backend.name, i) for i in range(len(case.faces))]


def rounded(faces: Tensor) -> Tensor:
    return ((faces.clamp(-1, 1) + 1) * 127.5).round() / 127.5 - 1


def seen(case: Case, faces: Tensor, renders: Tensor) -> Tensor:
    """As the photo shows it: composited and in 8 bits."""
    shown = case.backend.visible(case.masks)
    return rounded(shown * renders + (1 - shown) * faces)


def finished(case: Case, anonymized: Tensor, keys: list[FaceKey]) -> Tensor:
    """With what the backend adds to finished photos."""
    if not isinstance(case.backend, Watermarking):
        return anonymized
    shown = zip(anonymized.split(1), case.faces.split(1), case.masks.split(1), keys, strict=True)
    results = []
    for picture, face, mask, key in shown:
        for _ in range(case.backend.corrections):
            pattern = case.backend.write_watermark(picture, face, face, mask, key)
            if pattern is not None:
                picture = rounded(picture + F.interpolate(pattern, picture.shape[-2:], mode="bicubic"))
        results.append(picture)
    return torch.cat(results)


@pytest.mark.slow
def test_the_right_key_leads_back_and_no_other(case):
    backend, masks, right = case.backend, case.masks, face_keys(case)
    # three each: rounding, which differs between processors, decides whom one key shows, and that one may be alike
    masters = {
        "wrong": [bytes([n]) * 32 for n in (0, 101, 102)],
        "one bit off": [bytes([bit, *range(1, 32)]) for bit in (1, 2, 4)],
    }

    def hidden(keys: list[FaceKey]) -> Tensor:
        return finished(case, seen(case, case.faces, backend.anonymize(case.faces, masks, keys)), keys)

    anonymized = hidden(right)
    assert anonymized.shape == case.faces.shape and (anonymized - case.faces).abs().mean() > 0.01
    others = [hidden(face_keys(case, master)) for master in masters["wrong"][:2]]
    assert mean(case.alike(case.faces, each) for each in (anonymized, *others)) < case.unlike

    def led(keys: list[FaceKey]) -> float:
        return case.alike(case.faces, seen(case, anonymized, backend.recover(anonymized, masks, keys)))

    alike = {name: mean(led(face_keys(case, master)) for master in some) for name, some in masters.items()}
    worst, back = max(alike.values()), led(right)
    assert worst < case.unlike, alike
    assert back > max(worst, case.unlike) + case.gained, (back, alike)


@pytest.mark.slow
@pytest.mark.usefixtures("unsearched")
@pytest.mark.parametrize("direction", ["anonymize", "recover"])
def test_a_batch_equals_singles_and_repeats_itself(case, direction):
    run, keys, masks = getattr(case.backend, direction), face_keys(case), case.masks
    batch = run(case.faces, masks, keys)
    singles = [run(case.faces[i : i + 1], masks[i : i + 1], keys[i : i + 1]) for i in range(len(keys))]
    assert torch.equal(batch, torch.cat(singles))
    assert torch.equal(batch, run(case.faces, masks, keys))


def test_nothing_is_seen_beyond_reason_and_ranges_hold(case):
    shown = case.backend.visible(case.masks)
    assert shown.shape == case.masks.shape and shown.min() >= 0 and shown.max() <= 1
    assert shown[..., :2, :].max() < 0.01 and shown[..., shown.shape[-1] // 2, shown.shape[-1] // 2].min() > 0.99


def test_settings_come_back_from_the_header(case):
    parameters = case.backend.parameters()
    assert case.backend.under(parameters).parameters() == parameters
    assert len(case.backend.digest()) == 32 and case.backend.digest() == case.backend.under(parameters).digest()
