"""The published networks, filled with drawn values, against what their authors' code computes from the same values."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from conformance_recipe import FOLDER, Layout
from torch import Tensor, nn

from anonface.faces import facexlib_adapter
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
from anonface.models.stylegan2 import StyleGAN2, StyleGAN2Params

# facexlib asks torchvision for an untrained ResNet in the old way.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torchvision.models")


@pytest.fixture(autouse=True)
def clean_memory() -> Iterator[None]:
    with torch.inference_mode():
        yield
    gc.collect()


def layout(name: str) -> Layout:
    if not (FOLDER / f"{name}.json").exists():
        pytest.skip(f"{name}.json is not in {FOLDER}")
    return Layout(name)


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
    return getattr(facexlib_adapter.load(f"facexlib.{module}"), name)(**arguments)


def run_retinaface(network: nn.Module, data: Layout) -> dict[str, Tensor]:
    return dict(zip(("bbox", "conf_softmax", "landmarks"), network(data.input("input") * 50), strict=True))


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
    "facexlib_retinaface_mobile025": Case(
        lambda: facexlib("detection.retinaface", "RetinaFace", network_name="mobile0.25", device="cpu"),
        run_retinaface,
    ),
    "facexlib_retinaface_resnet50": Case(
        lambda: facexlib("detection.retinaface", "RetinaFace", network_name="resnet50", device="cpu"),
        run_retinaface,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_network(name: str) -> None:
    data = layout(name)
    network = CASES[name].build().eval()
    data.fill(network)
    data.check(CASES[name].run(network, data))


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
