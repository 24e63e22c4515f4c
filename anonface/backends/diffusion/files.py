"""Latent diffusion models out of files: folders as diffusers writes them, a training run's, and those of weights.toml.

Configurations are JSON, tensors go through ``weights``: nothing is unpickled but tensors, and every network must be
filled to the last one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anonface import weights
from anonface.errors import WeightsError
from anonface.models.clip_text import CLIPText, CLIPTextParams
from anonface.models.latent_diffusion import (
    AUTOENCODERS,
    FFHQ_AUTOENCODER,
    FFHQ_SCHEDULE,
    FFHQ_UNET,
    OWN_AUTOENCODER,
    OWN_SCHEDULE,
    OWN_UNET,
    UNETS,
    Config,
    LatentDiffusion,
    build,
)
from anonface.models.segmentation_control import SegmentationControlNet
from anonface.models.sharpener import Sharpener

AUTHORS = "signflip"  # the name that asks for the sign-flip authors' files as weights.toml knows them
OWN_FILES = ("diffusion-autoencoder", "diffusion-unet")
SHARPENER = "diffusion-sharpener"
CONTROL_FILE = "controlnet_epoch_15.pth"
TENSOR_FILES = ("diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.bin")
TEXT_FILES = ("model.safetensors", "pytorch_model.bin")
LAYOUT_HINT = "a diffusers folder holds unet/, vqvae/ or vae/, scheduler/; for text also text_encoder/ and tokenizer/"

# Files written by diffusers before 0.12 name the projections of attention so.
_OLD_ATTENTION = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
_OLD_NAME = re.compile(r"(\battentions\.\d+)\.(query|key|value|proj_attn)\.")


def load_model(name: str) -> LatentDiffusion:
    """A model, frozen, on the CPU in float32.

    Args:
        name: a folder, :data:`AUTHORS`, or nothing for the model trained here.

    Raises:
        WeightsError: it is not there, or is not such a model; the message names the file.
    """
    if not name:
        model = _own()
    elif name == AUTHORS:
        model = _authors()
    else:
        model = _of_folder(Path(name).expanduser())
    return model.requires_grad_(False).eval()


def _own() -> LatentDiffusion:
    return _of_own_kind(*(weights.tensors(name) for name in (*OWN_FILES, SHARPENER)))


def _of_own_kind(
    autoencoder: Mapping[str, Tensor], unet: Mapping[str, Tensor], detail: Mapping[str, Tensor] | None = None
) -> LatentDiffusion:
    parts = _filled(OWN_UNET, unet), _filled(OWN_AUTOENCODER, autoencoder)
    sharpener = None
    if detail is not None:
        sharpener = Sharpener()
        weights.fit(sharpener, detail, source=SHARPENER)
    model = LatentDiffusion(*parts, OWN_SCHEDULE, continues=True, sharpener=sharpener)
    # a fifth faster on a CPU
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _authors() -> LatentDiffusion:
    unet = _filled(FFHQ_UNET, weights.tensors("signflip-unet"), "signflip-unet")
    autoencoder = _filled(FFHQ_AUTOENCODER, weights.tensors("signflip-vqvae"), "signflip-vqvae")
    state = weights.status(["signflip-controlnet"])[0].state
    control = weights.path("signflip-controlnet") if state == "ready" else None
    return _assembled(unet, autoencoder, FFHQ_SCHEDULE, control=control)


def _of_folder(folder: Path) -> LatentDiffusion:
    if not folder.is_dir():
        raise WeightsError(f"there is no folder {folder}", LAYOUT_HINT)
    if run := run_files(folder):
        autoencoder, unet = (weights.load_checkpoint(file) for file in run)
        sharpener = folder / "sharpener" / f"{SHARPENER}.safetensors"
        return _of_own_kind(autoencoder, unet, weights.load_checkpoint(sharpener) if sharpener.is_file() else None)
    root = folder / "ffhq-diffusers" if (folder / "ffhq-diffusers").is_dir() else folder
    unet = _network(root, ("unet",), UNETS, FFHQ_UNET)
    autoencoder = _network(root, ("vqvae", "vae"), AUTOENCODERS, FFHQ_AUTOENCODER)
    scheduler = root / "scheduler" / "scheduler_config.json"
    text = hasattr(unet.config, "cross_attention_dim")
    if text and not scheduler.is_file():
        raise WeightsError(f"{root} has no scheduler/{scheduler.name}", LAYOUT_HINT)
    schedule = _json(scheduler) if scheduler.is_file() else FFHQ_SCHEDULE
    places = (folder / "segmentation_masks" / CONTROL_FILE, folder / CONTROL_FILE)
    control = next((place for place in places if place.is_file()), None)
    return _assembled(unet, autoencoder, schedule, _empty_prompt(root) if text else None, control, str(root))


def run_files(folder: Path) -> tuple[Path, Path] | None:
    """Autoencoder and UNet that ``anonface train`` left in a folder; None unless both are there."""
    files = (
        folder / "autoencoder" / f"{OWN_FILES[0]}.safetensors",
        folder / "diffusion" / f"{OWN_FILES[1]}.safetensors",
    )
    return files if all(file.is_file() for file in files) else None


def _assembled(
    unet: Any,
    autoencoder: Any,
    schedule: Config,
    prompt: Tensor | None = None,
    control: Path | None = None,
    source: str = "the model",
) -> LatentDiffusion:
    steered = None
    if control is not None:
        steered = SegmentationControlNet(unet, build(unet.config))
        weights.fit(steered, renamed(weights.load_checkpoint(control)), source=control.name)
    try:
        return LatentDiffusion(unet, autoencoder, schedule, prompt, steered)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise WeightsError(f"{source} is no model that can be used: {error}", LAYOUT_HINT) from error


def _network(root: Path, names: Sequence[str], classes: Sequence[str], known: Config) -> Any:
    """A network out of a diffusers folder; ``known`` are its sizes where no file tells them."""
    folder = next((root / name for name in names if (root / name).is_dir()), None)
    if folder is None:
        raise WeightsError(f"{root} has no {' or '.join(f'{name}/' for name in names)}", LAYOUT_HINT)
    file = _one_of(folder, TENSOR_FILES)
    state = weights.load_checkpoint(file)
    place = folder / "config.json"
    if not place.is_file():
        return _filled(known, state, str(file))
    config = _json(place)
    if config.get("_class_name") not in classes:
        raise WeightsError(f"{place} describes a {config.get('_class_name')}, wanted is {' or '.join(classes)}")
    try:
        return _filled(config, state, str(file))
    except WeightsError:
        # The first releases of diffusers wrote other fields, which say nothing to today's.
        if config["_class_name"] != known["_class_name"]:
            raise
        try:
            return _filled(known, state, str(file))
        except WeightsError:
            pass
        raise


def _filled(config: Config, state: Mapping[str, Tensor], source: str = "the checkpoint") -> Any:
    try:
        network = build(config)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, ZeroDivisionError) as error:
        raise WeightsError(f"the configuration of {source} describes no network: {error}") from error
    weights.fit(network, renamed(state), source=source)
    return network


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict under today's names of attention, whatever release of diffusers wrote it."""
    return {_OLD_NAME.sub(lambda m: f"{m[1]}.{_OLD_ATTENTION[m[2]]}.", name): value for name, value in state.items()}


