"""Training data of the inpainter, and its steps."""

import numpy as np
import pytest
import torch
from PIL import Image

from anonface.errors import WeightsError
from anonface.models.discriminator import PatchDiscriminator
from anonface.models.inpainter import Inpainter, InpainterParams
from anonface.models.mobile_stylegan import MobileStyleGAN
from anonface.training import inpainter, portraits
from anonface.training.inpainter import InpainterObjective, InpainterTeachers
from anonface.training.loop import step_generator
from anonface.training.portraits import SIDE, PortraitNetworks, draw_shard, load_shards, photo_files
from anonface.training.run import Request, _features, _inpainter, _inpainter_and_discriminator

ROWS = 3


@pytest.fixture(scope="module")
def networks():
    return PortraitNetworks.load()


@pytest.fixture(scope="module")
def shards(networks, tmp_path_factory):
    """Two shards of three rows; the first row shows a photo from a folder, the others drawn faces."""
    folder = tmp_path_factory.mktemp("run")
    style = networks.mapping(torch.randn(1, 512, generator=torch.Generator().manual_seed(8)))
    with torch.no_grad():
        face = networks.generator.synthesize(style[:, None].expand(-1, MobileStyleGAN.TIED, -1), 256)
    pixels = ((face[0].permute(1, 2, 0).clamp(-1, 1) + 1) * 127.5).round().numpy().astype(np.uint8)
    Image.fromarray(pixels).save(folder / "photo.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portraits, "SHARD", ROWS)
        for number in range(2):
            draw_shard(folder / "portraits" / f"{number}.safetensors", number, photo_files([folder]), networks)
    return folder / "portraits"


def test_rows_hold_a_photo_its_mask_and_who_it_is(shards):
    rows = load_shards(shards, {})
    assert len(rows) == 2 * ROWS and rows.photos.shape == (2 * ROWS, 3, SIDE, SIDE)
    assert rows.masks.shape == (2 * ROWS, 1, SIDE, SIDE) and 0.05 < float(rows.masks.float().mean()) / 255 < 0.5
    for told in (rows.codes.float(), rows.known.float()):
        assert torch.allclose(told.norm(dim=1), torch.ones(2 * ROWS), atol=5e-3)
    apart = rows.known.float() @ rows.known.float().T
    assert float(apart.fill_diagonal_(0).max()) < 0.7


def test_a_shard_depends_on_its_number_and_the_seed_alone(shards, networks, tmp_path, monkeypatch):
    monkeypatch.setattr(portraits, "SHARD", ROWS)
    draw_shard(tmp_path / "again.safetensors", 1, [], networks)
    again, first = load_shards(tmp_path, {}), load_shards(shards, {})
    assert torch.equal(again.photos, first.photos[ROWS:])


def test_steps_have_gradients_and_repeat(shards, networks, monkeypatch):
    monkeypatch.setattr(inpainter, "KEPT_OUT", 2)
    analysis = networks.analysis
    teachers = InpainterTeachers(analysis.encoder, analysis.recognizer, analysis.landmarks, _features())
    pair = Inpainter(InpainterParams(widths=(16, 16, 32, 32))), PatchDiscriminator((16, 16, 32, 32))
    objective = InpainterObjective(*pair, teachers, shards, batch=4)
    losses = objective.losses(step_generator(1, 0), 0)
    torch.stack([value for name, value in losses.items() if not name.startswith("_")]).sum().backward()
    assert all(torch.isfinite(value) for value in losses.values())
    assert all(parameter.grad is not None for module in pair for parameter in module.parameters())
    again = objective.losses(step_generator(1, 0), 0)
    assert all(torch.allclose(again[name], value, atol=1e-4) for name, value in losses.items())


def test_the_fine_one_begins_with_the_other(tmp_path):
    with pytest.raises(WeightsError, match="there is no"):
        _inpainter_and_discriminator(Request(tmp_path), fine=True)
    torch.manual_seed(2)
    small, judge = _inpainter_and_discriminator(Request(tmp_path), fine=False)
    (tmp_path / "inpainter").mkdir()
    modules = {"inpainter": {}, "average": small.state_dict(), "discriminator": judge.state_dict()}
    torch.save({"modules": modules}, tmp_path / "inpainter" / "state.pt")
    fine, larger = _inpainter_and_discriminator(Request(tmp_path), fine=True)
    assert fine.params.side == 2 * small.params.side
    wide = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.allclose(larger(wide), judge(torch.nn.functional.avg_pool2d(wide, 2)), atol=1e-5)


def test_no_training_data_is_an_error_that_names_the_recipe(tmp_path):
    with pytest.raises(WeightsError, match="no training data"):
        _inpainter(Request(tmp_path), lambda done, total: None)
