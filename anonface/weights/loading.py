"""Files -> named tensors -> modules, loaded strictly; only tensors are read from pickles."""

from __future__ import annotations

import argparse
import hashlib
import inspect
import logging
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from anonface.errors import WeightsError
from anonface.weights.files import cache_dir, digest_of, expected_digest, path, share, stamped, temporary_file
from anonface.weights.manifest import Entry, entry

if TYPE_CHECKING:
    from torch import Tensor, nn

    from anonface.weights.conversion import GraphFile


# A pickle may hold itself; nothing sound nests deeper than this.
_DEPTH = 8
# The names under which published checkpoints wrap their state dict, the better copy (moving average) first.
_WRAPPERS = ("g_ema", "params_ema", "state_dict", "model_state_dict", "params", "model", "net")


def tensors(name: str) -> dict[str, Tensor]:
    """Named tensors of a file, on the CPU, in the dtype they were stored in; converted to safetensors once.

    Raises:
        WeightsError: as :func:`path`, or the file holds no tensors.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file

    row = entry(name)
    source = path(name)
    if row.format == "tensors" and _is_safetensors(source):
        return load_checkpoint(source)
    converted = cache_dir() / "tensors" / f"{name}-{_conversion_key(row)}.safetensors"
    if stamped(converted):
        with suppress(SafetensorError, OSError):
            return load_file(converted)
    state = _convert(row, source)
    try:
        converted.parent.mkdir(parents=True, exist_ok=True)
        with temporary_file(converted) as temporary:
            save_file(state, temporary)
            share(temporary)
            temporary.replace(converted)
        digest_of(converted)
    except (OSError, SafetensorError) as error:  # the latter is what the writer makes of the former
        _note_uncached(converted.parent, str(error))
    return state


_uncached: set[Path] = set()


def _note_uncached(folder: Path, reason: str) -> None:
    """Log once per folder that the conversion is not cached, so the next run repeats it."""
    if folder in _uncached:
        return
    _uncached.add(folder)
    logging.getLogger("anonface").warning(
        "converted weights cannot be kept in %s, and are converted at every start: %s", folder, reason
    )


def graph(name: str) -> GraphFile:
    """Operations and arrays of a TFLite, ONNX or TensorFlow.js file, for ``models.graph.Graph``.

    Raises:
        WeightsError: as :func:`path`, or the file is not of these formats.
    """
    from anonface.weights import conversion

    row = entry(name)
    if row.format == "tflite":
        return conversion.read_tflite(path(name).read_bytes())
    if row.format == "onnx":
        return conversion.read_onnx(path(name).read_bytes())
    if row.format == "tfjs":
        return conversion.read_tfjs(path(row.companion).read_bytes(), path(name).read_bytes())
    raise WeightsError(f"weights {name!r} ({row.file}) are no graph")


def _convert(row: Entry, source: Path) -> dict[str, Tensor]:
    import torch

    from anonface.weights import conversion

    if row.format == "tensors":
        return {key: value.contiguous().clone() for key, value in load_checkpoint(source).items()}
    if row.format == "mobile-stylegan":
        arrays = conversion.mobile_stylegan_tensors(path(row.companion).read_bytes(), source.read_bytes())
    elif row.format == "mapping":
        arrays = conversion.mapping_tensors(path(row.companion).read_bytes(), source.read_bytes())
    elif row.format in ("tflite", "onnx", "tfjs"):
        arrays = graph(row.name).arrays
    else:
        raise WeightsError(f"weights {row.name!r} ({row.file}) hold no named tensors")
    return {key: torch.from_numpy(array.copy()) for key, array in arrays.items()}


def _conversion_key(row: Entry) -> str:
    """Names a conversion by its input and by the code that made it: a newer converter never uses old output."""
    from anonface.weights import conversion

    facts = [expected_digest(row), inspect.getsource(conversion), inspect.getsource(load_checkpoint)]
    facts += [expected_digest(entry(row.companion))] if row.companion else []
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


def load(module: nn.Module, name: str, by: Literal["name", "order"] = "name") -> None:
    """Fill a module from a listed file; see :func:`fit`. Raises WeightsError as :func:`tensors` and :func:`fit`."""
    fit(module, tensors(name), by, source=entry(name).file)


def load_checkpoint(file: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file or torch checkpoint of the user, flat, on the CPU.

    A state dict wrapped as ``g_ema``, ``state_dict``, ``model``, ``params`` and the like is unwrapped, with the tensors
    next to it (``latent_avg`` of pSp, e4e and StyleGAN2) kept under their names; nested dicts are joined with
    dots; a ``module.`` prefix left by DataParallel goes. Anything but tensors is dropped. Pickles are opened for
    tensors alone, plus the one class ``argparse.Namespace`` that pSp and e4e keep their options in.

    Raises:
        WeightsError: unreadable, no such format, no tensors in it, or a pickle that holds other objects.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if _is_safetensors(file):
            return load_file(file)
        state = _flatten(_unwrap(_open_pickle(file)))
    except ValueError as error:
        raise WeightsError(f"{file} is no checkpoint: {error}") from error
    except OSError as error:
        raise WeightsError(f"{file} cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise WeightsError(f"{file} is not a sound safetensors file: {error}") from error
    if not state:
        raise WeightsError(f"{file} holds no tensors")
    return state


def _is_safetensors(file: Path) -> bool:
    """A safetensors file opens with the length of a JSON header, then that header."""
    with file.open("rb") as stream:
        head = stream.read(9)
    return len(head) == 9 and head[8:] == b"{" and int.from_bytes(head[:8], "little") < file.stat().st_size


def _open_pickle(file: Path) -> object:
    import torch

    try:
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice on pickle protocols is not for our users
            return torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # the reader has no list of its errors for hostile bytes
        raise WeightsError(
            f"{file} is not a checkpoint of tensors alone, and is not opened",
            "save its state_dict as safetensors on a machine where you trust the file",
        ) from error


def _unwrap(content: object) -> object:
    for _ in range(_DEPTH):
        if not isinstance(content, Mapping):
            return content
        wrapper = next((key for key in _WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if wrapper is None:
            return _without_prefix(content)
        rest = {key: value for key, value in content.items() if not isinstance(value, Mapping)}
        content = {**_without_prefix(content[wrapper]), **rest}
    raise ValueError("nested too deeply")


def _without_prefix(state: Mapping) -> dict:
    prefixed = state and all(isinstance(key, str) and key.startswith("module.") for key in state)
    return {key.removeprefix("module."): value for key, value in state.items()} if prefixed else dict(state)


def _flatten(content: object, names: tuple[str, ...] = ()) -> dict[str, Tensor]:
    import torch

    if isinstance(content, torch.Tensor):
        return {".".join(names) or "tensor": content.detach()}
    state: dict[str, Tensor] = {}
    if isinstance(content, Mapping):
        if len(names) > _DEPTH:
            raise ValueError("nested too deeply")
        for key, value in content.items():
            state |= _flatten(value, (*names, str(key)))
    return state


def fit(
    module: nn.Module,
    state: Mapping[str, Tensor],
    by: Literal["name", "order"] = "name",
    *,
    source: str = "the checkpoint",
) -> None:
    """Fill a module from named tensors, all or nothing, cast to the module's dtypes.

    Args:
        by: "name" pairs equal names; "order" pairs the n-th tensor with the n-th and checks sizes, as the iFADIT
            authors' own loader does, for files whose names differ. Counters of batch norm may be absent in both.
        source: what the message calls the tensors.

    Raises:
        WeightsError: names missing, unexpected or differently shaped tensors.
    """
    own = module.state_dict()
    if by == "order":
        state = _paired(own, state, source)
    problems = _problems(own, state)
    if problems:
        raise WeightsError(f"{source} does not fit {type(module).__name__}: {'; '.join(problems)}")
    fitting = own | {key: state[key] for key in own if key in state}
    module.load_state_dict(fitting, strict=True)  # copying casts


def _counter(key: str) -> bool:
    return key.endswith("num_batches_tracked")


def _paired(own: Mapping[str, Tensor], state: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    ours = [key for key in own if not _counter(key)]
    theirs = [key for key in state if not _counter(key)]
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=False), 1):
        if own[mine].shape != state[other].shape:
            raise WeightsError(
                f"{source} does not fit by order: tensor {number} is {other} {list(state[other].shape)}, "
                f"wanted is {mine} {list(own[mine].shape)}"
            )
    if len(ours) != len(theirs):
        raise WeightsError(f"{source} does not fit by order: it has {len(theirs)} tensors, wanted are {len(ours)}")
    return {mine: state[other] for mine, other in zip(ours, theirs, strict=True)}


def _problems(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> list[str]:
    shared = [key for key in own if key in state]
    kinds = {
        "missing": [key for key in own if key not in state and not _counter(key)],
        "unexpected": [key for key in state if key not in own and not _counter(key)],
        "of another shape": [
            f"{key} {list(state[key].shape)} instead of {list(own[key].shape)}"
            for key in shared
            if state[key].shape != own[key].shape
        ],
        "of another kind": [
            f"{key} {state[key].dtype} instead of {own[key].dtype}"
            for key in shared
            if state[key].is_floating_point() != own[key].is_floating_point()
        ],
    }
    return [
        f"{len(keys)} {kind}: {', '.join(keys[:3])}{' ...' if len(keys) > 3 else ''}"
        for kind, keys in kinds.items()
        if keys
    ]