def _empty_prompt(root: Path) -> Tensor:
    """The embedding of the empty prompt [1, L, D]: start, end, and padding up to the text encoder's length."""
    for name in ("text_encoder", "tokenizer"):
        if not (root / name).is_dir():
            raise WeightsError(f"{root} has no {name}/, and its UNet wants a prompt", LAYOUT_HINT)
    config, tokenizer = root / "text_encoder" / "config.json", root / "tokenizer" / "tokenizer_config.json"
    file = _one_of(root / "text_encoder", TEXT_FILES)
    try:
        encoder = CLIPText(CLIPTextParams.of(_json(config)))
        vocabulary, special = _json(root / "tokenizer" / "vocab.json"), _json(tokenizer)
        start, end, pad = (vocabulary[_token(special[f"{name}_token"])] for name in ("bos", "eos", "pad"))
        length = encoder.params.max_position_embeddings
        tokens = torch.tensor([[start, end] + [pad] * (length - 2)])
    except (ValueError, TypeError, KeyError) as error:
        raise WeightsError(f"the text encoder in {root} is none that can be used: {error}", LAYOUT_HINT) from error
    state = weights.load_checkpoint(file)
    # Some releases leave the prefix out, and old ones list the numbers 0 to 76 beside the weights.
    state = {name if name.startswith("text_model.") else f"text_model.{name}": value for name, value in state.items()}
    state.pop("text_model.embeddings.position_ids", None)
    weights.fit(encoder, state, source=str(file))
    with torch.inference_mode():
        return encoder.eval()(tokens).clone()


def _token(entry: str | Mapping[str, str]) -> str:
    return entry if isinstance(entry, str) else entry["content"]


def _one_of(folder: Path, names: Sequence[str]) -> Path:
    file = next((folder / name for name in names if (folder / name).is_file()), None)
    if file is None:
        raise WeightsError(f"{folder} has no {' or '.join(names)}", LAYOUT_HINT)
    return file


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise WeightsError(f"{file} cannot be read: {error.strerror}", LAYOUT_HINT) from error
    except ValueError as error:
        raise WeightsError(f"{file} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{file} holds no configuration")
    return content
