"""Who a hidden code becomes."""

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F

from anonface import weights
from anonface.backends.generator import load_generator, load_mapping
from anonface.backends.target_identity import (
    TargetParams,
    attribute_mismatch,
    key_direction,
    likeliest_styles,
    styles,
)
from anonface.faces.analysis import AnalysisNetworks, FaceAnalysis, load_analysis_networks
from anonface.models.identity import CONDITIONS, KEPT
from anonface.models.latent_attributes import ATTRIBUTES, LatentAttributes, columns
from anonface.models.mobile_stylegan import MappingNetwork, MobileStyleGAN

FEW = TargetParams(styles=8, likely=4, tried=4)


@dataclass(frozen=True)
class Networks:
    analysis: AnalysisNetworks
    regressor: LatentAttributes
    mapping: MappingNetwork
    generator: MobileStyleGAN


@pytest.fixture(scope="module")
def networks() -> Networks:
    regressor = LatentAttributes()
    weights.load(regressor, "census")
    return Networks(load_analysis_networks(), regressor, load_mapping(), load_generator())


def code(seed: int) -> torch.Tensor:
    drawn = torch.randn(1, 448, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    drawn[:, KEPT + 260 :] = 0
    return F.normalize(drawn, dim=1)


def face(networks: Networks, seed: int) -> torch.Tensor:
    z = torch.randn(1, 512, generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        return networks.generator.synthesize(networks.mapping(z)[:, None], 256).clamp(-1, 1).clone()


def chosen(networks: Networks, hidden: torch.Tensor, shown: torch.Tensor, params: TargetParams = FEW) -> torch.Tensor:
    analysis = FaceAnalysis(shown, networks.analysis)
    with torch.inference_mode():
        return likeliest_styles(hidden, analysis, networks.regressor, networks.mapping, params)


def test_styles_are_normal_near_for_near_codes_and_unlike_each_other():
    first, near = styles(code(1), 8), styles(F.normalize(code(1) + 0.2 * code(2), dim=1), 8)
    assert first.shape == (8, 512) and 0.8 < float(first.std()) < 1.2
    assert float(F.cosine_similarity(first, near).min()) > 0.9
    assert float((F.normalize(first, dim=1) @ F.normalize(first, dim=1).T - torch.eye(8)).abs().max()) < 0.25


def test_a_code_always_names_the_same_people_and_another_code_others(networks):
    shown = face(networks, 5)
    first, again, other = (chosen(networks, x, shown) for x in (code(1), code(1), code(2)))
    assert first.shape == (4, 512) and torch.equal(first, again)
    assert torch.allclose(first[:2], chosen(networks, code(1), shown, replace(FEW, tried=2)), atol=1e-4)
    assert float((first[0] - other[0]).abs().mean()) > 0.05


def test_two_codes_people_stand_out_in_two_ways(networks):
    regressor, mapping = networks.regressor, networks.mapping
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
    shown, params = face(networks, 5), TargetParams(styles=512, likely=64, tried=8)
    cast_by = [chosen(networks, code(n), shown, params) for n in (1, 2, 3)]
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


def test_people_cast_as_the_census_has_it_look_the_part(networks):
    """By the classifier, on people whom the regression alone has judged."""
    mapping, apparent = networks.mapping, networks.analysis.apparent
    for seed in (5, 6):
        shown = face(networks, seed)
        with torch.inference_mode():
            sex, age = apparent(shown)[0]
            regressor, w = networks.regressor, mapping(styles(code(seed), 256))
            order = attribute_mismatch(regressor(w), regressor, code(seed), apparent(shown)[0]).argsort()
            looks = [
                torch.cat([apparent(networks.generator.synthesize(x[None, None], 256)) for x in w[some]])
                for some in (order[:6], order[-6:])
            ]
        (near, far) = ((look - torch.stack([sex.clamp(-2, 2), age])).abs().mean(0) for look in looks)
        assert float(((looks[0][:, 0] > 0) == (sex > 0)).float().mean()) > 0.8
        assert float(near[1]) < float(far[1])
