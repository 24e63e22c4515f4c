"""The diffusion backend's own: files in every layout, settings, the region, and what bad folders are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tiny_diffusion import (
    AUTOENCODER,
    SIDE,
    TEXT_UNET,
    UNET,
    VQ,
    drawn,
    drawn_sharpener,
    gaussian_faces,
    gaussian_model,
    random_model,
)

from anonface import weights
from anonface.backends.diffusion import files
from anonface.backends.diffusion.backend import Diffusion, fixed_region
from anonface.backends.diffusion.ddim import Schedule
from anonface.backends.diffusion.files import load_model, renamed
from anonface.backends.registry import build
from anonface.crypto.keys import CONSISTENT_SALT, FaceKey, Key
from anonface.errors import DeviceError, UsageError, WeightsError
from anonface.models.clip_text import CLIPText, CLIPTextParams
from anonface.models.latent_diffusion import FFHQ_SCHEDULE, LatentDiffusion
from anonface.models.segmentation_control import SegmentationControlNet
from anonface.watermark.qim import MOST

TEXT = {
    "hidden_size": 12,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "vocab_size": 6,
    "max_position_embeddings": 7,
    "hidden_act": "quick_gelu",
}
STABLE_SCHEDULE = {
    "_class_name": "PNDMScheduler",
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "num_train_timesteps": 1000,
    "set_alpha_to_one": False,
    "skip_prk_steps": True,
    "steps_offset": 1,
}
CPU = torch.device("cpu")


def face_key(seed: int = 1) -> FaceKey:
    return Key.from_bytes(bytes([seed]) * 31 + b"\xff").face(CONSISTENT_SALT, "diffusion", 0)


def write_json(file: Path, content: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))


@pytest.fixture
def authors(tmp_path: Path) -> Path:
    """A folder laid out as the sign-flip authors', small."""
    drawn({**UNET, "in_channels": 4}).save_pretrained(tmp_path / "unet")
    drawn(VQ, 1).save_pretrained(tmp_path / "vqvae")
    write_json(tmp_path / "scheduler" / "scheduler_config.json", {**FFHQ_SCHEDULE, "clip_sample": True})
    return tmp_path


@pytest.fixture
def stable(tmp_path: Path) -> Path:
    """A folder laid out as Stable Diffusion's, small, with a text encoder and a tokenizer."""
    drawn(TEXT_UNET).save_pretrained(tmp_path / "unet")
    drawn(AUTOENCODER, 1).save_pretrained(tmp_path / "vae")
    write_json(tmp_path / "scheduler" / "scheduler_config.json", STABLE_SCHEDULE)
    write_json(tmp_path / "model_index.json", {"_class_name": "StableDiffusionPipeline"})
    torch.manual_seed(3)
    encoder = CLIPText(CLIPTextParams(**TEXT))
    (tmp_path / "text_encoder").mkdir()
    state = {**encoder.state_dict(), "text_model.embeddings.position_ids": torch.arange(7)[None]}
    save_file(state, tmp_path / "text_encoder" / "model.safetensors")
    write_json(tmp_path / "text_encoder" / "config.json", {**TEXT, "architectures": ["CLIPTextModel"]})
    vocabulary = {"!": 0, "a": 1, "<|startoftext|>": 4, "<|endoftext|>": 5}
    write_json(tmp_path / "tokenizer" / "vocab.json", vocabulary)
    tokenizer = {"bos_token": {"content": "<|startoftext|>"}, "eos_token": "<|endoftext|>", "pad_token": "!"}
    write_json(tmp_path / "tokenizer" / "tokenizer_config.json", tokenizer)
    return tmp_path


