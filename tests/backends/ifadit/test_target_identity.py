"""Who a hidden code becomes."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from anonface.backends.ifadit.backend import IFADIT
from anonface.backends.ifadit.target_identity import (
    FEATURED,
    Exchange,
    TargetParams,
    attribute_mismatch,
    key_direction,
    likeliest_styles,
    styles,
    target_identities,
    wrong_key_identities,
)
from anonface.faces.analysis import FaceAnalysis
from anonface.models.identity import CONDITIONS, KEPT
from anonface.models.inversion import CODE_OF_LATENT
from anonface.models.latent_attributes import ATTRIBUTES, LatentAttributes, columns

WHOLE = Exchange(photo=1.0, left=1.2, own=1.4)
FEW = TargetParams(styles=8, likely=4, tried=4, exchanges=(WHOLE,))
LATENTS = 17


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
        w = backend.renderer.mapping(z)[:, None]
        return backend.renderer.networks.generator.synthesize(w, 256).clamp(-1, 1).clone()


def test_styles_are_normal_near_for_near_codes_and_unlike_each_other():
    first, near = styles(code(1), 8), styles(F.normalize(code(1) + 0.2 * code(2), dim=1), 8)
    assert first.shape == (8, 512) and 0.8 < float(first.std()) < 1.2
    assert float(F.cosine_similarity(first, near).min()) > 0.9
    assert float((F.normalize(first, dim=1) @ F.normalize(first, dim=1).T - torch.eye(8)).abs().max()) < 0.25


def fewest(backend: IFADIT, hidden: torch.Tensor, shown: torch.Tensor) -> torch.Tensor:
    """Styles of the four of eight who fit, those who stand out most as the code says first."""
    regressor, w = backend.renderer.networks.regressor, backend.renderer.mapping(styles(hidden, 8))
    with torch.inference_mode():
        seems = FaceAnalysis(shown, backend.renderer.networks).seems
        fit = w[attribute_mismatch(regressor(w), regressor, hidden, seems).argsort(stable=True)[:4]]
        return fit[(regressor.salient_features(fit) @ key_direction(hidden).float()).argsort(descending=True)]


def average(backend: IFADIT) -> torch.Tensor:
    return backend.renderer.networks.mapper.mean.expand(1, LATENTS, -1)


def candidates(backend: IFADIT, hidden: torch.Tensor, shown: torch.Tensor, params: TargetParams = FEW) -> torch.Tensor:
    """Latents of those who are cast, [n, 17, 512]."""
    analysis, mapping = FaceAnalysis(shown, backend.renderer.networks), backend.renderer.mapping
    return torch.cat(
        target_identities(hidden, analysis, average(backend), backend.renderer.networks, mapping, params)[0]
    )


def test_a_code_always_casts_the_same_people_and_another_code_others(backend):
    shown = face(backend, 5)
    chosen, again, other = (candidates(backend, x, shown) for x in (code(1), code(1), code(2)))
    assert chosen.shape == (4, LATENTS, 512) and torch.equal(chosen, again)
    assert torch.allclose(chosen[:2], candidates(backend, code(1), shown, replace(FEW, tried=2)), atol=1e-4)
    assert float((chosen[0] - other[0]).abs().mean()) > 0.05


def test_whoever_is_cast_has_own_features_in_the_photos_place(backend):
    """The original's features make way, whatever the census reads stays."""
    shown, hidden, regressor = face(backend, 5), code(1), backend.renderer.networks.regressor
    with torch.inference_mode():
        codes = list(CODE_OF_LATENT[:LATENTS])
        photo = backend.renderer.networks.inversion.to_w(backend.renderer.networks.inversion(shown)[0])[:, codes]
        drawn = fewest(backend, hidden, shown)[:, None]
        chosen = candidates(backend, hidden, shown, replace(FEW, exchanges=(WHOLE, replace(WHOLE, left=1.0, own=0.0))))
        chosen, bare = chosen.split(4)
    shaped = [number for number, code in enumerate(codes) if code < FEATURED]
    change = regressor.deviations(chosen[:, shaped]) - regressor.deviations(photo[:, shaped])
    assert float(change.abs().max()) < 0.05 * float(regressor.deviations(photo[:, shaped]).abs().max())
    assert float(regressor.features(bare[:, shaped]).abs().max()) < 0.02
    theirs = regressor.features(chosen[:, shaped]) + (WHOLE.left - 1) * regressor.features(photo[:, shaped])
    assert torch.allclose(theirs, WHOLE.own * regressor.features(drawn).expand_as(theirs), atol=0.02)


def test_an_average_face_takes_as_much_of_the_photos_place_as_an_exchange_says(backend):
    shown, ways = face(backend, 5), (replace(WHOLE, photo=share) for share in (0.0, 0.5, 1.0))
    with torch.inference_mode():
        none, half, whole = candidates(backend, code(1), shown, replace(FEW, tried=1, exchanges=tuple(ways)))
        regressor, usual = backend.renderer.networks.regressor, average(backend)[0]
        change = 1.4 * regressor.features(fewest(backend, code(1), shown)[0]) - 1.2 * regressor.features(usual)
    assert torch.allclose(half, (none + whole) / 2, atol=1e-4) and float((none - whole).abs().mean()) > 0.05
    assert torch.allclose(none, usual + change, atol=0.01)


