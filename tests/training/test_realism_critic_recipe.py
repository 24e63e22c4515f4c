"""Samples and losses of the realism critic, and the accuracy of the shipped one."""

import pytest
import torch

from anonface import weights
from anonface.backends.generator import load_generator, load_mapping
from anonface.backends.ifadit.backend import IFADIT
from anonface.faces.analysis import load_analysis_networks
from anonface.models.inversion import InversionEncoder
from anonface.models.latent_attributes import LatentAttributes
from anonface.models.realism_critic import RealismCritic, within
from anonface.training.degradation import with_artifacts
from anonface.training.loop import step_generator
from anonface.training.realism_critic import (
    OTHERS,
    CriticSamples,
    RealismCriticObjective,
    SampleNetworks,
    load_critic_samples,
    load_refined_samples,
    pictures_of,
)


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> CriticSamples:
    regression, inversion = LatentAttributes(), InversionEncoder()
    for module, name in ((regression, "census"), (inversion, "inversion")):
        weights.load(module, name)
        module.requires_grad_(False).eval()
    networks = SampleNetworks(load_analysis_networks(), load_generator(), load_mapping(), regression, inversion)
    file = tmp_path_factory.mktemp("run") / "tries.safetensors"
    first = load_critic_samples(file, networks, 4, seed=99)
    more = load_critic_samples(file, networks, 10, seed=99)
    assert torch.equal(more.photos[:4], first.photos) and len(more) == 10
    return more


@pytest.mark.slow
def test_others_differ_from_the_photo_within_the_mask_alone(samples):
    assert samples.others.shape == (10, OTHERS, 3, 256, 256) and samples.masks.shape == (10, 1, 256, 256)
    outside = (samples.masks == 0)[:, None].expand_as(samples.others)
    off = (samples.others.float() - samples.photos[:, None].float()).abs()
    assert float(off[outside].max()) == 0 and float(off[~outside].mean()) > 5
    inverted = (samples.inverted.float() - samples.photos.float()).abs()
    assert float(inverted.mean()) < float(off.mean())


def test_the_shipped_critic_ranks_unseen_photos_first(samples):
    critic = RealismCritic()
    weights.load(critic, "critic")
    fresh = RealismCriticObjective(RealismCritic(), samples)
    taught = RealismCriticObjective(critic, samples)
    with torch.no_grad():
        everything = torch.arange(len(samples))
        assert (
            float(taught.ranking(*pictures_of(samples, everything))[1])
            > 0.85
            > float(fresh.ranking(*pictures_of(samples, everything))[1])
        )


def test_each_shipped_member_detects_artifacts(samples):
    critic = RealismCritic()
    weights.load(critic, "critic")
    pictures, masks = pictures_of(samples, torch.arange(len(samples)))
    worse, where = with_artifacts(pictures[:, 0], pictures[:, 2], masks, torch.Generator().manual_seed(3))
    with torch.no_grad():
        for member in range(RealismCritic.MEMBERS):
            gap = critic(pictures[:, 0], member) - critic(worse, member)
            assert float((within(gap, where) > 0).float().mean()) > 0.75


def test_a_step_gives_every_layer_a_gradient(samples):
    torch.manual_seed(1)  # some random networks have a layer without an active unit
    objective = RealismCriticObjective(RealismCritic(), samples, batch=2)
    losses = objective.losses(step_generator(1, 0), 0)
    (losses["critic_0_0"] + losses["critic_0_1"]).backward(retain_graph=True)
    assert 0 <= float(losses["_held_out_0_1"]) <= 1
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in objective.critic.parameters())
    objective.critic.zero_grad()
    (losses["spoilt_0_0"] + losses["spoilt_0_1"]).backward()
    layers = [
        p for p in objective.critic.parameters() if p.dim() == 4
    ]  # differences of logits do not depend on the bias
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in layers)
    assert "_held_out_0_0" not in objective.losses(step_generator(1, 1), 1)


@pytest.mark.slow
def test_refined_faces_are_a_second_kind_of_samples(samples, tmp_path):
    refine_best = load_refined_samples(tmp_path / "refined.safetensors", IFADIT(settings={"refine": 1}), 1, seed=99)
    assert refine_best.others.shape == (1, OTHERS, 3, 256, 256)
    outside = (refine_best.masks == 0)[:, None].expand_as(refine_best.others)
    off = (refine_best.others.float() - refine_best.photos[:, None].float()).abs()
    assert float(off[outside].max()) == 0 and float(off[~outside].mean()) > 5
    assert (
        float((refine_best.others[:, 0].float() - refine_best.others[:, 1].float()).abs().mean()) > 1
    )  # two identities
    losses = RealismCriticObjective(RealismCritic(), samples, refine_best, batch=1).losses(step_generator(1, 0), 0)
    assert {"critic_0_0", "critic_1_1", "_held_out_0_0"} <= losses.keys()
