"""The flow: exact inverse, unit codes, key separation."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anonface.models.identity_flow import (
    FlowKey,
    SecureAffineCoupling,
    SecureIdentityFlow,
    SecureIdentityFlowParams,
    orthogonal_mixes,
)

PARAMS = SecureIdentityFlowParams(code=68, kept=4, key=16, hidden=32, blocks=3, mix=16)


def perturb(module: torch.nn.Module, scale: float = 0.05) -> None:
    generator = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        parameter.data += scale * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


def random_key(count: int, seed: int = 4) -> FlowKey:
    rng = np.random.default_rng(seed)
    mix = orthogonal_mixes(rng.standard_normal((count, 4, 16, 16)), np.full(count, -0.1))
    return FlowKey(torch.from_numpy(rng.standard_normal((count, 16))), torch.from_numpy(mix))


def random_codes(count: int, seed: int = 5) -> torch.Tensor:
    return F.normalize(torch.from_numpy(np.random.default_rng(seed).standard_normal((count, 68))), dim=1)


@pytest.fixture
def flow() -> SecureIdentityFlow:
    flow = SecureIdentityFlow(PARAMS).double()
    perturb(flow)
    return flow


def test_the_right_key_recovers_the_code(flow):
    z, key = random_codes(5), random_key(5)
    hidden = flow(z, key)
    assert F.cosine_similarity(hidden, z).abs().max() < 0.6  # the code has changed
    assert torch.allclose(hidden.norm(dim=1), torch.ones(5, dtype=torch.float64))
    assert (flow.inverse(hidden, key) - z).abs().max() < 1e-9


def test_no_key_touches_the_conditions(flow):
    z = random_codes(5)
    hidden, back = flow(z, random_key(5)), flow.inverse(z, random_key(5, seed=6))
    assert torch.equal(hidden[:, :4], z[:, :4]) and torch.equal(back[:, :4], z[:, :4])
    assert (hidden[:, 4:] - z[:, 4:]).norm(dim=1).min() > 0.5


def test_a_freed_condition_is_mirrored_and_recovered(flow):
    flow.neutral.copy_(torch.tensor([0.1, -0.1, 0.0, 0.05]))
    z, key = random_codes(2), random_key(2)
    key = FlowKey(key.k, key.mix, torch.tensor([[-1.0, -1, 1, 1], [1, 1, 1, 1]], dtype=torch.float64))
    hidden = flow(z, key)
    assert torch.allclose(hidden[0, :2] - flow.neutral[:2], flow.neutral[:2] - z[0, :2])
    assert torch.equal(hidden[0, 2:4], z[0, 2:4]) and torch.equal(hidden[1, :4], z[1, :4])
    assert torch.allclose(hidden.norm(dim=1), torch.ones(2, dtype=torch.float64))
    assert (flow.inverse(hidden, key) - z).abs().max() < 1e-9


def test_a_wrong_key_does_not_recover_the_code(flow):
    z, key, wrong = random_codes(5), random_key(5), random_key(5, seed=6)
    assert F.cosine_similarity(flow.inverse(flow(z, key), wrong), z).abs().max() < 0.6


def test_one_block_changes_both_halves_and_inverts():
    block = SecureAffineCoupling(PARAMS).double()
    perturb(block)
    z, k = random_codes(3)[:, 4:], random_key(3).k
    out = block(z, k)
    assert (out - z).abs()[:, 0::2].max() > 1e-3 and (out - z).abs()[:, 1::2].max() > 1e-3
    assert (block.inverse(out, k) - z).abs().max() < 1e-10


def test_blocks_are_homogeneous(flow):
    block, z, k = flow.coupling[0], random_codes(3)[:, 4:], random_key(3).k
    assert torch.allclose(block(2.5 * z, k), 2.5 * block(z, k))


def test_a_fresh_block_is_the_identity():
    z, k = random_codes(3)[:, 4:], random_key(3).k
    assert torch.allclose(SecureAffineCoupling(PARAMS).double()(z, k), z)


def test_results_do_not_depend_on_the_batch(flow):
    z, key = random_codes(4), random_key(4)
    single = torch.cat([flow(z[i : i + 1], key[i : i + 1]) for i in range(4)])
    assert torch.allclose(flow(z, key), single, atol=1e-12)


def test_mixes_are_orthogonal_and_turn_every_code_by_the_same_angle():
    rng = np.random.default_rng(1)
    cosines = np.array([0.0, -0.2, 0.1])
    q = orthogonal_mixes(rng.standard_normal((3, 200, 8, 8)), cosines)
    assert np.abs(q @ np.swapaxes(q, -1, -2) - np.eye(8)).max() < 1e-12
    z = rng.standard_normal((3, 200, 8))
    turned = np.einsum("bgi,bgij->bgj", z, q)
    assert np.allclose((turned * z).sum(2), cosines[:, None] * (z * z).sum(2))
    # without the sign correction of the decomposition the mean would differ
    assert np.abs(q.mean(1) - cosines[:, None, None] * np.eye(8)).max() < 0.12


def test_a_fresh_flow_only_mixes_and_a_trained_one_does_more(flow):
    z, key = random_codes(5), random_key(5)
    assert torch.allclose(SecureIdentityFlow(PARAMS).double()(z, key), flow.mixed_only(z, key))
    assert (flow(z, key) - flow.mixed_only(z, key)).norm(dim=1).min() > 0.1
