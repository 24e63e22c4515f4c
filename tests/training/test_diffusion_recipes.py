"""A step of the autoencoder's and of the noise prediction's training, on small networks and the real generator."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anonface.backends.diffusion.files import load_model
from anonface.backends.generator import load_generator, load_mapping
from anonface.errors import UsageError
from anonface.models.attribute_encoder import MobileNetV2Features
from anonface.models.discriminator import Discriminator, DiscriminatorParams
from anonface.models.latent_diffusion import OWN_AUTOENCODER, OWN_SCHEDULE, OWN_UNET, LatentDiffusion, build
from anonface.models.sharpener import Sharpener, SharpenerParams
from anonface.training import run
from anonface.training.data import FacePool, cropped, mirrored, relit
from anonface.training.diffusion import AutoencoderObjective, LatentPool, NoiseObjective, start_from_block_means
from anonface.training.loop import Objective, step_generator
from anonface.training.run import Request, train_command
from anonface.training.sharpener import DetailPool, SharpenerObjective

SIDE = 64  # px of a face, eight times a latent's
SMALL_UNET = {**OWN_UNET, "sample_size": SIDE // 8, "block_out_channels": [32, 32, 32], "layers_per_block": 1}
SMALL_AUTOENCODER = {
    **OWN_AUTOENCODER,
    "encoder_block_out_channels": [8] * 4,
    "decoder_block_out_channels": [8] * 4,
    "num_encoder_blocks": [1] * 4,
    "num_decoder_blocks": [1] * 4,
}


class DrawnFaces(FacePool):
    """Smooth random pictures in place of rendered faces."""

    def __init__(self, side: int = SIDE) -> None:
        self.size, self.fresh, self.side = 6, 1, side
        self.images = torch.empty(0, 3, side, side, dtype=torch.uint8)

    def render(self, count: int, rng: torch.Generator) -> Tensor:
        coarse = torch.rand(count, 3, 8, 8, generator=rng)
        faces = torch.nn.functional.interpolate(coarse, (self.side, self.side), mode="bicubic")
        return (faces.clamp(0, 1) * 255).to(torch.uint8)


def small_model() -> LatentDiffusion:
    torch.manual_seed(0)
    return LatentDiffusion(build(SMALL_UNET), build(SMALL_AUTOENCODER), OWN_SCHEDULE)


def descend(objective: Objective, steps: int, rate: float) -> list[dict[str, float]]:
    parameters = [p for module in objective.modules().values() for p in module.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(parameters, rate)
    history = []
    for step in range(steps):
        losses = objective.losses(step_generator(1, step), step)
        assert all(torch.isfinite(loss) for loss in losses.values()), losses
        optimiser.zero_grad()
        torch.stack([loss for name, loss in losses.items() if not name.startswith("_")]).sum().backward()
        optimiser.step()
        history.append({name: float(loss.detach()) for name, loss in losses.items()})
    return history


def test_the_autoencoder_learns_to_reconstruct_and_to_repeat_itself():
    torch.manual_seed(0)
    features = MobileNetV2Features().requires_grad_(False)
    objective = AutoencoderObjective(small_model(), features, DrawnFaces(), batch=2)
    history = descend(objective, 5, 2e-3)
    assert set(history[0]) == {"pixels", "perceived", "idempotent", "unit", "_psnr"}
    assert history[-1]["pixels"] < history[0]["pixels"]
    assert all(row["idempotent"] > 0 for row in history)
    assert objective.sheet().shape == (4 * SIDE, 3 * SIDE, 3)
    encoder, decoder = objective.model.autoencoder.encoder, objective.model.autoencoder.decoder
    assert encoder.layers[0].weight.grad.any() and decoder.layers[0].weight.grad.any()
    assert all(p.grad is None for p in objective.model.unet.parameters())


def test_mixed_latents_hold_another_picture_in_one_region():
    objective = AutoencoderObjective(small_model(), MobileNetV2Features(), DrawnFaces(), batch=2)
    latents = torch.randn(2, 4, 32, 32)
    mixed = objective._mixed(latents, torch.Generator().manual_seed(1))
    same, other = mixed == latents, (mixed - latents.roll(1, 0)).abs() < 0.6
    assert (same | other).all() and (same == same[:, :1]).all()
    assert all(0.02 < share < 0.98 for share in same.float().mean((1, 2, 3)))


def test_crops_are_used_and_the_costly_loss_is_taken_at_intervals():
    objective = AutoencoderObjective(
        small_model(), MobileNetV2Features().requires_grad_(False), DrawnFaces(), batch=2, crop=32, repeat_every=3
    )
    repeated = [row["idempotent"] for row in descend(objective, 4, 1e-4)]
    assert repeated[0] > 0 and repeated[3] > 0 and repeated[1] == repeated[2] == 0


def test_a_crop_is_a_part_of_its_picture():
    pictures = torch.arange(2 * 40 * 40.0).view(2, 1, 40, 40)
    parts = cropped(pictures, 16, torch.Generator().manual_seed(1))
    assert parts.shape == (2, 1, 16, 16)
    for part, picture in zip(parts, pictures, strict=True):
        y, x = divmod(int(part[0, 0, 0]) % 1600, 40)
        assert y % 8 == x % 8 == 0 and torch.equal(part, picture[:, y : y + 16, x : x + 16])


def test_an_autoencoder_starts_as_means_of_blocks():
    torch.manual_seed(0)
    autoencoder = build(OWN_AUTOENCODER).eval()
    faces = torch.nn.functional.interpolate(torch.rand(2, 3, 4, 4) * 1.6 - 0.8, (64, 64), mode="bilinear")
    plain = torch.nn.functional.interpolate(torch.nn.functional.avg_pool2d(faces, 8), (64, 64))
    with torch.no_grad():
        before = autoencoder(faces).sample
        start_from_block_means(autoencoder)
        after = autoencoder(faces).sample
    assert (after - plain).abs().mean() < 0.15 < (before - plain).abs().mean()


def test_a_pool_of_latents_is_filled_once():
    model, faces = small_model(), DrawnFaces()
    pool, rng = LatentPool(model, faces), torch.Generator().manual_seed(1)
    sizes = []
    for fresh in (1, 1, 1, 1, 0):
        faces.fresh = fresh
        drawn = pool.draw(4, rng)
        sizes.append(len(pool.latents))
        assert drawn.shape == (4, 4, SIDE // 8, SIDE // 8)
        assert all((latent == pool.latents).flatten(1).all(1).any() for latent in drawn)
    assert sizes == [8, 12, 12, 12, 12]  # two per face; the pool keeps six faces
    kept = pool.latents.clone()
    pool.draw(4, rng)
    assert torch.equal(pool.latents, kept)


def test_the_average_forgets_the_random_start():
    objective = NoiseObjective(small_model(), DrawnFaces(), batch=2)
    for value in (1.0, 2.0, 2.0, 2.0, 2.0):
        with torch.no_grad():
            objective.model.unet.conv_in.bias.fill_(value)
        objective.average.update_parameters(objective.model.unet)
    assert objective.average.module.conv_in.bias.mean() > 1.9


def test_the_noise_prediction_learns_and_its_average_ships():
    objective = NoiseObjective(small_model(), DrawnFaces(), batch=4)
    before = [p.clone() for p in objective.average.module.parameters()]
    history = descend(objective, 8, 2e-3)
    assert history[-1]["velocity"] < history[0]["velocity"]
    assert all(p.grad is None for p in objective.model.autoencoder.parameters())
    shipped = objective.deployable()["diffusion-unet"]
    moved = [not torch.equal(a, b) for a, b in zip(before, objective.average.module.parameters(), strict=True)]
    assert any(moved) and shipped.keys() == objective.model.unet.state_dict().keys()
    assert not torch.equal(shipped["conv_in.weight"], objective.model.unet.state_dict()["conv_in.weight"])
    assert objective.sheet().shape == (6 * SIDE, 3 * SIDE, 3)


class DrawnDetail(DetailPool):
    """Random pictures in place of rendered faces."""

    def render(self, count: int, rng: torch.Generator) -> Tensor:
        return torch.rand(count, 3, self.side, self.side, generator=rng) * 2 - 1


def small_sharpening() -> SharpenerObjective:
    model = small_model()
    pool = DrawnDetail(model, load_generator(), load_mapping(), size=3)
    sharpener, judge = Sharpener(SharpenerParams(8, 1)), Discriminator(DiscriminatorParams(64, (4,) * 5))
    features = MobileNetV2Features().requires_grad_(False)
    return SharpenerObjective(model, sharpener, features, judge, pool, batch=4, crop=32)


def test_the_sharpener_learns_detail_and_only_it_is_shipped():
    objective = small_sharpening()
    history = descend(objective, 10, 2e-3)
    assert set(history[0]) == {"pixels", "perceived", "encoded", "fooling", "catching", "_psnr"}
    assert history[-1]["pixels"] < history[0]["pixels"] and history[0]["encoded"] < history[-1]["encoded"]
    assert len(objective.faces.faces) == 3  # one more at every step, up to the limit
    assert all(p.grad is None for p in objective.model.parameters())
    assert objective.deployable().keys() == {"diffusion-sharpener"}
    assert objective.sheet().shape == (2 * 2 * SIDE, 5 * 2 * SIDE, 3)


def test_crops_show_the_same_place_of_original_and_decoded_face():
    objective, rng = small_sharpening(), torch.Generator().manual_seed(3)
    rows = torch.linspace(-1, 1, 2 * SIDE)[None, None, :, None]
    faces = 0.9 * (rows + 0.1 * rows.mT).expand(4, 3, -1, -1)
    objective.model.decode = lambda latents: torch.nn.functional.avg_pool2d(faces, 2)
    wanted, soft = objective._crops(faces, torch.zeros(4, 4, 8, 8), rng)
    assert wanted.shape == (4, 3, 64, 64) and soft.shape == (4, 3, 32, 32)
    torch.testing.assert_close(torch.nn.functional.avg_pool2d(wanted, 2), soft, atol=0.01, rtol=0)
    assert wanted.mean((1, 2, 3)).unique().numel() > 1


def test_a_pool_replaces_its_faces_little_by_little():
    rng = torch.Generator().manual_seed(1)
    faces = FacePool(load_generator(), load_mapping(), size=3, fresh=1)
    drawn = faces.draw(2, rng)
    assert drawn.shape == (2, 3, 256, 256) and drawn.std() > 0.2 and drawn.min() >= -1 and drawn.max() <= 1
    faces.draw(2, rng)
    kept = faces.images.clone()
    faces.draw(2, rng)
    assert len(faces.images) == 3
    assert torch.equal(faces.images[:2], kept[1:]) and not torch.equal(faces.images[2], kept[2])


def test_relighting_is_a_function_of_the_generator():
    faces = torch.rand(3, 3, 8, 8) * 2 - 1
    first, again, other = (relit(faces, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other) and not torch.equal(first, faces)


def test_half_of_the_pictures_are_mirrored():
    pictures = torch.rand(64, 1, 2, 3)
    turned = (mirrored(pictures, torch.Generator().manual_seed(1)) == pictures.flip(3)).flatten(1).all(1)
    kept = (mirrored(pictures, torch.Generator().manual_seed(1)) == pictures).flatten(1).all(1)
    assert (turned ^ kept).all() and 16 < turned.sum() < 48


def test_a_run_of_both_recipes_is_a_model(tmp_path, monkeypatch):
    """The folder of the two runs can be named with --model; the second run takes the first one's autoencoder."""
    monkeypatch.setattr(run, "_pool", lambda request, batch: DrawnFaces(256))
    monkeypatch.setattr(run, "_features", lambda: MobileNetV2Features().requires_grad_(False))
    monkeypatch.setattr(run, "_pace", lambda what, device: (1, 1))
    monkeypatch.setattr(AutoencoderObjective, "sheet", lambda self: None)
    monkeypatch.setattr(NoiseObjective, "sheet", lambda self: None)
    for recipe in ("autoencoder", "diffusion"):
        list(train_command(recipe, Request(tmp_path, steps=1)))
    model = load_model(str(tmp_path))
    assert (model.resolution, model.side, model.channels) == (256, 32, 4)
    files = list(tmp_path.glob("*/*.safetensors"))
    assert len(files) == 2 and 30e6 < sum(file.stat().st_size for file in files) <= 45e6


def test_only_what_draws_its_data_on_the_device_may_leave_the_cpu(tmp_path):
    with pytest.raises(UsageError, match="trained on the CPU only"):
        next(train_command("flow", Request(tmp_path, device="cuda")))
