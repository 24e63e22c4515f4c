"""One step of every recipe on real networks: finite losses, and gradients only where training is meant."""

import pytest
import torch
import torch.nn.functional as F

from anonface.errors import UsageError
from anonface.models.attribute_encoder import AttributeEncoder, IdentityCompensation, LatentMapper
from anonface.models.identity_flow import SecureIdentityFlow
from anonface.training.data import HELD_OUT, FaceBank, draw_keys, draw_latents
from anonface.training.heads import HeadsObjective
from anonface.training.ifadit import Fixed, FlowWarmUp, PhaseOne, PhaseTwo
from anonface.training.loop import Objective, step_generator
from anonface.training.run import Request, _fixed, train_command


@pytest.fixture(scope="module")
def fixed() -> Fixed:
    return _fixed()


@pytest.fixture(scope="module")
def bank(fixed: Fixed) -> FaceBank:
    """Four rendered faces, repeated."""
    w = draw_latents(fixed.mapping, 4, torch.Generator().manual_seed(31))
    with torch.inference_mode():
        images = F.adaptive_avg_pool2d(fixed.generator.synthesize(w, 256), 128)
    pixels = ((images.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    repeat = HELD_OUT // 4 + 2
    return FaceBank(pixels.repeat(repeat, 1, 1, 1), w.half().repeat(repeat, 1, 1))


def one_step(objective: Objective, step: int = 0) -> dict[str, torch.Tensor]:
    losses = objective.losses(step_generator(1, step), step)
    torch.stack([v for k, v in losses.items() if not k.startswith("_")]).sum().backward()
    assert all(torch.isfinite(v) for v in losses.values()), losses
    for name, module in objective.modules().items():
        assert any(p.grad is not None and p.grad.any() for p in module.parameters()), name
    return losses


def untouched(fixed: Fixed) -> bool:
    modules = (fixed.generator, fixed.mapping, fixed.encoder, fixed.features)
    return all(p.grad is None for module in modules for p in module.parameters())


def test_phase_one_regresses_latents_first_and_renders_later(fixed, bank):
    objective = PhaseOne(fixed, bank, rendered_from=1, batch=2)
    first, later = one_step(objective, 0), one_step(objective, 1)
    assert first["identity"] == 0 < later["identity"] and later["other"] > 0
    assert untouched(fixed)


@pytest.mark.slow
def test_flow_warm_up_and_phase_two_train_flow_and_compensation_alone(fixed, bank):
    codes = fixed.encoder(bank.faces(slice(0, 16)))
    codes = torch.cat([codes, F.normalize(codes + 0.02, dim=1), F.normalize(codes - 0.02, dim=1)])
    losses = one_step(FlowWarmUp(SecureIdentityFlow(), IdentityCompensation(), codes, fixed.mapping, batch=8))
    assert set(losses) == {"anon", "diversity", "right", "wrong", "compensation", "faces", "steady", "rest", "spectrum"}
    assert losses["steady"] < 0.01 and losses["rest"] < 0.01  # a fresh flow only mixes codes
    objective = PhaseTwo(
        fixed, bank, AttributeEncoder().eval(), LatentMapper(), SecureIdentityFlow(), IdentityCompensation(), batch=2
    )
    losses = one_step(objective)
    assert set(losses) == {"anon", "diversity", "deanon", "compensation", "image"}
    assert untouched(fixed)
    assert all(p.grad is None for p in objective.mapper.parameters())


def test_phase_two_trains_the_named_networks_and_applies_the_given_augmentations(fixed, bank):
    objective = PhaseTwo(
        fixed, bank, AttributeEncoder().eval(), LatentMapper(), SecureIdentityFlow(), IdentityCompensation(), batch=2
    )
    seen: list[tuple[str, torch.Tensor]] = []
    objective.augment = lambda faces, rng: (seen.append(("augment", faces)), faces)[1]
    objective.degrade = lambda faces, rng: (seen.append(("degrade", faces)), faces)[1]
    objective.trained = ("flow",)
    one_step(objective)
    assert list(objective.modules()) == ["flow"] and PhaseTwo.trained == ("flow", "compensation")
    (first, drawn), (then, anonymized) = seen
    assert (first, then) == ("augment", "degrade") and float((drawn - anonymized.detach()).abs().max()) > 0.05


@pytest.mark.slow
def test_heads_start_from_least_squares(fixed, monkeypatch):
    from anonface.backends.generator import load_generator

    start = HeadsObjective._start_from_least_squares
    monkeypatch.setattr(HeadsObjective, "_start_from_least_squares", lambda self: start(self, count=6))
    objective = HeadsObjective(load_generator(heads=False), fixed.mapping, batch=1, pool=6, refresh=100)
    losses = one_step(objective)
    assert losses["_psnr"] > 15  # on renders of the fit; noise gives 5 to 10


def test_training_keys_are_drawn_like_real_ones(fixed):
    keys = draw_keys(fixed.mapping, 3, torch.Generator().manual_seed(1), SecureIdentityFlow().params)
    assert keys.k.shape == (3, 512) and keys.mix.shape == (3, 17, 26, 26)
    assert torch.allclose(keys.mix @ keys.mix.mT, torch.eye(26).expand(3, 17, 26, 26), atol=1e-5)


def test_an_unknown_recipe_is_refused(tmp_path):
    with pytest.raises(UsageError, match="nothing called 'everything'"):
        next(train_command("everything", Request(tmp_path)))


@pytest.mark.slow
def test_weights_do_not_depend_on_earlier_draws_and_on_threads(tmp_path):
    files, before = [], torch.get_num_threads()
    for threads in (1, 2):
        torch.rand(threads)
        torch.set_num_threads(threads)
        try:
            for _ in train_command("flow", Request(tmp_path / str(threads), steps=2, faces=8)):
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(before)
        folder = tmp_path / str(threads) / "flow"
        files.append([(folder / f"{part}.safetensors").read_bytes() for part in ("flow", "compensation")])
    assert files[0] == files[1]