def transform_latents(folder: Path, **settings: object) -> torch.Tensor:
    """A face through the backend, as the command line builds it."""
    backend = build("diffusion", CPU, {"model": str(folder), "steps": 3, **settings})
    side = backend.resolutions[0]
    face = torch.linspace(-1, 1, 3 * side * side).view(1, 3, side, side).sin()
    mask = torch.zeros(1, 1, side, side)
    mask[..., side // 4 : -side // 4, side // 4 : -side // 4] = 1
    result = backend.anonymize(face, mask, [face_key()])
    assert result.shape == face.shape and result.min() >= -1 and result.max() <= 1
    assert not torch.allclose(result, backend.anonymize(face, mask, [face_key(2)]))
    return result


def test_a_model_that_continues_clean_surroundings_sees_them_clean_and_leads_back():
    model = random_model()
    model.continues = True
    backend = Diffusion(model, settings={"steps": 5, "iterations": 8})
    own = backend.settings
    assert (own.background, own.spread, own.guidance, own.clear, own.grain) == ("clean", 0.8, 0.4, 50, 0.15)
    published = Diffusion(model, settings={"transform": "sign"}).settings
    assert (published.background, published.spread, published.guidance) == ("trajectory", 1, 0)
    assert (published.clear, published.grain) == (-1, 0)
    seen = []
    predict = model.noise
    model.noise = lambda latents, *rest: seen.append(latents.clone()) or predict(latents, *rest)
    clean = torch.randn(1, 4, SIDE, SIDE, generator=torch.Generator().manual_seed(3))
    cells = backend.cells(torch.ones(1, 1, 4 * SIDE, 4 * SIDE))
    other = backend.transform_latents(clean, cells, [face_key()])
    outside = ~cells.expand_as(clean)
    assert len(seen) == 5 * 9 and all(torch.equal(latents[outside], clean[outside]) for latents in seen[1:])
    assert torch.equal(other[outside], clean[outside]) and not torch.allclose(other, clean, atol=0.1)
    assert (backend.transform_latents(other, cells, [face_key()], back=True) - clean).norm() < 0.01 * (
        other - clean
    ).norm()
    assert (backend.transform_latents(other, cells, [face_key()]) - clean).norm() > 0.1 * (
        other - clean
    ).norm()  # no involution


def test_guidance_goes_on_away_from_perturbed_attention_and_leaves_none_behind():
    model = random_model()
    model.unet.conv_out.weight.data *= 10
    latents = torch.randn(2, 4, SIDE, SIDE, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        plain, one, three = (model.noise(latents, 400, guidance=g) for g in (0.0, 1.0, 3.0))
        assert torch.equal(plain, model.noise(latents, 400))
    away = one - plain
    assert away.norm() > 1e-4 * plain.norm()
    torch.testing.assert_close(three, plain + 3 * away, atol=1e-4, rtol=1e-4)


def test_less_spread_leaves_less_noise_in_the_region_alone():
    model = random_model()
    for parameter in model.unet.conv_out.parameters():
        parameter.data.zero_()  # no noise is ever seen: latents are scaled alone
    clean = torch.randn(1, 4, SIDE, SIDE, generator=torch.Generator().manual_seed(3))
    whole, half = (
        Diffusion(model, settings={"steps": 3, "iterations": 1, "background": "trajectory", "spread": spread})
        for spread in (1.0, 0.5)
    )
    cells = whole.cells(torch.ones(1, 1, 4 * SIDE, 4 * SIDE))
    wide, narrow = (backend.transform_latents(clean, cells, [face_key()]) for backend in (whole, half))
    torch.testing.assert_close(narrow, torch.where(cells, wide / 2, wide))
    torch.testing.assert_close(half.transform_latents(narrow, cells, [face_key()], back=True), clean)


def test_a_sharpened_face_is_shown_at_twice_the_side_and_read_at_either():
    model = random_model()
    model.sharpener = drawn_sharpener()
    backend = Diffusion(model, settings={"steps": 2, "iterations": 1, "settling": 2})
    soft = Diffusion(random_model(), settings=backend.settings.__dict__)
    assert backend.resolutions == (4 * SIDE, 8 * SIDE) and soft.resolutions == (4 * SIDE,)
    assert backend.digest() != soft.digest()
    small, key = gaussian_faces(1), [face_key()]
    large, mask = F.interpolate(small, scale_factor=2), torch.ones(1, 1, 8 * SIDE, 8 * SIDE)
    for sharp, plain in ((backend.anonymize, soft.anonymize), (backend.recover, soft.recover)):
        shown = sharp(large, mask, key)
        assert shown.shape == large.shape and backend.visible(mask).shape == mask.shape
        torch.testing.assert_close(sharp(small, mask[..., ::2, ::2], key), F.avg_pool2d(shown, 2))
        assert (F.avg_pool2d(shown, 2) - plain(small, mask[..., ::2, ::2], key)).abs().mean() > 0.01
    pattern = backend.write_watermark(large, large, large, mask, face_key())
    assert pattern is not None and pattern.any()
    with pytest.raises(ValueError, match="64 or 128 px"):
        backend.anonymize(large[..., :96, :96], mask[..., :96, :96], key)


def test_the_finished_face_settles_on_the_latents_that_were_meant():
    backend = Diffusion(random_model(), settings={"steps": 2, "iterations": 1, "settling": 20})
    face = gaussian_faces(1)
    mask = torch.ones(1, 1, *face.shape[2:])
    render = backend.anonymize(face, mask, [face_key()])
    shown = render + 0.05 * torch.randn(render.shape, generator=torch.Generator().manual_seed(2))
    pattern = backend.write_watermark(shown, face, face, mask, face_key())
    target = backend._walk(face, mask, [face_key()])[1]

    inside = backend.cells(mask).expand_as(target)

    @torch.no_grad()
    def error(picture: torch.Tensor) -> float:
        return float((backend.model.encode(picture) - target)[inside].square().mean())

    assert error(shown + pattern) < 0.65 * error(shown)  # an untrained autoencoder repeats nothing by itself
    again = Diffusion(random_model(), settings=backend.settings.__dict__)  # which has not seen the face
    assert torch.equal(again.write_watermark(shown, face, face, mask, face_key()), pattern)
    assert backend.under({"settling": 0}).write_watermark(shown, face, face, mask, face_key()) is None


def test_a_cleared_face_says_in_its_grain_what_it_does_not_show():
    settings = {"steps": 4, "iterations": 8, "background": "noised", "settling": 0, "clear": 400}
    model = random_model()
    plain, cleared = (Diffusion(model, settings={**settings, "grain": grain}) for grain in (0.0, 0.15))
    face, mask, key = gaussian_faces(1), torch.ones(1, 1, 4 * SIDE, 4 * SIDE), face_key()
    noisy = plain.under({"clear": -1}).anonymize(face, mask, [key])
    shown = plain.anonymize(face, mask, [key])
    inside = cleared.visible(mask).expand_as(face) == 1
    assert (shown - noisy)[inside].abs().mean() > 0.02
    assert plain.write_watermark(shown, face, face, mask, key) is None and plain.corrections == 2

    finished = shown
    for _ in range(cleared.corrections):
        pattern = cleared.write_watermark(finished, face, face, mask, key)
        finished = finished + F.interpolate(pattern, size=4 * SIDE, mode="bilinear")
    cells = cleared.cells(mask)
    target = cleared.transform_latents(model.read(face), cells, [key])
    said = cleared._read(finished, cells) - model.read(finished)
    unsaid = (target - model.read(finished)) * cells
    sayable = cells & (unsaid.abs() < MOST)
    assert sayable.sum() > cells.sum()
    assert (said - unsaid)[sayable].abs().mean() < 0.1 * unsaid[sayable].abs().mean()
    assert not (finished - shown)[cleared.visible(mask).expand_as(face) == 0].any()


def test_faces_under_one_key_settle_each_on_its_own_latents():
    backend = Diffusion(random_model(), settings={"steps": 2, "iterations": 1, "settling": 2})
    faces = gaussian_faces(2)
    masks = torch.ones(2, 1, *faces.shape[2:])
    renders = backend.anonymize(faces, masks, [face_key()] * 2)
    both = [
        backend.write_watermark(renders[i : i + 1], faces[i : i + 1], faces[i : i + 1], masks[:1], face_key())
        for i in (0, 1)
    ]
    alone = Diffusion(random_model(), settings=backend.settings.__dict__)
    assert torch.equal(both[1], alone.write_watermark(renders[1:], faces[1:], faces[1:], masks[:1], face_key()))
    assert not torch.equal(both[0], both[1])


def test_a_narrowed_network_does_what_the_wide_one_does_nearly():
    wide, narrow = (Diffusion(random_model(), settings={"steps": 4, "settling": 4}) for _ in range(2))
    narrow.narrow()
    assert narrow.model.unet.dtype == torch.bfloat16 and narrow.digest() == wide.digest()
    face = gaussian_faces(1)
    mask = torch.ones(1, 1, *face.shape[2:])
    clean, cells = wide.model.encode(face), wide.cells(mask)
    for low, high in (
        [backend.transform_latents(clean, cells, [face_key()]) for backend in (narrow, wide)],
        [backend.write_watermark(face, face, face, mask, face_key()) for backend in (narrow, wide)],
    ):
        assert low.dtype == torch.float32
        assert 0 < (low - high).norm() < 0.1 * (high - clean if high.shape == clean.shape else high).norm()


@pytest.mark.parametrize("faster", [True, False])
def test_only_the_own_model_is_narrowed_and_only_where_that_is_faster(faster, authors, monkeypatch):
    monkeypatch.setattr("anonface.backends.diffusion.backend.multiplies_bfloat16_faster", lambda device: faster)
    own, other = (build("diffusion", CPU, {"model": model}) for model in ("", str(authors)))
    assert own.model.unet.dtype == (torch.bfloat16 if faster else torch.float32)
    assert other.model.unet.dtype == own.model.autoencoder.dtype == torch.float32


@pytest.mark.parametrize("transform", ["mix", "sign"])
def test_the_authors_folder_runs(authors, transform):
    assert load_model(str(authors)).quantised
    transform_latents(authors, transform=transform)
    (authors / "hub").mkdir()
    moved = authors / "hub" / "ffhq-diffusers"
    moved.mkdir()
    for name in ("unet", "vqvae", "scheduler"):
        (authors / name).rename(moved / name)
    transform_latents(authors / "hub", transform=transform)


def test_old_names_of_attention_and_pickled_files_load_alike(authors):
    expected = transform_latents(authors)
    for name in ("unet", "vqvae"):
        file = authors / name / "diffusion_pytorch_model.safetensors"
        state = load_file(file)
        old = {key: value for key, value in state.items() if ".attentions." not in key}
        for key, value in state.items():
            if ".attentions." in key:
                for new, before in (("to_q", "query"), ("to_k", "key"), ("to_v", "value"), ("to_out.0", "proj_attn")):
                    key = key.replace(f".{new}.", f".{before}.")
                old[key] = value
        assert old.keys() != state.keys() and renamed(old).keys() == state.keys()
        file.unlink()
        torch.save(old, file.with_suffix(".bin"))
    assert torch.equal(transform_latents(authors), expected)


def test_a_folder_without_configurations_is_taken_for_the_published_model(authors, monkeypatch):
    expected = transform_latents(authors)
    monkeypatch.setattr(files, "FFHQ_UNET", UNET)
    monkeypatch.setattr(files, "FFHQ_AUTOENCODER", VQ)
    (authors / "unet" / "config.json").unlink()
    write_json(authors / "vqvae" / "config.json", {"_class_name": "VQModel", "ch": 128, "n_embed": 32})
    assert torch.equal(transform_latents(authors), expected)


def test_the_authors_files_of_the_weights_folder_load(authors, monkeypatch, tmp_path):
    expected = transform_latents(authors)
    monkeypatch.setattr(files, "FFHQ_UNET", UNET)
    monkeypatch.setattr(files, "FFHQ_AUTOENCODER", VQ)
    monkeypatch.setenv("ANONFACE_CACHE", str(tmp_path / "cache"))
    own = tmp_path / "own"
    (own / "ffhq-diffusers").mkdir(parents=True)
    for name in ("unet", "vqvae"):
        (authors / name).rename(own / "ffhq-diffusers" / name)
    monkeypatch.setenv("ANONFACE_WEIGHTS", str(own))
    with pytest.raises(WeightsError, match="no sha256 is known"):
        load_model("signflip")
    weights.pull(["signflip-unet", "signflip-vqvae"], accept_unknown=True)
    assert torch.equal(transform_latents(Path("signflip")), expected)


def test_the_controlnet_steers_where_the_folder_holds_one(authors):
    plain = transform_latents(authors)
    torch.manual_seed(5)
    steered = SegmentationControlNet(load_model(str(authors)).unet, drawn(UNET, 7))
    (authors / "segmentation_masks").mkdir()
    torch.save(steered.state_dict(), authors / "segmentation_masks" / "controlnet_epoch_15.pth")
    model = load_model(str(authors))
    assert Diffusion(model).parameters()["control"] is True
    assert not torch.equal(transform_latents(authors), plain)
    assert torch.equal(transform_latents(authors, control=False), plain)
    with pytest.raises(WeightsError, match="ControlNet"):
        Diffusion(random_model()).under({"control": True})


def test_only_networks_that_nothing_else_steers_are_guided(stable):
    assert Diffusion(random_model()).under({"guidance": 1.0}).settings.guidance == 1
    for steered in (Diffusion(load_model(str(stable))), Diffusion(gaussian_model())):
        with pytest.raises(UsageError, match="cannot be guided"):
            steered.under({"guidance": 1.0})


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_stable_diffusion_runs_with_the_empty_prompt(stable, prediction):
    schedule = stable / "scheduler" / "scheduler_config.json"
    write_json(schedule, {**STABLE_SCHEDULE, "prediction_type": prediction})
    model = load_model(str(stable))
    assert model.prompt is not None and model.prompt.shape == (1, 7, 12)
    torch.manual_seed(3)
    encoder = CLIPText(CLIPTextParams(**TEXT)).eval()
    torch.testing.assert_close(model.prompt, encoder(torch.tensor([[4, 5, 0, 0, 0, 0, 0]])))
    transform_latents(stable)


def test_kinds_of_prediction_agree_on_the_noise():
    model = random_model()
    latents, predicted = torch.randn(1, 4, SIDE, SIDE), model.noise
    noise = predicted(latents, 500)
    kept = float(model.diffusion.alphas_cumprod[500])
    clean = (latents - (1 - kept) ** 0.5 * noise) / kept**0.5
    for kind, output in (("sample", clean), ("v_prediction", kept**0.5 * noise - (1 - kept) ** 0.5 * clean)):
        other = LatentDiffusion(model.unet, model.autoencoder, {**FFHQ_SCHEDULE, "prediction_type": kind})
        other.unet = Answering(output)
        torch.testing.assert_close(other.noise(latents, 500), noise, atol=1e-5, rtol=1e-4)


class Answering(torch.nn.Module):
    def __init__(self, answer: torch.Tensor) -> None:
        super().__init__()
        self.sample = answer

    def forward(self, latents: torch.Tensor, step: torch.Tensor) -> Answering:
        return self


def test_without_a_name_it_is_the_model_trained_here():
    model = load_model("")
    assert (model.resolution, model.side, model.channels, model.continues) == (256, 32, 4, True)
    assert model.diffusion.config.prediction_type == "v_prediction" and not model.training


def remove(name):
    return lambda folder: (folder / name).unlink()


def replace_config(part, **changes):
    def change(folder):
        file = folder / part / "config.json"
        write_json(file, {**json.loads(file.read_text()), **changes})

    return change


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "unet").rename(folder / "u"), "has no unet/"),
        (lambda folder: (folder / "vqvae").rename(folder / "v"), "has no vqvae/ or vae/"),
        (remove("unet/diffusion_pytorch_model.safetensors"), "has no diffusion_pytorch_model.safetensors or"),
        (lambda folder: (folder / "unet" / "config.json").write_text("{"), "is no JSON"),
        (lambda folder: (folder / "unet" / "config.json").write_text("[]"), "holds no configuration"),
        (replace_config("unet", _class_name="Flux"), "describes a Flux"),
        (replace_config("unet", block_out_channels=[16]), "describes no network"),
        (replace_config("unet", block_out_channels=[16, 64]), "does not fit UNet2DModel"),
        (lambda folder: drawn({**UNET, "in_channels": 9}).save_pretrained(folder / "unet"), "takes 9 channels"),
        (lambda folder: drawn({**VQ, "out_channels": 1}).save_pretrained(folder / "vqvae"), "not one of RGB"),
        (
            lambda folder: write_json(
                folder / "scheduler" / "scheduler_config.json", {**FFHQ_SCHEDULE, "rescale_betas_zero_snr": True}
            ),
            "pure noise",
        ),
        (
            lambda folder: (folder / "unet" / "diffusion_pytorch_model.safetensors").write_bytes(b"\x80\x04junk"),
            "not a checkpoint of tensors",
        ),
    ],
)
def test_a_wrong_folder_is_told_what_is_wrong(authors, spoil, message):
    load_model(str(authors))
    spoil(authors)
    with pytest.raises(WeightsError, match=message) as caught:
        load_model(str(authors))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("missing", ["tokenizer", "text_encoder", "scheduler"])
