"""Features that lie where a key says."""

import numpy as np
import pytest
import torch

from anonface.backends.generator import load_generator, load_mapping
from anonface.crypto.keys import CONSISTENT_SALT, Key
from anonface.faces.align import EYES, LIPS
from anonface.faces.analysis import load_analysis_networks, mesh_in_crop
from anonface.faces.shape_warp import AMOUNT, MOST, WAYS, keyed_amounts, warp_shape


def moved(**amounts: float) -> list[float]:
    """These amounts, and 0 in the other ways."""
    return [amounts.get(f"way{number}", 0.0) for number in range(len(WAYS))]


@pytest.fixture(scope="module")
def face() -> torch.Tensor:
    with torch.inference_mode():
        z = torch.randn(1, 512, generator=torch.Generator().manual_seed(3))
        return load_generator().synthesize(load_mapping()(z)[:, None], 256).clamp(-1, 1).clone()


@pytest.fixture(scope="module")
def landmarks():
    return load_analysis_networks().landmarks


def apart(mesh: torch.Tensor) -> float:
    return float((mesh[0, EYES[16:]].mean(0) - mesh[0, EYES[:16]].mean(0)).norm())


def places() -> torch.Tensor:
    """A picture [1, 2, 256, 256] of where its pixels lie, in shares of the side."""
    cells = (torch.arange(256) + 0.5) / 256
    return torch.stack(torch.meshgrid(cells, cells, indexing="xy"))[None]


def test_features_move_as_a_key_says_and_no_farther(face, landmarks):
    mesh = mesh_in_crop(landmarks, face)
    wide, wider, widest = (
        mesh_in_crop(landmarks, warp_shape(face, mesh, moved(way0=amount))) for amount in (1, MOST, 9 * MOST)
    )
    assert 1 + AMOUNT / 2 < apart(wide) / apart(mesh) < 1 + 2 * AMOUNT
    assert apart(wide) < apart(wider) and torch.equal(wider, widest)


def test_a_mouth_that_lies_lower_is_drawn_from_above(face, landmarks):
    mesh = mesh_in_crop(landmarks, face)
    come = (places() - warp_shape(places(), mesh, moved(way5=1)))[0] / apart(mesh)
    across, down = (mesh[0, LIPS].mean(0) * 256).long()
    eye_across, eye_down = (mesh[0, EYES[:16]].mean(0) * 256).long()
    assert float(come[1, down, across]) == pytest.approx(AMOUNT, rel=0.05)
    assert float(come[0, down, across].abs()) < AMOUNT / 4  # as far as the head is tilted
    assert float(come[:, eye_down, eye_across].abs().max()) < AMOUNT / 4


def test_features_move_as_far_as_a_backend_lets_them(face, landmarks):
    mesh, key = mesh_in_crop(landmarks, face), moved(**{f"way{i}": MOST for i in range(len(WAYS))})
    far, near = (warp_shape(places(), mesh, key, amount) - places() for amount in (0.02, 0.01))
    assert torch.allclose(far, 2 * near, atol=2e-3) and float(near.abs().max()) > 5e-3


def test_a_key_that_moves_nothing_changes_nothing(face, landmarks):
    assert torch.allclose(warp_shape(face, mesh_in_crop(landmarks, face), moved()), face, atol=1e-4)


def test_what_is_far_from_the_face_stays(face, landmarks):
    mesh = mesh_in_crop(landmarks, face)
    bent = warp_shape(face, mesh, moved(**{f"way{i}": MOST for i in range(len(WAYS))}))
    assert (
        float((bent - face)[..., :16, :16].abs().max()) < 0.02 < float((bent - face)[..., 100:160, 90:170].abs().max())
    )


def test_nothing_is_folded_however_far_a_key_goes(landmarks, face):
    mesh = mesh_in_crop(landmarks, face)
    rng = np.random.default_rng(1)
    for _ in range(20):
        signs = MOST * rng.choice([-1.0, 1.0], len(WAYS))
        across, down = warp_shape(places(), mesh, moved(**{f"way{i}": x for i, x in enumerate(signs)}))[0]
        assert float(across.diff(dim=1)[1:-1, 1:-2].min()) > 0 < float(down.diff(dim=0)[1:-2, 1:-1].min())


def test_a_face_is_shaped_alike_at_every_size(face, landmarks):
    mesh, key = mesh_in_crop(landmarks, face), moved(way0=1, way5=-1, way7=1)
    large = warp_shape(torch.nn.functional.interpolate(face, (512, 512), mode="bilinear"), mesh, key)
    small = torch.nn.functional.adaptive_avg_pool2d(large, 256)
    assert float((small - warp_shape(face, mesh, key)).abs().mean()) < 0.02


def test_amounts_follow_key_and_person_alike():
    """Amounts of the key alone tied different people's photos to it."""
    keys = [Key(bytes([number]) * 32).face(CONSISTENT_SALT, "ifadit", 0) for number in (1, 2)]
    codes = torch.nn.functional.normalize(torch.randn(40, 448, generator=torch.Generator().manual_seed(6)), dim=1)
    first, second = (torch.tensor([keyed_amounts(key, code[None]) for code in codes]) for key in keys)
    assert 0.8 < float(first.std()) < 1.2
    tied = torch.corrcoef(first)[~torch.eye(len(codes), dtype=torch.bool)]
    assert abs(float(tied.mean())) < 0.05  # two people of one key are no more alike than any two
    assert abs(float((first * second).mean())) < 0.15
    near = torch.nn.functional.normalize(codes[:1] + 0.02 * codes[1:2], dim=1)
    assert torch.allclose(torch.tensor(keyed_amounts(keys[0], near)), first[0], atol=0.2)
