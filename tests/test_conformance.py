"""The published networks, filled with drawn values, against what their authors' code computes from the same values."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256

import pytest
import torch
from conformance_recipe import FOLDER, Layout
from torch import Tensor, nn

from anonface import torchvision_adapter
from anonface.backends.diffusion.ddim import Predictor, Schedule, denoise, invert
from anonface.crypto.keyed_noise import signs_of_seed
from anonface.models import bisenet_resnet34, latent_diffusion
from anonface.models.adaface import IR_50, AdaFace, AdaFaceParams
from anonface.models.dbaf_official import OfficialDBAF
from anonface.models.facenet import FaceNet
from anonface.models.ifadit_official import (
    IdentityCompensation,
    IdentityEncoder,
    IdentityFlow,
    IdentityFlowParams,
    LatentMapper,
    OfficialIFADIT,
    composite,
)
from anonface.models.psp import PSp
from anonface.models.segmentation_control import SegmentationControlNet
from anonface.models.stylegan2 import StyleGAN2, StyleGAN2Params

# facexlib asks torchvision for an untrained ResNet in the old way.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torchvision.models")


@pytest.fixture(autouse=True)
def clean_memory() -> Iterator[None]:
    with torch.inference_mode():
        yield
    gc.collect()


def layout(name: str) -> Layout:
    """One of the package's own files must be there; another folder may hold some of them."""
    if os.environ.get("ANONFACE_CONFORMANCE") and not (FOLDER / f"{name}.json").exists():
        pytest.skip(f"{name}.json is not in {FOLDER}")
    return Layout(name)


def test_a_file_that_is_missing_is_a_failure_unless_the_folder_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, outcome in ((None, FileNotFoundError), ("/elsewhere", pytest.skip.Exception)):
        with monkeypatch.context() as patch:
            patch.delenv("ANONFACE_CONFORMANCE", raising=False)
            if folder:
                patch.setenv("ANONFACE_CONFORMANCE", folder)
            with pytest.raises((FileNotFoundError, pytest.skip.Exception)) as caught:
                layout("no_such_network")
        assert caught.type is outcome


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    run: Callable[[nn.Module, Layout], dict[str, Tensor]]


def run_flow(flow: nn.Module, data: Layout) -> dict[str, Tensor]:
    assert isinstance(flow, IdentityFlow)
    identity, key = data.input("input"), data.input("input.cond")
    identity = identity / identity.norm(dim=1, keepdim=True)
    forward, log_forward = flow(identity, key)
    reverse, log_reverse = flow.inverse(identity, key)
    back, _ = flow.inverse(forward, key)
    assert (back - identity).norm() < 1e-3 * identity.norm()
    return {
        "forward": forward,
        "log_jac_forward": log_forward,
        "reverse": reverse,
        "log_jac_reverse": log_reverse,
    }


def run_generator(generator: nn.Module, data: Layout) -> dict[str, Tensor]:
    assert isinstance(generator, StyleGAN2)
    size = generator.params.size
    styles = generator.mapping(data.input("input.z"))
    outputs = {"image": generator.synthesize(data.input("input"), size), "style_of_z": styles}
    if "image_from_z_trunc0.7" in data.data["outputs"]:
        truncated = torch.lerp(styles.mean(0), styles[0], 0.7).expand(1, generator.n_latents, -1)
        outputs["image_from_z_trunc0.7"] = generator.synthesize(truncated, size)
    if "style_of_password" in data.data["outputs"]:
        outputs["style_of_password"] = generator.mapping((data.input("input.password") + 1) / 2)
    return outputs


def run_inversion(network: nn.Module, data: Layout) -> dict[str, Tensor]:
    assert isinstance(network, PSp)
    faces = data.input("input") * 2 - 1
    latent_avg = data.input("latent_avg") * 0.1
    codes = network.encode(faces)
    moved = codes + latent_avg
    return {
        "encoder_codes": codes,
        "codes_plus_avg": moved,
        "image_resized256_fixed_noise": network.decoder.synthesize(moved, 256),
    }


def facexlib(module: str, name: str, **arguments: object) -> nn.Module:
    return getattr(torchvision_adapter.load(f"facexlib.{module}"), name)(**arguments)


def run_retinaface(network: nn.Module, data: Layout) -> dict[str, Tensor]:
    return dict(zip(("bbox", "conf_softmax", "landmarks"), network(data.input("input") * 50), strict=True))


def run_unet(network: nn.Module, data: Layout) -> dict[str, Tensor]:
    latents = data.input("input")
    return {f"sample_t{t}": network(latents, torch.tensor(t)).sample for t in (1, 501, 981)}