@pytest.mark.slow
def test_strangers_keep_what_the_code_keeps_and_are_others_under_another_code(backend):
    analysis, networks, mapping = (
        FaceAnalysis(face(backend, 5), backend.renderer.networks),
        backend.renderer.networks,
        backend.renderer.mapping,
    )
    first, again, other = (wrong_key_identities(code(n), KEPT, analysis, networks, mapping) for n in (1, 1, 2))
    assert torch.equal(first[0], again[0]) and torch.allclose(first[0].norm(dim=1), torch.ones(len(first[0])))
    assert torch.allclose(first[0][:, :KEPT].double(), code(1)[:, :KEPT].expand(len(first[0]), -1), atol=1e-6)
    alike = first[0][:, KEPT:] @ torch.cat([first[0], other[0]])[:, KEPT:].T
    assert float((first[0][0, KEPT:] * other[0][0, KEPT:]).sum()) < 0.6
    assert len(first[0]) > 2 and float(alike.sort(dim=1).values[:, -2].max()) < 0.8
    assert first[1].shape == (len(first[0]), 512) and float((first[1] - other[1]).abs().mean()) > 0.01


def test_nobody_stands_there_without_features_whatever_the_key(backend):
    networks, mapping = backend.renderer.networks, backend.renderer.mapping
    analysis = FaceAnalysis(face(backend, 5), networks)
    cast_by = [target_identities(code(n), analysis, average(backend), networks, mapping, FEW) for n in (1, 2)]
    (there, neutral), (others, same) = cast_by
    assert len(neutral) == len(FEW.exchanges) and torch.equal(torch.cat(neutral), torch.cat(same))
    assert not torch.equal(torch.cat(there), torch.cat(others))
    marked = lambda w: float(networks.regressor.features(w[:, :FEATURED]).norm(dim=-1).mean())  # noqa: E731
    assert marked(neutral[0]) < 0.5 * min(map(marked, there))


def test_two_codes_people_stand_out_in_two_ways(backend):
    regressor, mapping = backend.renderer.networks.regressor, backend.renderer.mapping
    z = torch.randn(200, 512, generator=torch.Generator().manual_seed(7))
    with torch.inference_mode():
        marked = regressor.salient_features(mapping(z))
    assert float(marked.mean(0).abs().max()) < 0.3 * float(marked.std(0).max())
    ways = torch.stack([key_direction(code(n)) for n in range(20)])
    assert torch.allclose(ways.norm(dim=1), torch.ones(20)) and torch.equal(ways[1], key_direction(code(1)))
    alike = ways @ ways.T - torch.eye(20)
    assert float(alike.abs().mean()) < 0.45
    near = key_direction(F.normalize(code(1) + 0.2 * code(2), dim=1))
    assert float(near @ ways[1]) > 0.8
    sex_age_error = torch.cat([-code(1)[:, :KEPT], code(1)[:, KEPT:]], 1)
    assert torch.equal(key_direction(sex_age_error), ways[1])  # whom all keys keep does not tell them apart
    shown, params = face(backend, 5), TargetParams(styles=512, likely=64, tried=8)
    with torch.inference_mode():
        analysis = FaceAnalysis(shown, backend.renderer.networks)
        cast_by = [likeliest_styles(code(n), analysis, regressor, mapping, params) for n in (1, 2, 3)]
    out = torch.stack([regressor.salient_features(candidates).mean(0) for candidates in cast_by]) @ ways[1:4].float().T
    assert out.argmax(1).tolist() == [0, 1, 2]  # each his own way


def test_nobody_is_cast_with_glasses_or_of_another_sex_or_age():
    regressor = LatentAttributes()
    regressor.spread.fill_(2.0)
    hidden, seems = torch.zeros(1, 448), torch.tensor([3.0, 40.0])
    plain = torch.zeros(1, ATTRIBUTES)
    plain[:, columns("sex")], plain[:, columns("age")] = 3.5, 45.0
    glasses, shaded, woman, child, unsure, tanned, bare = (plain.clone() for _ in range(7))
    glasses[:, columns("worn").start], bare[:, columns("worn")] = 1.0, -5.0
    shaded[:, columns("light").start] = 2.0
    woman[:, columns("sex")], unsure[:, columns("sex")], child[:, columns("age")] = -3.5, 0.5, 8.0
    tanned[:, CONDITIONS["tone"]] = 4.0
    them = torch.cat([plain, bare, glasses, woman, child, unsure, tanned, shaded])
    strange = attribute_mismatch(them, regressor, hidden, seems)
    assert strange[:2].tolist() == [0, 0] and float(strange[2:].min()) > 0.2
    assert float(strange[3]) > float(strange[5])
    # what is free is the code's to say
    hidden[:, CONDITIONS["sex"]] = 5.0
    woman[:, CONDITIONS["sex"]], plain[:, CONDITIONS["sex"]] = 5.0, -5.0
    strange = attribute_mismatch(torch.cat([plain, woman]), regressor, hidden, seems, ("sex",))
    assert float(strange[0]) > 0.2 and float(strange[1]) == 0


def test_people_cast_as_the_census_has_it_look_the_part(backend):
    """By the classifier, on people whom the census alone has judged."""
    networks, mapping = backend.renderer.networks, backend.renderer.mapping
    for seed in (5, 6):
        shown = face(backend, seed)
        with torch.inference_mode():
            sex, age = networks.apparent(shown)[0]
            regressor, w = networks.regressor, mapping(styles(code(seed), 256))
            order = attribute_mismatch(regressor(w), regressor, code(seed), networks.apparent(shown)[0]).argsort()
            looks = [
                torch.cat([networks.apparent(networks.generator.synthesize(x[None, None], 256)) for x in w[some]])
                for some in (order[:6], order[-6:])
            ]
        (near, far) = ((look - torch.stack([sex.clamp(-2, 2), age])).abs().mean(0) for look in looks)
        assert float(((looks[0][:, 0] > 0) == (sex > 0)).float().mean()) > 0.8
        assert float(near[1]) < float(far[1])