def test_a_text_model_needs_all_its_parts(stable, missing):
    (stable / missing).rename(stable / "elsewhere")
    with pytest.raises(WeightsError, match=missing):
        load_model(str(stable))


def test_a_prompt_of_another_width_is_refused(stable):
    replace_config("text_encoder", hidden_size=15)(stable)
    with pytest.raises(WeightsError, match="does not fit CLIPText"):
        load_model(str(stable))


def test_settings_are_checked(authors):
    defaults = Diffusion(random_model()).parameters()
    assert (defaults["steps"], defaults["transform"], defaults["background"]) == (50, "mix", "noised")
    paper = Diffusion(random_model(), settings={"transform": "sign"}).parameters()
    assert (paper["background"], paper["iterations"]) == ("trajectory", 1)
    for settings in (
        {"refine": 3},
        {"steps": 0},
        {"steps": 1001},
        {"steps": "many"},
        {"steps": True},
        {"transform": "rot13"},
        {"background": "none"},
        {"iterations": -1},
        {"first": 1000},
        {"first": 990, "steps": 50},
        {"spread": 0},
        {"spread": "wide"},
        {"guidance": -1.0},
        {"guidance": True},
        {"settling": 101},
        {"clear": 1000},
        {"grain": -0.1},
        {"control": "yes"},
    ):
        with pytest.raises(UsageError):
            build("diffusion", CPU, {"model": str(authors), **settings})
    with pytest.raises(UsageError, match="there is no transform"):
        build("diffusion", CPU, {"model": "nowhere", "transform": "rot13"})  # before any file is looked at