CASES = {
    "ifadit_id_encoder": Case(IdentityEncoder, lambda net, data: {"extract_feats": net(data.input("input") * 2 - 1)}),
    "ifadit_attr_encoder": Case(PSp, lambda net, data: {"codes": net.get_submodule("encoder")(data.input("input"))}),
    "ifadit_mlp": Case(LatentMapper, lambda net, data: {"out": net(data.input("input"))}),
    "ifadit_icl": Case(IdentityCompensation, lambda net, data: {"out": net(data.input("input"))}),
    "ifadit_inn": Case(IdentityFlow, run_flow),
    "ifadit_inn_freia02": Case(lambda: IdentityFlow(IdentityFlowParams(matrices=True, halved=False)), run_flow),
    "ifadit_generator": Case(StyleGAN2, run_generator),
    "stylegan2_rosinality_256": Case(StyleGAN2, run_generator),
    "stylegan2_rosinality_1024": Case(lambda: StyleGAN2(StyleGAN2Params(size=1024)), run_generator),
    "psp_ffhq_1024": Case(lambda: PSp(StyleGAN2Params(size=1024)), run_inversion),
    "e4e_ffhq_256": Case(lambda: PSp(offsets=True), run_inversion),
    "e4e_ffhq_1024": Case(lambda: PSp(StyleGAN2Params(size=1024), offsets=True), run_inversion),
    "facenet": Case(FaceNet, lambda net, data: {"embedding": net(data.input("input"))}),
    "adaface_ir50": Case(
        lambda: AdaFace(AdaFaceParams(IR_50)), lambda net, data: {"embedding": net(data.input("input"))}
    ),
    "facexlib_arcface": Case(
        lambda: facexlib("recognition.arcface_arch", "Backbone", num_layers=50, drop_ratio=0.6, mode="ir_se"),
        lambda net, data: {"embedding": net(data.input("input"))},
    ),
    "facexlib_bisenet": Case(
        lambda: facexlib("parsing.bisenet", "BiSeNet", num_class=19),
        lambda net, data: dict(zip(("out0", "out1", "out2"), net(data.input("input")), strict=True)),
    ),
    "bisenet_zllrunning": Case(
        lambda: facexlib("parsing.bisenet", "BiSeNet", num_class=19),
        lambda net, data: dict(zip(("logits", "logits16", "logits32"), net(data.input("input")), strict=True)),
    ),
    "facexlib_parsenet": Case(
        lambda: facexlib("parsing.parsenet", "ParseNet", in_size=512, out_size=512, parsing_ch=19),
        lambda net, data: dict(zip(("mask_logits", "image"), net(data.input("input")), strict=True)),
    ),
    "signflip_unet": Case(lambda: latent_diffusion.build(latent_diffusion.FFHQ_UNET), run_unet),
    "facexlib_retinaface_mobile025": Case(
        lambda: facexlib("detection.retinaface", "RetinaFace", network_name="mobile0.25", device="cpu"),
        run_retinaface,
    ),
    "facexlib_retinaface_resnet50": Case(
        lambda: facexlib("detection.retinaface", "RetinaFace", network_name="resnet50", device="cpu"),
        run_retinaface,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_network(name: str) -> None:
    data = layout(name)
    network = CASES[name].build().eval()
    data.fill(network)
    data.check(CASES[name].run(network, data))


@pytest.mark.slow
def test_ifadit_pipeline() -> None:
    data = layout("ifadit_pipeline")
    ifadit = OfficialIFADIT().eval()
    for network, name, prefix in (
        (ifadit.identity_encoder, "ifadit_id_encoder", ""),
        (ifadit.attribute_encoder, "ifadit_attr_encoder", "encoder."),
        (ifadit.mapper, "ifadit_mlp", ""),
        (ifadit.flow, "ifadit_inn", ""),
        (ifadit.compensation, "ifadit_icl", ""),
        (ifadit.generator, "ifadit_generator", ""),
    ):
        layout(name).fill(network, prefix=prefix)

    image = data.input("input")
    key = ifadit.key_code(data.input("input.password"))
    identity, attributes = ifadit.identity(image), ifadit.attributes(image)
    other, _ = ifadit.flow(identity, key)
    anonymous = ifadit.anonymize(image, key)
    seen = (anonymous + 1) / 2
    compensated = ifadit.compensation(ifadit.identity(seen))
    recovered, _ = ifadit.flow.inverse(compensated, key)
    cells = (data.input("input.mask") < 0.5).float()
    mask = cells.repeat_interleave(16, dim=2).repeat_interleave(16, dim=3)
    data.check(
        {
            "password_w": key,
            "id_before": identity,
            "id_anonymous": other,
            "attr": attributes,
            "w_anonymous": ifadit.styles(other, attributes),
            "image_anonymous": anonymous,
            "masked_composite_anonymous": composite(seen, image, mask),
            "id_before_recover_after_icl": compensated,
            "id_recovered": recovered,
            "w_recovered": ifadit.styles(recovered, ifadit.attributes(seen)),
            "image_recovered": ifadit.recover(seen, key),
        }
    )


@pytest.mark.slow
def test_dbaf() -> None:
    """The four files of one pipeline: the encoder is that of e4e, the generator the fine-tuned one."""
    parts = layout("dbaf_disentangle"), layout("dbaf_attr_block"), layout("dbaf_anonymizer"), layout("dbaf_pipeline")
    encoder, (split, attributes, anonymizer, whole) = layout("e4e_ffhq_256"), parts
    dbaf = OfficialDBAF().eval()
    split.fill(dbaf.disentangler)
    attributes.fill(dbaf.attributes)
    anonymizer.fill(dbaf.anonymizer)
    encoder.fill(dbaf.encoder, prefix="encoder.")
    whole.data["code_buffers"] = encoder.data["code_buffers"]
    whole.buffers = {name.removeprefix("decoder."): value for name, value in encoder.buffers.items()}
    whole.fill(dbaf.generator, "decoder_state")
    dbaf.key_mapping = dbaf.generator.style
    dbaf.latent_avg.copy_(split.input("latent_avg") * 0.1)

    image = split.input("input") * 2 - 1
    features = dbaf.encoder.features(image)
    codes = dbaf.encoder.read(features) + dbaf.latent_avg
    kept = dbaf.disentangler(codes)
    split.data["inputs"] += split.data["given_codes_inputs"]
    given = split.input("input.codes")
    split.check(
        {
            "origin_codes": codes,
            "id_codes": kept,
            "id_codes_of_given_codes_batch2": dbaf.disentangler(given),
            "id_codes_of_given_codes_row0_alone": dbaf.disentangler(given[:1]),
        }
    )
    maps = dbaf.attributes(features)
    names = ("c3", "c2", "c1", "attr3", "attr2", "attr1")
    attributes.check(dict(zip(names, (*features, *maps), strict=True)))
    key = dbaf.key_code(split.input("input.z")[None])
    mapped = dbaf.anonymizer(codes - kept, key)
    anonymizer.check({"password_w": key, "mapper_out": mapped, "w_final": mapped + kept})
    whole.check({"image": dbaf(image, key)})


def blocks(uniform: Tensor, size: int) -> Tensor:
    """Cells below one half as ones, each ``size`` px wide."""
    return (uniform < 0.5).float().repeat_interleave(size, 2).repeat_interleave(size, 3)


def close(got: Tensor, entry: dict, share: float) -> None:
    """At least that share of the sampled places agrees: where two codes nearly tie, either may be taken."""
    assert list(got.shape) == entry["shape"]
    sampled = got.double().reshape(-1)[torch.tensor(entry["idx"])]
    off = (sampled - torch.tensor(entry["val"]).double()).abs()
    assert (off <= 1e-3 * entry["std"]).double().mean() >= share


@pytest.mark.slow
def test_signflip_vqmodel() -> None:
    data = layout("signflip_vqmodel")
    model = latent_diffusion.LatentDiffusion(
        latent_diffusion.build({**latent_diffusion.FFHQ_UNET, "block_out_channels": [32] * 4}),
        latent_diffusion.build(latent_diffusion.FFHQ_AUTOENCODER),
        latent_diffusion.FFHQ_SCHEDULE,
    ).eval()
    data.fill(model.autoencoder)
    expected, latents = data.data["outputs"], data.input("input.z")
    encoded = model.encode(data.input("input") * 2 - 1)
    exact = {"encode_latents", "decode_sample_not_quantised"}
    outputs = {
        "encode_latents": encoded,
        "decode_sample_not_quantised": model.autoencoder.decode(latents, force_not_quantize=True).sample,
    }
    data.data["exact"] = {name: expected[name] for name in exact}
    data.check(outputs, "exact")
    close(model.decode(latents), expected["decode_sample"], 0.9)
    close(model.autoencoder.quantize(latents)[2][2], expected["codebook_indices"], 0.9)


def test_signflip_parser() -> None:
    data = layout("signflip_bisenet_resnet34")
    network = bisenet_resnet34.BiSeNetResNet34().eval()
    data.fill(network)
    logits = network(bisenet_resnet34.prepare(data.input("input")))
    expected = data.data["outputs"]
    data.data["exact"] = {name: expected[name] for name in ("logits", "logits16", "logits32")}
    data.check(dict(zip(data.data["exact"], logits, strict=True)), "exact")
    close(logits[0].argmax(1), expected["argmax"], 0.9)
    face = bisenet_resnet34.coverage(bisenet_resnet34.face_classes(logits[0]), 64)
    close(face.expand(-1, 3, -1, -1), expected["face_mask64"], 0.9)


@pytest.mark.slow
def test_signflip_controlnet() -> None:
    data = layout("signflip_controlnet")
    network = SegmentationControlNet(
        latent_diffusion.build(latent_diffusion.FFHQ_UNET), latent_diffusion.build(latent_diffusion.FFHQ_UNET)
    ).eval()
    inner = layout("signflip_unet").data["state"]
    for prefix in ("control_copy_unet.", "trained_unet."):
        data.data["state"] = [[prefix + row[0], *row[1:]] for row in inner] + data.data["state"]
    assert len(network.state_dict()) == data.data["n_total_keys"] == len(data.data["state"])
    data.fill(network)
    hint = network.hint(blocks(data.input("input.hint"), 16).expand(-1, 3, -1, -1))
    data.check({"hint_embedding": hint, "noise_pred": network(data.input("input"), torch.tensor(501), hint)})


def test_signflip_keys_and_mask() -> None:
    data = layout("signflip_keys_mask")
    for name, drawn in data.data["keys"].items():
        if not name.startswith("key_seed_"):
            continue
        keys = signs_of_seed(int(name.removeprefix("key_seed_")), len(drawn["derived_seeds"]), (3, 64, 64))
        assert keys.flatten(1)[:, :64].tolist() == drawn["first64"]
        assert sha256(keys.to(torch.int8).numpy().tobytes()).hexdigest() == drawn["sha256_int8"]
    mask = blocks(data.input("input.mask"), 16).roll((3, 5), (2, 3))
    outputs = {"image_256to512_normalised": bisenet_resnet34.prepare(data.input("input"))}
    for antialias in (True, False):
        part = bisenet_resnet34.coverage(mask, 64, antialias)
        outputs[f"resize512to64_antialias_{antialias}"] = part
        outputs[f"binary512to64_antialias_{antialias}"] = (part > 0).float()
        whole = (bisenet_resnet34.coverage(mask, 256, antialias) > 0).float()
        outputs[f"binary512to256_antialias_{antialias}"] = whole
    data.check(outputs)


def small_model(data: Layout) -> latent_diffusion.LatentDiffusion:
    config = data.data["config"]
    model = latent_diffusion.LatentDiffusion(
        latent_diffusion.build({"_class_name": "UNet2DModel", **config["unet"]}),
        latent_diffusion.build({"_class_name": "VQModel", **config["vqmodel"]}),
        config["scheduler"],
    ).eval()
    data.fill(model.unet, "unet_state")
    data.fill(model.autoencoder, "vqmodel_state")
    return model


def test_signflip_loop() -> None:
    data = layout("signflip_loop")
    model = small_model(data)
    image = data.input("input") * 2 - 1
    key = (data.input("input.key") < 0.5).float() * 2 - 1
    mask = blocks(data.input("input.mask"), 8).bool()
    schedule = Schedule.of(model.diffusion, 50)
    assert list(schedule.timesteps) == data.data["timesteps_inversion_50"]
    assert schedule.kept[0] == data.data["final_alpha_cumprod"]

    def analytic(latents: Tensor, timestep: int) -> Tensor:
        kept = model.diffusion.alphas_cumprod[timestep]
        return (1 - kept).sqrt() * latents + 0.1 * torch.tanh(latents.roll(1, -1) + timestep / 1000)

    def turned(clean: Tensor, predict: Predictor, schedule: Schedule) -> tuple[list[Tensor], Tensor, Tensor]:
        trajectory = invert(clean, predict, schedule)
        noise = torch.where(mask, key * trajectory[-1], trajectory[-1])
        return trajectory, noise, denoise(noise, predict, schedule, mask, trajectory)

    clean = model.encode(image)
    few, few_noise, few_clean = turned(clean, model.noise, Schedule.of(model.diffusion, 4))
    many, noise, other = turned(clean, analytic, schedule)
    anonymous = model.decode(other)
    outputs = {
        "A.z0": clean,
        "A.z_list_1": few[1],
        "A.z_list_2": few[2],
        "A.zT": few[-1],
        "A.zT_anonymous": few_noise,
        "A.z0_anonymous": few_clean,
        "B.z_list_1": many[1],
        "B.z_list_25": many[25],
        "B.zT": many[-1],
        "B.zT_anonymous": noise,
        "B.z0_anonymous": other,
        "B.z0_recovered_latent_level": turned(other, analytic, schedule)[2],
    }
    expected = data.data["outputs"]
    data.data["exact"] = {name: expected[name] for name in outputs}
    data.check(outputs, "exact")
    close(anonymous, expected["B.image_anonymous"], 0.9)
    seen = model.encode(anonymous)
    close(seen, expected["B.latent_of_image_anonymous"], 0.9)
    close(model.decode(turned(seen, analytic, schedule)[2]), expected["B.image_recovered"], 0.9)
