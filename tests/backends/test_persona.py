"""Who a hidden code becomes."""

from dataclasses import replace
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F

from anonface.backends.ifadit import IFADIT
from anonface.backends.persona import FEATURED, CastParams, cast, strangeness, styles
from anonface.models.census import AGE, READINGS, SEX, WORN, Census
from anonface.models.identity import CONDITIONS, KEPT

FEW = CastParams(styles=8, people=4, tried=4, common=0.0)


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


def fewest(backend: IFADIT, hidden: torch.Tensor, shown: torch.Tensor) -> torch.Tensor:
    """Styles of the eight who are asked about, those who fit best first."""
    census, w = backend.networks.census, backend.keygen.mapping(styles(hidden, 8))
    with torch.inference_mode():
        return w[strangeness(census(w), census, hidden, backend.networks.apparent(shown)[0]).argsort(stable=True)]


def test_somebody_is_cast_whom_the_generator_draws_with_what_the_code_keeps(backend):
    shown, hidden, mapping = face(backend, 5), code(1), backend.keygen.mapping
    (chosen, _), (again, _), (other, _) = (
        cast(x, KEPT, shown, backend.networks, mapping, FEW) for x in (hidden, hidden, code(2))
    )
    assert torch.equal(chosen, again)
    assert torch.allclose(chosen.norm(dim=1), torch.ones(4), atol=1e-5)
    assert torch.allclose(chosen[:, :KEPT].double(), hidden[:, :KEPT].expand(4, -1), atol=1e-6)
    assert float((chosen[0, KEPT:] * other[0, KEPT:]).sum()) < 0.6
    with torch.inference_mode():
        drawn = fewest(backend, hidden, shown)[:4]
        people = backend.networks.encoder(backend.networks.generator.synthesize(drawn[:, None], 256))
    kept = F.cosine_similarity(people[:, KEPT:], chosen[:, KEPT:])
    assert float(kept.min()) == pytest.approx(1, abs=1e-4)


def test_fewer_are_tried_than_are_drawn_and_features_are_theirs(backend):
    shown, mapping = face(backend, 5), backend.keygen.mapping
    all_, full = cast(code(1), KEPT, shown, backend.networks, mapping, FEW)
    codes, features = cast(code(1), KEPT, shown, backend.networks, mapping, replace(FEW, tried=2, own=0.25))
    assert torch.allclose(codes, all_[:2]) and features.shape == (2, FEATURED, 512)
    assert torch.allclose(features, full[:2] / 2, atol=1e-5) and float(features.abs().mean()) > 0.01
    # what the census reads of a person is not among them
    census = backend.networks.census
    assert float(census.deviations(full[:, 0] + census.mean).abs().max()) < 0.02


def test_two_codes_are_further_apart_without_what_people_have_in_common(backend):
    shown, mapping = face(backend, 5), backend.keygen.mapping

    def alike(params: CastParams) -> float:
        codes = [cast(code(seed), KEPT, shown, backend.networks, mapping, params)[0][:1, KEPT:] for seed in (1, 2, 3)]
        return sum(float(F.cosine_similarity(a, b)) for a, b in combinations(codes, 2)) / 3

    some = replace(FEW, styles=256, people=12)
    assert alike(replace(some, common=1.0)) < alike(some) - 0.03


def test_nobody_is_cast_with_glasses_or_of_another_sex_or_age():
    census = Census()
    census.spread.fill_(2.0)
    hidden, seems = torch.zeros(1, 448), torch.tensor([3.0, 40.0])
    plain = torch.zeros(1, READINGS)
    plain[:, SEX], plain[:, AGE] = 2.5, 45.0
    glasses, woman, child, unsure, tanned, bare = (plain.clone() for _ in range(6))
    glasses[:, -len(WORN)], bare[:, -len(WORN) :] = 1.0, -5.0
    woman[:, SEX], unsure[:, SEX], child[:, AGE] = -2.5, 0.5, 8.0
    tanned[:, CONDITIONS["tone"]] = 4.0
    people = torch.cat([plain, bare, glasses, woman, child, unsure, tanned])
    strange = strangeness(people, census, hidden, seems)
    assert strange[:2].tolist() == [0, 0] and float(strange[2:].min()) > 0.2
    assert float(strange[3]) > float(strange[5])
    # what is free is the code's to say
    hidden[:, CONDITIONS["sex"]] = 5.0
    woman[:, CONDITIONS["sex"]], plain[:, CONDITIONS["sex"]] = 5.0, -5.0
    strange = strangeness(torch.cat([plain, woman]), census, hidden, seems, ("sex",))
    assert float(strange[0]) > 0.2 and float(strange[1]) == 0


def test_people_cast_as_the_census_has_it_look_the_part(backend):
    """By the classifier, on people whom the census alone has judged."""
    networks, mapping = backend.networks, backend.keygen.mapping
    for seed in (5, 6):
        shown = face(backend, seed)
        with torch.inference_mode():
            sex, age = networks.apparent(shown)[0]
            census, w = networks.census, mapping(styles(code(seed), 256))
            order = strangeness(census(w), census, code(seed), networks.apparent(shown)[0]).argsort()
            looks = [
                torch.cat([networks.apparent(networks.generator.synthesize(x[None, None], 256)) for x in w[some]])
                for some in (order[:6], order[-6:])
            ]
        (near, far) = ((look - torch.stack([sex.clamp(-2, 2), age])).abs().mean(0) for look in looks)
        assert float(((looks[0][:, 0] > 0) == (sex > 0)).float().mean()) > 0.8
        assert float(near[1]) < float(far[1])