def test_a_model_that_cannot_clear_or_hold_grain_says_so(monkeypatch):
    model = random_model()
    few = LatentDiffusion(model.unet, model.autoencoder, {**FFHQ_SCHEDULE, "num_train_timesteps": 100})
    assert Diffusion(few, settings={"steps": 5, "clear": 99}).settings.clear == 99
    with pytest.raises(UsageError, match="no step 100 to clear"):
        Diffusion(few, settings={"steps": 5, "clear": 100})
    Diffusion(model, settings={"grain": 0.1})
    monkeypatch.setattr(LatentDiffusion, "resolution", 2 * SIDE)
    with pytest.raises(UsageError, match="too fine for grain"):
        Diffusion(model, settings={"grain": 0.1})


def test_a_compiled_network_walks_like_the_plain_one_and_a_missing_compiler_is_named(monkeypatch):
    plain, compiled = (Diffusion(random_model(), settings={"steps": 2, "iterations": 1}) for _ in range(2))
    unet, calls = compiled.model.unet, []
    monkeypatch.setattr(unet, "compile", lambda: calls.append("compiled"))  # the compiler itself takes minutes
    compiled.compile()
    face = gaussian_faces(1)
    mask = torch.ones(1, 1, *face.shape[2:])
    assert calls == ["compiled"]
    assert torch.equal(*(backend.anonymize(face, mask, [face_key()]) for backend in (plain, compiled)))

    def broken(*_, **__):
        raise RuntimeError("no C++ compiler\nand a long story")

    monkeypatch.setattr(unet, "forward", broken)
    with pytest.raises(DeviceError, match=r"cannot be compiled here: no C\+\+ compiler$") as caught:
        compiled.compile()
    assert "--compile" in caught.value.hint


