from __future__ import annotations

import pytest
import torch

from anonface.models.ifadit_official import IdentityEncoder, IdentityFlow, IdentityFlowParams, composite
from anonface.models.ir_se50 import IRSE50Params

LAYOUTS = [
    IdentityFlowParams(width=16, hidden=(12, 8)),
    IdentityFlowParams(width=16, hidden=(12, 8), halved=False),
    IdentityFlowParams(width=16, hidden=(12, 8), halved=False, matrices=True),
]


@pytest.mark.parametrize("params", LAYOUTS)
@torch.no_grad()
def test_the_inverse_undoes_the_flow_under_the_same_key_only(params: IdentityFlowParams) -> None:
    torch.manual_seed(0)
    flow = IdentityFlow(params).double()
    for block in flow.module_list:
        torch.nn.init.normal_(block.subnet[-1].weight, std=3.0)
    identity, key, wrong = torch.randn(3, 5, 16, dtype=torch.float64)
    changed, log_forward = flow(identity, key)
    back, log_back = flow.inverse(changed, key)
    torch.testing.assert_close(back, identity)
    torch.testing.assert_close(log_back, -log_forward)
    assert not torch.allclose(flow.inverse(changed, wrong)[0], identity, atol=0.1)


@pytest.mark.parametrize("params", LAYOUTS)
def test_the_jacobian_is_that_of_the_map(params: IdentityFlowParams) -> None:
    torch.manual_seed(0)
    flow = IdentityFlow(params).double()
    identity, key = torch.randn(2, 1, 16, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: flow(x[None], key)[0][0], identity[0])
    torch.testing.assert_close(flow(identity, key)[1][0], torch.linalg.slogdet(jacobian).logabsdet)


@pytest.mark.parametrize("params", LAYOUTS)
def test_the_layout_is_read_off_a_checkpoint(params: IdentityFlowParams) -> None:
    renamed = {str(i): tensor for i, tensor in enumerate(IdentityFlow(params).state_dict().values())}
    asked = IdentityFlowParams(width=16, hidden=(12, 8), halved=params.halved)
    assert asked.matching(renamed) == params


def test_no_release_has_matrices_and_the_halved_form() -> None:
    with pytest.raises(ValueError, match="permutation matrices"):
        IdentityFlowParams(matrices=True)


@torch.no_grad()
def test_the_identity_encoder_sees_the_middle_of_the_crop_alone() -> None:
    torch.manual_seed(0)
    encoder = IdentityEncoder(IRSE50Params(stages=((4, 1), (4, 1)), reduction=2, embedding=8)).eval()
    face = torch.rand(1, 3, 256, 256)
    framed = torch.zeros_like(face)
    framed[:, :, 35:223, 32:220] = face[:, :, 35:223, 32:220]
    torch.testing.assert_close(encoder(framed), encoder(face))
    framed[:, :, 222, 219] += 100
    assert not torch.allclose(encoder(framed), encoder(face))


def test_the_composite_keeps_the_original_beyond_the_blurred_border() -> None:
    image, original = torch.ones(1, 3, 64, 64), torch.zeros(1, 3, 64, 64)
    mask = torch.zeros(1, 1, 64, 64)
    mask[:, :, 20:44, 20:44] = 1
    result = composite(image, original, mask)[0, 0]
    torch.testing.assert_close(result[31, 31], torch.tensor(1.0))
    assert result[:11].max() == 0
    # Grown by two pixels, the edge of the blurred mask is at half height between pixels 17 and 18.
    torch.testing.assert_close(result[31, 17] + result[31, 18], torch.tensor(1.0))
