"""Who a hidden code becomes."""

from dataclasses import replace
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F

from anonface.backends.ifadit import IFADIT
from anonface.backends.persona import CastParams, cast, styles
from anonface.models.identity import KEPT

FEW = CastParams(people=4, common=0.0)


@pytest.fixture(scope="module")
def backend() -> IFADIT:
    return IFADIT(settings={"refine": 0})


def code(seed: int) -> torch.Tensor:
    drawn = torch.randn(1, 448, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    drawn[:, KEPT + 260 :] = 0
    return F.normalize(drawn, dim=1)


def face(backend: IFADIT, seed: int) -> torch.Tensor:
    z = torch.randn(1, 512, generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        return backend.networks.generator.synthesize(backend.keygen.mapping(z)[:, None], 256).clamp(-1, 1).clone()


def test_styles_are_normal_near_for_near_codes_and_unlike_each_other():
    first, near = styles(code(1), 8), styles(F.normalize(code(1) + 0.2 * code(2), dim=1), 8)
    assert first.shape == (8, 512) and 0.8 < float(first.std()) < 1.2
    assert float(F.cosine_similarity(first, near).min()) > 0.9
    assert float((F.normalize(first, dim=1) @ F.normalize(first, dim=1).T - torch.eye(8)).abs().max()) < 0.25


def test_somebody_is_cast_whom_the_generator_draws_with_what_the_code_keeps(backend):
    shown = face(backend, 5)
    hidden = code(1)
    mapping = backend.keygen.mapping
    chosen, again, other = (cast(x, KEPT, shown, backend.networks, mapping, FEW) for x in (hidden, hidden, code(2)))
    assert torch.equal(chosen, again) and float(chosen.norm()) == pytest.approx(1, abs=1e-5)
    assert torch.allclose(chosen[:, :KEPT].double(), hidden[:, :KEPT], atol=1e-6)
    assert float((chosen[:, KEPT:] * other[:, KEPT:]).sum()) < 0.6
    # one of those whom the styles draw
    with torch.inference_mode():
        drawn = mapping(styles(hidden, 4))
        people = backend.networks.encoder(backend.networks.generator.synthesize(drawn[:, None], 256))
    kept = F.normalize(people[:, KEPT:], dim=1) @ F.normalize(chosen[:, KEPT:], dim=1).T
    assert float(kept.max()) == pytest.approx(1, abs=1e-4)


def test_the_shape_of_the_photos_face_decides_with(backend):
    hidden, mapping = code(3), backend.keygen.mapping
    blind = replace(FEW, people=8, shape=0.0)
    keen = replace(FEW, people=8, conditions=0.0)
    photos = [face(backend, seed) for seed in range(6)]

    def people(params: CastParams) -> set[float]:
        return {float(cast(hidden, KEPT, x, backend.networks, mapping, params)[0, KEPT]) for x in photos}

    assert len(people(blind)) == 1 < len(people(keen))


def test_those_worth_a_look_come_with_the_likeliest_first_and_all_keep_what_is_kept(backend):
    shown, mapping = face(backend, 5), backend.keygen.mapping
    codes = cast(code(1), KEPT, shown, backend.networks, mapping, replace(FEW, people=6, tried=3))
    alone = cast(code(1), KEPT, shown, backend.networks, mapping, replace(FEW, people=6))
    assert codes.shape == (3, 448) and torch.allclose(codes[:1], alone)
    assert torch.allclose(codes.norm(dim=1), torch.ones(3), atol=1e-5)
    assert torch.allclose(codes[:, :KEPT].double(), code(1)[:, :KEPT].expand(3, -1), atol=1e-6)
    assert len({tuple(one.tolist()) for one in codes}) == 3


def test_two_codes_are_further_apart_without_what_people_have_in_common(backend):
    shown, mapping = face(backend, 5), backend.keygen.mapping

    def alike(params: CastParams) -> float:
        codes = [cast(code(seed), KEPT, shown, backend.networks, mapping, params)[:, KEPT:] for seed in (1, 2, 3)]
        return sum(float(F.cosine_similarity(a, b)) for a, b in combinations(codes, 2)) / 3

    some = replace(FEW, people=12, apart=0.0)
    assert alike(replace(some, common=1.0)) < alike(some) - 0.03


def test_somebody_little_like_the_others_is_preferred(backend):
    shown, mapping = face(backend, 5), backend.keygen.mapping
    some = replace(FEW, people=12, conditions=0.0, shape=0.0)
    with torch.inference_mode():
        drawn = mapping(styles(code(1), 12))
        people = backend.networks.encoder(backend.networks.generator.synthesize(drawn[:, None], 256))[:, KEPT:]
    usual = F.cosine_similarity(people, people.mean(0, keepdim=True))
    for apart, liked in ((1.0, usual.argmin()), (-1.0, usual.argmax())):
        chosen = cast(code(1), KEPT, shown, backend.networks, mapping, replace(some, apart=apart))[:, KEPT:]
        assert float(F.cosine_similarity(chosen, people[liked, None])) == pytest.approx(1, abs=1e-4)