def test_the_region_is_where_aligned_faces_are():
    region = fixed_region(64)
    assert region[30, 32] and region[46, 32] and region[36, 17]
    assert not region[10, 32] and not region[36, 8] and not region[60, 32]
    assert region.flip(1).equal(region)
    share = float(region.float().mean())
    assert share == pytest.approx(float(fixed_region(256).float().mean()), abs=0.01)


def test_intermediate_latents_are_erased(monkeypatch):
    backend = Diffusion(gaussian_model(), settings={"steps": 4})
    kept: list[torch.Tensor] = []

    def keep(*arguments: object, **options: object) -> list[torch.Tensor]:
        kept.extend(trajectory := inverted(*arguments, **options))
        return trajectory

    from anonface.backends.diffusion import backend as diffusion

    inverted = diffusion.invert
    monkeypatch.setattr(diffusion, "invert", keep)
    faces = gaussian_faces(1)
    backend.anonymize(faces, torch.ones(1, 1, 64, 64), [face_key()])
    assert len(kept) == 5 and all(not latents.any() for latents in kept[1:])


def test_the_levels_around_the_region_are_erased_as_well(monkeypatch):
    model = random_model()
    model.continues = True
    backend = Diffusion(model, settings={"steps": 4})
    levels: list[torch.Tensor] = []
    noised = Schedule.noised

    def keep(*arguments: torch.Tensor) -> list[torch.Tensor]:
        levels.extend(made := noised(*arguments))
        return made

    monkeypatch.setattr(Schedule, "noised", keep)
    backend.anonymize(gaussian_faces(1), torch.ones(1, 1, 64, 64), [face_key()])
    assert len(levels) == 5 and levels[0].any() and all(not latents.any() for latents in levels[1:])


def test_other_sizes_and_unequal_numbers_are_refused():
    backend = Diffusion(gaussian_model(), settings={"steps": 2})
    faces, masks = gaussian_faces(2), torch.ones(2, 1, 64, 64)
    with pytest.raises(ValueError, match="64 px"):
        backend.anonymize(faces[..., :32], masks, [face_key(), face_key()])
    with pytest.raises(ValueError, match="1 keys"):
        backend.anonymize(faces, masks, [face_key()])
