"""Training steps of the encoder and of both papers' stages, on tiny networks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from anonface.backends.generator import load_generator, load_mapping
from anonface.backends.latent_editing.backend import EDITORS, ENCODER
from anonface.errors import WeightsError
from anonface.faces.colour_transfer import match_tones
from anonface.models.attribute_encoder import MobileNetV2Features
from anonface.models.dbaf import DBAF, DBAFParams
from anonface.models.discriminator import Discriminator, DiscriminatorParams
from anonface.models.face_parser import CLASSES, FACE, FaceParser
from anonface.models.hford import HFORD, HFORDParams
from anonface.models.identity import IdentityEncoder
from anonface.models.inversion import InversionEncoder, InversionParams
from anonface.models.latent_editing import CODES, FaceEditor
from anonface.models.mobile_stylegan import MappingNetwork, MobileStyleGAN, MobileStyleGANParams
from anonface.training import latent_editing
from anonface.training.data import recompressed
from anonface.training.latent_editing import (
    SIDE,
    CoveredPool,
    DBAFObjective,
    EditingObjective,
    HFORDObjective,
    InversionObjective,
    RetentionObjective,
    Teachers,
    _covered,
    draw_key_vectors,
)
from anonface.training.latent_reader import TONES, LatentReader, ReadEditing
from anonface.training.loop import LoopSettings, Objective, Then, step_generator, train
from anonface.training.run import READER_STEPS, RECIPES, RETENTION_STEPS, Request, train_command

SIZE = 8  # coordinates of a code, and channels of the generator
OBJECTIVES = {"dbaf": DBAFObjective, "hford": HFORDObjective}


def drawn(count: int, rng: torch.Generator) -> Tensor:
    coarse = torch.rand(count, 3, 8, 8, generator=rng)
    return F.interpolate(coarse, (SIDE, SIDE), mode="bicubic").clamp(0, 1) * 2 - 1


class DrawnFaces(CoveredPool):
    """Smooth random pictures in place of rendered faces, with an occluder in one corner."""

    def __init__(self) -> None:
        pass

    def render(self, count: int, rng: torch.Generator) -> Tensor:
        pictures = torch.cat([drawn(count, rng), -torch.ones(count, 1, SIDE, SIDE)], dim=1)
        return ((pictures + 1) * 127.5).to(torch.uint8)

    def pairs(self, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        covers = torch.zeros(count, 1, SIDE, SIDE)
        covers[..., 100:140, 100:140] = 1
        return drawn(count, rng), covers


class DrawnCodes(InversionObjective):
    def _draw(self, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(count, CODES, SIZE, generator=rng), drawn(count, rng)


def generator() -> MobileStyleGAN:
    network = MobileStyleGAN(MobileStyleGANParams(style=SIZE, base=SIZE, channels=(SIZE,) * 7, early_heads=((4, 4),)))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return network.requires_grad_(False)


@pytest.fixture(scope="module")
def teachers() -> Teachers:
    torch.manual_seed(0)
    networks = IdentityEncoder(), MobileNetV2Features(), FaceParser()
    return Teachers(*(network.eval().requires_grad_(False) for network in networks))


def encoder() -> InversionEncoder:
    return InversionEncoder(InversionParams(squeeze=4, hidden=8, style=SIZE))


def objective(name: str, teachers: Teachers, first_stage: int = 1) -> EditingObjective:
    torch.manual_seed(0)
    editor = {
        "dbaf": lambda: DBAF(DBAFParams(code=SIZE, heads=2, head=4, maps=SIZE)),
        "hford": lambda: HFORD(HFORDParams(code=SIZE, heads=2, head=4, hidden=12, maps=SIZE, reduction=4)),
    }[name]()
    torch.nn.init.constant_(editor.strength, 0.1)
    return OBJECTIVES[name](
        FaceEditor(encoder(), editor, generator()),
        MappingNetwork(SIZE, 2).requires_grad_(False),
        teachers,
        DrawnFaces(),
        Discriminator(DiscriminatorParams(side=32, channels=(4, 4, 4, 4))),
        first_stage,
    )


@pytest.fixture(params=OBJECTIVES)
def editing(request: pytest.FixtureRequest, teachers: Teachers) -> EditingObjective:
    return objective(request.param, teachers)


def one_step(objective: Objective, step: int = 0) -> dict[str, Tensor]:
    losses = objective.losses(step_generator(1, step), step)
    assert all(torch.isfinite(value) and value.dim() == 0 for value in losses.values()), losses
    torch.stack(list(losses.values())).sum().backward()
    return losses


def moved(module: torch.nn.Module) -> bool:
    return any(p.grad is not None and bool(p.grad.any()) for p in module.parameters())


IMAGE = {"perceived", "pixels", "parts", "covers", "regular", "fooling", "catching"}


def test_stage_one_disentangles_without_a_key(editing: EditingObjective) -> None:
    losses = one_step(editing, 0)
    assert set(losses) == {"contrast", *IMAGE}
    editor = editing.networks.editor
    assert moved(editor.disentangler) and moved(editor.retention) and editor.strength.grad.all()
    assert moved(editing.discriminator) and not moved(editor.rewriter)
    assert not moved(editing.networks.encoder) and not moved(editing.networks.generator)


@pytest.mark.slow
def test_stage_two_anonymizes_and_recovers(editing: EditingObjective) -> None:
    losses = one_step(editing, 1)
    assert set(losses) == {"different", "recovered", "diverse", *IMAGE}
    editor = editing.networks.editor
    assert all(moved(part) for part in (editor.disentangler, editor.retention, editor.rewriter, editing.discriminator))
    assert not moved(editing.networks.encoder) and not moved(editing.networks.generator)
    assert not any(moved(part) for part in (editing.teachers.identity, editing.teachers.features, editing.mapping))


def test_recovery_encodes_the_degraded_anonymized_picture_again(
    editing: EditingObjective, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tensor] = []
    stored: list[Tensor] = []
    look, compress = editing.networks.encoder.forward, recompressed
    monkeypatch.setattr(editing.networks.encoder, "forward", lambda faces: (seen.append(faces), look(faces))[1])
    monkeypatch.setattr(
        latent_editing, "recompressed", lambda faces, rng: (stored.append(faces), compress(faces, rng))[1]
    )
    faces, covers = editing.faces.pairs(2, torch.Generator().manual_seed(1))
    made = editing.anonymize(faces, covers, torch.Generator().manual_seed(2))
    original, arrived = seen
    assert torch.equal(original, faces) and len(stored) == 1
    assert arrived.requires_grad and not torch.allclose(arrived, stored[0], atol=0.01)  # compressed
    inside = editing.teachers.mask(faces)
    assert ((arrived - faces).abs() * inside).mean() > 0.05  # another face
    assert len(made.renders) == 5 and made.codes.shape == (10, CODES, SIZE)
    # the original is moved in the same way, so that they can be compared
    assert torch.equal(made.wanted[0], faces) and not torch.equal(made.wanted[2], faces)
    assert (made.wanted[2] - faces).abs().mean() < 0.1
    (slope,) = torch.autograd.grad(made.renders[2].sum(), made.renders[0], allow_unused=True)
    assert slope is not None and slope.any()  # the loss of recovery has a gradient at the anonymized picture


def test_one_paper_sums_over_pictures_and_the_other_averages(teachers: Teachers) -> None:
    dbaf, hford = (objective(name, teachers) for name in OBJECTIVES)
    values = [torch.tensor(v) for v in (1.0, 2.0, 6.0)]
    assert dbaf.over(values) == 9 and hford.over(values) == 3
    codes = torch.full((2, CODES, SIZE), 3.0)
    assert torch.isclose(dbaf.regular(codes), torch.tensor(3.0)) and hford.regular(codes) < 1e-3
    codes[:, 0] = 1
    assert torch.isclose(hford.regular(codes), torch.tensor(2.0))


def test_contrast_attracts_own_identities_and_repels_others(
    teachers: Teachers, monkeypatch: pytest.MonkeyPatch
) -> None:
    editing = objective("dbaf", teachers)
    faces, covers = editing.faces.pairs(4, torch.Generator().manual_seed(1))

    def contrast(cosines: Sequence[float]) -> float:
        own, other = torch.tensor([1.0, 0.0]).expand(4, 2), torch.tensor([[c, (1 - c * c) ** 0.5] for c in cosines])
        looks = iter([own, other])
        with monkeypatch.context() as patch:
            patch.setattr(IdentityEncoder, "forward", lambda self, faces: next(looks))
            return float(editing.disentangle(faces, covers).identity["contrast"])

    near, far = editing.NEAR, editing.FAR
    assert contrast([1 - near, 1.0, 1 - far, 0.0]) == pytest.approx(0, abs=1e-6)
    assert contrast([0.5, 1.0, 1 - far, 0.0]) == pytest.approx((0.5 - near) / 4, abs=1e-5)
    assert contrast([1.0, 1.0, 1.0, 0.0]) == pytest.approx(far / 4, abs=1e-5)


def test_each_adversarial_loss_has_gradients_of_one_network_only(editing: EditingObjective) -> None:
    real, made = torch.rand(2, 3, 32, 32), torch.rand(4, 3, 32, 32, requires_grad=True)
    losses = editing.adversarial(real, made, 2, step=1)
    losses["fooling"].backward(retain_graph=True)
    assert made.grad.any() and not moved(editing.discriminator)
    made.grad = None
    losses["catching"].backward()
    assert made.grad is None and moved(editing.discriminator)
    plain = editing.adversarial(real, made, 2, step=1)["catching"]
    assert editing.adversarial(real, made, 2, step=editing.R1_EVERY)["catching"] > plain  # the gradient penalty


def test_a_discriminator_learns_to_distinguish_pictures() -> None:
    torch.manual_seed(0)
    network = Discriminator(DiscriminatorParams(side=32, channels=(8, 8, 8, 8)))
    bright, dark = 0.5 + 0.3 * torch.randn(8, 3, 64, 64), -0.5 + 0.3 * torch.randn(8, 3, 64, 64)
    assert network(bright).shape == (8,)
    optimiser = torch.optim.Adam(network.parameters(), 5e-3)
    for _ in range(30):
        optimiser.zero_grad()
        (F.softplus(-network(bright)) + F.softplus(network(dark))).mean().backward()
        optimiser.step()
    assert network(bright).min() > network(dark).max()
    with pytest.raises(ValueError, match="do not match the halvings from 64 px"):
        DiscriminatorParams(side=64, channels=(8, 8))


def test_a_run_saves_the_editor_alone_and_resumes(tmp_path: Path, teachers: Teachers) -> None:
    settings = LoopSettings(tmp_path / "dbaf", 2, save_every=1)
    rows = list(train(objective("dbaf", teachers), settings))
    assert "contrast" in rows[0] and "recovered" in rows[1]
    assert [file.name for file in (tmp_path / "dbaf").glob("*.safetensors")] == ["dbaf.safetensors"]
    saved = load_file(tmp_path / "dbaf" / "dbaf.safetensors")
    fresh = objective("dbaf", teachers)
    assert saved.keys() == fresh.networks.editor.state_dict().keys()
    assert len(list((tmp_path / "dbaf").glob("sheet-*.png"))) == 2
    assert list(train(fresh, settings)) == []  # resumed at its end
    assert torch.allclose(fresh.networks.editor.strength, saved["strength"].float(), atol=1e-3)


def test_the_encoder_learns_codes_and_pictures(teachers: Teachers) -> None:
    torch.manual_seed(0)
    network = encoder()
    training = DrawnCodes(network, generator(), MappingNetwork(SIZE, 2), teachers, batch=2)
    losses = one_step(training)
    assert set(losses) == {"codes", "pixels", "perceived", "identity", "offsets"}
    assert moved(network) and not moved(training.generator)
    optimiser, before = torch.optim.Adam(network.parameters(), 2e-3), losses["codes"].detach()
    for _ in range(6):
        optimiser.zero_grad()
        losses = training.losses(step_generator(1, 0), 0)
        torch.stack(list(losses.values())).sum().backward()
        optimiser.step()
    assert losses["codes"] < before


def test_maps_learn_the_surroundings_of_a_face_and_not_its_identity(editing: EditingObjective) -> None:
    torch.nn.init.zeros_(editing.networks.editor.strength)
    training = RetentionObjective(editing)
    editor = editing.networks.editor
    assert not editor.strength.any()  # until its first step
    editing.batch = 4
    losses = one_step(training)
    assert (editor.strength == training.BEGIN).all()
    assert set(losses) == {"perceived", "pixels", "covers"}
    assert moved(editor.retention) and editor.strength.grad is not None and not moved(editing.networks.encoder)
    assert not moved(editor.disentangler) and not moved(editor.rewriter) and not moved(editing.discriminator)
    faces, _ = editing.faces.pairs(4, torch.Generator().manual_seed(1))
    with torch.no_grad():
        mask = F.pad(torch.ones(4, 1, 120, 136), (60, 60, 80, 56))
        codes, _, wanted = training.wanted(faces, mask, torch.Generator().manual_seed(2))
        own, _ = editing.networks.encoder(faces)
    outside = (wanted - faces) * (1 - mask)  # rounded, of the later half
    assert torch.allclose(outside, torch.zeros_like(faces), atol=0.01)
    assert ((wanted - faces).abs() * mask).mean((1, 2, 3)).min() > 0.02
    assert torch.equal(codes[2:], own[2:]) and not torch.allclose(codes[:2], own[:2], atol=0.1)
    with torch.no_grad():  # the identity depends on the codes alone
        plain = editing.networks.generator.synthesize(editing.networks.encoder.to_latents(codes[:2]), SIDE)
        toned = match_tones(plain, faces[:2], mask[:2])
    assert torch.allclose((wanted[:2] - toned) * mask[:2], torch.zeros_like(toned), atol=1e-5)


@pytest.mark.parametrize("name", [ENCODER, *OBJECTIVES])
def test_without_a_reader_the_error_names_its_recipe(name: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no reader/reader.safetensors") as caught:
        next(train_command(name, Request(tmp_path)))
    assert "anonface train reader" in caught.value.hint


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_recipe_builds_on_the_run_s_encoder_and_makes_what_the_backend_loads(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    (tmp_path / ENCODER).mkdir()
    state = {key: value for key, value in InversionEncoder().state_dict().items() if "num_batches" not in key}
    save_file(state, tmp_path / ENCODER / f"{ENCODER}.safetensors")
    with pytest.raises(WeightsError, match=r"no reader/reader.safetensors"):
        RECIPES[name](Request(tmp_path, steps=10), lambda done, total: None)
    (tmp_path / "reader").mkdir()
    save_file(LatentReader().state_dict(), tmp_path / "reader" / "reader.safetensors")
    sizes = {"codes": (CODES, 512), "identity": (448,), "mesh": (468, 2), "tones": (3, TONES, TONES)}
    known = {part: torch.zeros(2, *size) for part, size in sizes.items()}
    save_file({"images": torch.zeros(2, 3, SIDE, SIDE, dtype=torch.uint8), **known}, tmp_path / "read.safetensors")
    both, settings = RECIPES[name](
        Request(tmp_path, steps=RETENTION_STEPS[name] + 10, faces=2), lambda done, total: None
    )
    assert isinstance(both, Then) and both.at == RETENTION_STEPS[name] and isinstance(both.first, Then)
    assert both.first.at == READER_STEPS[name] and isinstance(both.first.first, ReadEditing)
    assert isinstance(both.first.second, RetentionObjective) and both.first.second.editing is both.second
    made = both.second
    assert isinstance(made, OBJECTIVES[name]) and made.first_stage == RETENTION_STEPS[name] + 5 and made.name == name
    assert (settings.folder, settings.steps) == (tmp_path / name, RETENTION_STEPS[name] + 10)
    for key, value in state.items():
        assert torch.equal(made.networks.encoder.state_dict()[key], value)
    assert made.deployable()[name].keys() == EDITORS[name]().state_dict().keys()
    assert not any(p.requires_grad for m in (made.networks.encoder, made.networks.generator) for p in m.parameters())


def test_covers_are_masks_of_the_hidden_face() -> None:
    rng = np.random.default_rng(1)
    pictures = np.full((6, SIDE, SIDE, 3), 128, np.uint8) + rng.integers(0, 3, (6, SIDE, SIDE, 3), np.uint8)
    labels = np.zeros((6, SIDE, SIDE), np.uint8)
    labels[:, 70:230, 70:190] = CLASSES.index("skin")
    result, again = (_covered(pictures, labels, torch.Generator().manual_seed(s)) for s in (5, 5))
    assert torch.equal(result, again) and result.shape == (6, 4, SIDE, SIDE)
    hidden = result[:, 3] == 255
    shares = hidden.float().mean((1, 2))
    assert (shares > 0.005).any() and (shares == 0).any()
    face = torch.from_numpy(np.isin(labels, FACE))
    assert not (hidden & ~face).any()
    change = (result[:, :3].float() - torch.from_numpy(pictures).permute(0, 3, 1, 2)).abs().mean(1)
    assert change[hidden].mean() > 10 * change[shares == 0].mean() + 5


def test_a_pool_of_rendered_faces_keeps_covers_with_them() -> None:
    torch.manual_seed(0)
    pool = CoveredPool(load_generator(), load_mapping(), FaceParser().eval(), size=2, fresh=1)
    faces, covers = pool.pairs(2, torch.Generator().manual_seed(1))
    assert faces.shape == (2, 3, SIDE, SIDE) and faces.std() > 0.2 and faces.abs().max() <= 1
    assert covers.shape == (2, 1, SIDE, SIDE) and covers.min() >= 0 and covers.max() <= 1


def test_training_keys_are_made_like_real_ones() -> None:
    network, mapping = encoder(), MappingNetwork(SIZE, 2)
    first, again, other = (
        draw_key_vectors(mapping, network, 3, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert first.shape == (3, 3, SIZE) and not first.requires_grad
    assert torch.equal(first, again) and not torch.allclose(first, other)


def test_compression_is_a_constant_to_gradients() -> None:
    faces = drawn(2, torch.Generator().manual_seed(1)).requires_grad_()
    stored = recompressed(faces, torch.Generator().manual_seed(2))
    assert 1e-4 < (stored - faces).abs().mean() < 0.1
    stored.sum().backward()
    assert torch.equal(faces.grad, torch.ones_like(faces))
