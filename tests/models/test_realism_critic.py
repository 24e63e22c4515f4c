"""The realism critic."""

import torch

from anonface import weights
from anonface.models.realism_critic import RealismCritic, within


def test_the_mean_is_taken_within_the_mask():
    logits, mask = torch.zeros(2, 16, 16), torch.zeros(2, 1, 64, 64)
    logits[:, :4] = 3
    mask[0, :, :16], mask[1, :, 32:] = 1, 1
    assert torch.allclose(within(logits, mask), torch.tensor([3.0, 0.0]))


def test_any_size_is_accepted_and_results_do_not_depend_on_the_batch():
    critic = RealismCritic().eval()
    weights.load(critic, "critic")
    faces = torch.rand(3, 3, 512, 512, generator=torch.Generator().manual_seed(1)) * 2 - 1
    with torch.inference_mode():
        together, alone = critic(faces), critic(faces[:1])
    assert together.shape == (3, 16, 16) and torch.allclose(together[:1], alone, atol=1e-4)


def test_members_differ_and_have_equal_weight():
    critic = RealismCritic().eval()
    weights.load(critic, "critic")
    faces = torch.rand(2, 3, 256, 256, generator=torch.Generator().manual_seed(2)) * 2 - 1
    with torch.inference_mode():
        one, other = (critic(faces, member) for member in range(RealismCritic.MEMBERS))
        assert torch.allclose(critic(faces), (one + other) / 2, atol=1e-5)
    assert float((one - other).abs().mean()) > 0.1
