"""Training data of the inpainter, and its steps."""

import numpy as np
import pytest
import torch
from PIL import Image

from anonface import weights
from anonface.errors import WeightsError
from anonface.faces.analysis import mesh_in_crop
from anonface.faces.surroundings import draw_in_square
from anonface.models.code_landmarks import CodeLandmarks
from anonface.models.discriminator import FeatureDiscriminator
from anonface.models.face_parser import FaceParser
from anonface.models.inpainter import LARGE, Inpainter
from anonface.models.mobile_stylegan import MobileStyleGAN
from anonface.training import inpainter, portraits, run
from anonface.training.inpainter import (
    FEATURE_SPREADS,
    FEATURE_WIDTHS,
    TAPS,
    InpainterObjective,
    InpainterTeachers,
    sized,
    start_inpainter,
)
from anonface.training.loop import step_generator
from anonface.training.portraits import SIDE, PortraitNetworks, draw_shard, load_shards, photo_files
from anonface.training.run import Request, _features, _inpainter, _start_fine

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


def test_drawn_rows_know_their_style(shards, networks):
    rows = load_shards(shards, {})
    assert not rows.styles[0].any() and rows.styles[1:].any(1).all()
    latents = rows.styles[1:2].float()[:, None].expand(-1, MobileStyleGAN.TIED, -1)
    with torch.no_grad():
        code = networks.analysis.encoder(networks.generator.synthesize(latents, 256))
    assert float((code[0] * rows.codes[1].float()).sum()) > 0.7


@pytest.fixture(scope="module")
def teachers(networks):
    features = _features()
    features.taps = TAPS
    analysis = networks.analysis
    parser = FaceParser()
    code_landmarks = CodeLandmarks()
    for module, name in ((parser, "face-parser"), (code_landmarks, "code-landmarks")):
        weights.load(module, name)
    frozen = analysis.encoder, networks.recognizer, analysis.landmarks, features, parser.eval(), code_landmarks
    return InpainterTeachers(*frozen)


def test_training_starts_with_faces_of_the_generator_in_the_right_places(shards, networks, teachers):
    rows, network = load_shards(shards, {}), Inpainter()
    start_inpainter(network, rows, teachers.landmarks, networks)
    photos, masks = sized(rows, torch.arange(1, 6), 128, "cpu")
    mesh = mesh_in_crop(teachers.landmarks, photos)
    with torch.no_grad():
        drawn = draw_in_square(network, photos, masks, mesh, rows.codes[1:].float())
    off = (mesh_in_crop(teachers.landmarks, drawn) - mesh).abs().mean((1, 2))
    assert float(off.median()) < 0.03  # of the side


def test_steps_have_gradients_and_repeat(shards, teachers, monkeypatch):
    monkeypatch.setattr(inpainter, "KEPT_OUT", 2)
    pair = Inpainter(), FeatureDiscriminator(FEATURE_WIDTHS, FEATURE_SPREADS)
    pair[1].eval()  # spectral norms stay as they are
    for network in pair:
        for parameter in network.parameters():
            if parameter.requires_grad and parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.05)
    for parameter in pair[0].drawing():
        parameter.requires_grad_(False)
    objective = InpainterObjective(*pair, teachers, shards, batch=4)
    losses = objective.losses(step_generator(1, 0), 0)
    torch.stack([value for name, value in losses.items() if not name.startswith("_")]).sum().backward()
    assert all(torch.isfinite(value) for value in losses.values())
    for network in pair:
        assert all(parameter.grad is not None for parameter in network.parameters() if parameter.requires_grad)
    again = objective.losses(step_generator(1, 0), 0)
    assert all(torch.allclose(again[name], value, rtol=1e-3, atol=1e-4) for name, value in losses.items())


def test_the_fine_one_begins_with_the_other(tmp_path):
    larger, judge = Inpainter(LARGE), FeatureDiscriminator(FEATURE_WIDTHS, FEATURE_SPREADS)
    with pytest.raises(WeightsError, match="there is no"):
        _start_fine(Request(tmp_path), larger, judge)
    torch.manual_seed(2)
    small, small_judge = Inpainter(), FeatureDiscriminator(FEATURE_WIDTHS, FEATURE_SPREADS)
    (tmp_path / "inpainter").mkdir()
    modules = {"average": small.state_dict(), "discriminator": small_judge.state_dict()}
    torch.save({"modules": modules}, tmp_path / "inpainter" / "state.pt")
    _start_fine(Request(tmp_path), larger, judge)
    assert torch.equal(larger.linear.weight, small.linear.weight)
    assert all(torch.equal(*pair) for pair in zip(judge.parameters(), small_judge.parameters(), strict=True))


def test_missing_files_are_drawn_and_the_first_one_first(tmp_path, monkeypatch):
    drawn = []

    def draw(file, number, *rest):
        drawn.append(number)
        file.parent.mkdir(exist_ok=True)
        file.touch()

    monkeypatch.setattr(run.PortraitNetworks, "load", lambda: None)
    monkeypatch.setattr(run, "draw_shard", draw)
    (tmp_path / "portraits").mkdir()
    (tmp_path / "portraits" / "00002.safetensors").touch()
    assert run._draw_portraits(Request(tmp_path, faces=401), lambda done, total: None) == {"rows": 500.0}
    assert drawn[0] == 0 and sorted(drawn) == [0, 1, 3, 4]


def test_no_training_data_is_an_error_that_names_the_recipe(tmp_path):
    with pytest.raises(WeightsError, match="no training data"):
        _inpainter(Request(tmp_path), lambda done, total: None)
