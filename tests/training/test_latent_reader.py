"""Training through a latent reader, on random faces."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface import weights
from anonface.backends.generator import load_generator, load_mapping
from anonface.models.dbaf import DBAF, DBAFParams
from anonface.models.graph import Graph
from anonface.models.hford import HFORD, HFORDParams
from anonface.models.identity import IdentityEncoder
from anonface.models.inversion import InversionEncoder, InversionParams
from anonface.models.latent_editing import CODES, FEATURE_CODES, READINGS, FaceEditor, LatentEditor
from anonface.models.mobile_stylegan import MappingNetwork
from anonface.training.data import HELD_OUT
from anonface.training.ifadit import principal_latents
from anonface.training.latent_editing import DBAFObjective, EditingObjective, HFORDObjective
from anonface.training.latent_reader import (
    SIDE,
    LatentReader,
    ReadBank,
    ReadEditing,
    ReaderObjective,
    ReadInversion,
    attribute_directions,
    load_read_bank,
)
from anonface.training.loop import Objective, Then, step_generator

COUNT, SIZE = HELD_OUT + 32, 16  # faces, and coordinates of a code


@pytest.fixture(scope="module")
def bank() -> ReadBank:
    """Faces whose attributes are linear in their codes."""
    rng = torch.Generator().manual_seed(1)
    codes = torch.randn(COUNT, CODES, SIZE, generator=rng)
    told = [codes.flatten(1) @ torch.randn(CODES * SIZE, n, generator=rng) / 15 for n in (448, 936, 768)]
    coarse = torch.randint(256, (COUNT, 3, 4, 4), generator=rng, dtype=torch.uint8)
    return ReadBank(
        F.interpolate(coarse.float(), (SIDE, SIDE)).byte(),
        codes.half(),
        F.normalize(told[0], dim=1),
        0.5 + 0.02 * told[1].unflatten(1, (468, 2)),
        0.2 * told[2].unflatten(1, (3, 16, 16)),
    )


@pytest.fixture
def reader() -> LatentReader:
    torch.manual_seed(0)
    return LatentReader(components=SIZE, hidden=64, blocks=1)


def total(losses: dict[str, Tensor]) -> Tensor:
    return torch.stack([value for name, value in losses.items() if not name.startswith("_")]).sum()


def learnt(objective: Objective, modules: nn.Module, steps: int = 25) -> tuple[float, float]:
    """The sum of the losses of the same step before and after some steps."""
    optimiser = torch.optim.Adam([p for p in modules.parameters() if p.requires_grad], 3e-3)
    before = float(total(objective.losses(step_generator(1, 0), 0)).detach())
    for step in range(steps):
        optimiser.zero_grad()
        total(objective.losses(step_generator(1, step), step)).backward()
        optimiser.step()
    return before, float(total(objective.losses(step_generator(1, 0), 0)).detach())


def test_a_reader_learns_and_logs_held_out_losses(bank, reader):
    objective = ReaderObjective(reader, bank, batch=16)
    before, after = learnt(objective, reader, 60)
    assert after < 0.7 * before
    losses = objective.losses(step_generator(1, 50), 50)
    assert {"_unseen identity", "_unseen mesh", "_unseen tones"} <= losses.keys()
    assert reader.training and float(reader(bank.codes.float()).identity.norm(dim=1).mean()) == pytest.approx(1)


def test_held_out_faces_are_never_drawn(bank):
    drawn = bank.draw(5000, torch.Generator().manual_seed(1))
    assert int(drawn.max()) == COUNT - HELD_OUT - 1


def test_the_encoder_learns_through_the_reader(bank, reader):
    encoder = InversionEncoder(InversionParams(squeeze=4, hidden=8, style=SIZE))
    before, after = learnt(ReadInversion(encoder, reader, bank, 4), encoder, 6)
    assert after < before and all(p.grad is None for p in reader.parameters())


@pytest.mark.parametrize("name", ["dbaf", "hford"])
def test_an_editor_learns_both_stages_through_the_reader(name, bank, reader):
    torch.manual_seed(0)
    editor: LatentEditor
    family: type[EditingObjective]
    if name == "dbaf":
        editor, family = DBAF(DBAFParams(code=SIZE, heads=2, head=4, maps=8)), DBAFObjective
    else:
        editor, family = HFORD(HFORDParams(code=SIZE, heads=2, head=4, hidden=12, maps=8, reduction=4)), HFORDObjective
    for shortcut in (editor.kept, editor.lent):  # worse than the initial weights
        nn.init.zeros_(shortcut)
    encoder = InversionEncoder(InversionParams(squeeze=4, hidden=8, style=SIZE))
    networks = FaceEditor(encoder, editor, nn.Identity())  # type: ignore[arg-type]  # nothing is drawn
    editing = family(networks, MappingNetwork(SIZE, 2), *[None] * 3, first_stage=0)  # type: ignore[arg-type]
    objective = ReadEditing(editing, reader, bank, bank.codes, batch=16)
    losses = objective.losses(step_generator(1, 0), 0)
    assert all(value.dim() == 0 and torch.isfinite(value) for value in losses.values())
    before, after = learnt(objective, editor)
    assert after < 0.9 * before and reader.training
    assert not any(p.grad is not None for p in (*reader.parameters(), *encoder.parameters()))


def test_attribute_directions_predict_the_landmarks():
    rng = torch.Generator().manual_seed(2)
    codes, count = torch.randn(600, CODES, SIZE, generator=rng), 3
    features = codes[:, FEATURE_CODES].flatten(1)
    moves = features @ torch.randn(features.shape[1], count, generator=rng)
    mesh = 0.5 + 0.001 * (moves @ torch.randn(count, 936, generator=rng)).unflatten(1, (468, 2))
    identity = torch.randn(600, 448, generator=rng)
    read = features @ attribute_directions(codes, identity, mesh, READINGS + count).flatten(0, 1)
    # components are predicted up to a linear map
    layout = read[:, READINGS:]
    told = layout @ torch.linalg.lstsq(layout, moves).solution
    assert float((moves - told).square().mean() / moves.square().mean()) < 0.05
    assert attribute_directions(codes, identity, mesh, READINGS).shape[2] == READINGS
    few = attribute_directions(codes[:3], identity[:3], mesh[:3], READINGS + count)
    assert few.shape[2] == READINGS + count and not few[..., READINGS + 3 :].any()


def test_one_objective_follows_another():
    class Says(Objective):
        def __init__(self, what: float) -> None:
            self.what = what

        def modules(self) -> dict[str, nn.Module]:
            return {str(self.what): nn.Identity()}

        def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
            return {"said": torch.tensor(self.what)}

    both = Then(Says(1.0), Says(2.0), at=3)
    assert [float(both.losses(torch.Generator(), step)["said"]) for step in range(5)] == [1, 1, 1, 2, 2]
    assert list(both.modules()) == ["1.0", "2.0"] and list(both.deployable()) == ["2.0"] and both.sheet() is None


def test_faces_are_drawn_once_and_fit_their_codes(tmp_path: Path):
    identity = IdentityEncoder()
    weights.load(identity, "identity")
    encoder, mapping, generator = InversionEncoder(), load_mapping(), load_generator()
    principal_latents(encoder, mapping)
    parts = generator, mapping, encoder, identity.eval(), Graph(weights.graph("landmarks")).eval()
    told: list[tuple[int, int]] = []
    bank = load_read_bank(tmp_path / "read.safetensors", *parts, 4, progress=lambda *x: told.append(x))
    assert told == [(4, 4)] and bank.images.shape == (4, 3, SIDE, SIDE)
    with torch.inference_mode():
        render = generator.synthesize(encoder.to_latents(bank.codes[:1].float()), SIDE)
    assert (render - bank.faces(torch.tensor([0]))).abs().mean() < 0.02
    assert 0.3 < float(bank.mesh.mean()) < 0.7 and torch.allclose(bank.identity.norm(dim=1), torch.ones(4), atol=1e-5)
    again = load_read_bank(tmp_path / "read.safetensors", *parts, 4, progress=lambda *x: told.append(x))
    assert len(told) == 1 and torch.equal(again.codes, bank.codes)
