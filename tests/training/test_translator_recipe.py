"""Training data of the translator, and one step of each of its phases."""

import numpy as np
import pytest
import torch
from PIL import Image

from anonface.backends.generator import load_generator, load_mapping
from anonface.errors import WeightsError
from anonface.models.mobile_stylegan import MobileStyleGAN
from anonface.models.translator import PatchDiscriminator, Translator, TranslatorParams
from anonface.training import exchanges, translator
from anonface.training.exchanges import OTHERS, SIDE, draw_shard, load_shards
from anonface.training.loop import step_generator
from anonface.training.run import Request, _sample_networks, _translator
from anonface.training.translator import SWAPPED, TranslatorLosses, TranslatorObjective, TranslatorTeachers

ROWS = 4


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Two shards of four rows, three of which show a photo from a folder."""
    folder = tmp_path_factory.mktemp("run")
    style = load_mapping()(torch.randn(1, 512, generator=torch.Generator().manual_seed(8)))
    with torch.no_grad():
        face = load_generator().synthesize(style[:, None].expand(-1, MobileStyleGAN.TIED, -1), 256)
    pixels = ((face[0].permute(1, 2, 0).clamp(-1, 1) + 1) * 127.5).round().numpy().astype(np.uint8)
    Image.fromarray(pixels).save(folder / "photo.png")
    networks = _sample_networks()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchanges, "SHARD", ROWS)
        for number in range(2):
            draw_shard(folder / "exchanges" / f"{number}.safetensors", number, [folder / "photo.png"], networks)
    return folder / "exchanges", networks


@pytest.mark.slow
def test_others_differ_from_the_photo_within_the_mask_alone(shards):
    rows = load_shards(shards[0], {})
    assert len(rows) == 2 * ROWS and rows.others.shape == (2 * ROWS, OTHERS, 3, SIDE, SIDE)
    assert rows.real.tolist() == [1, 1, 1, 0] * 2
    outside = (rows.masks == 0)[:, None].expand_as(rows.others)
    off = (rows.others.float() - rows.photos[:, None].float()).abs()
    assert float(off[outside].max()) == 0 and float(off[~outside].mean()) > 5


def test_codes_have_unit_length_and_others_are_other_identities(shards):
    rows = load_shards(shards[0], {})
    for told in (rows.codes.float(), rows.known.float()):
        assert torch.allclose(told.norm(dim=2), torch.ones(2 * ROWS, 1 + OTHERS), atol=5e-3)
    own, other = rows.known.float()[:, 0], rows.known.float()[:, 1]
    assert float((own * other).sum(1).mean()) < 0.7


@pytest.mark.parametrize("step", [0, 16])
def test_a_step_of_each_phase(shards, step, monkeypatch):
    monkeypatch.setattr(translator, "KEPT_OUT", 2)
    folder, networks = shards
    from anonface.training.run import _features

    teachers = TranslatorTeachers(networks.eyes.encoder, networks.eyes.recognizer, networks.eyes.landmarks, _features())
    pair = Translator(TranslatorParams(widths=(16, 16, 32, 32))), PatchDiscriminator((16, 16, 32, 32))
    weights = TranslatorLosses(swap_from=10, swap_full=20)
    objective = TranslatorObjective(*pair, teachers, folder, batch=2, weights=weights)
    losses = objective.losses(step_generator(1, step), step)
    torch.stack([value for name, value in losses.items() if not name.startswith("_")]).sum().backward()
    assert all(torch.isfinite(value) for value in losses.values())
    swapped = any(float(losses[name]) for name in SWAPPED)
    assert swapped == (step >= weights.swap_from)
    assert all(parameter.grad is not None for parameter in objective.translator.parameters())
    assert (objective.discriminator.stem.weight.grad is not None) == swapped
    again = objective.losses(step_generator(1, step), step)
    assert all(torch.allclose(again[name], value, atol=1e-4) for name, value in losses.items())


def test_no_training_data_is_an_error_that_names_the_recipe(tmp_path):
    with pytest.raises(WeightsError, match="no training data"):
        _translator(Request(tmp_path), lambda done, total: None)
