"""Further recognizers: networks that embed the aligned face.

They take an FFHQ-aligned crop with its landmarks from :mod:`anonface.evaluation.judges`, and crop it as each network
needs. All distances are Euclidean between embeddings of unit length (0..2), and published thresholds are restated so.

Channels, ranges and crops of the networks from registries are those that recognize best on photos of real people; see
docs/evaluation.md. The others follow their authors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from anonface import weights
from anonface.errors import AnonfaceError, UsageError
from anonface.faces import sface
from anonface.models import facexlib_arcface
from anonface.models.adaface import IR_50, IR_101, AdaFace, AdaFaceParams, Stages
from anonface.models.facenet import FaceNet
from anonface.models.ir_se50 import IRSE50

Pixels = NDArray[np.uint8]
Points = NDArray[np.float64]
Vector = NDArray[np.float64]
Cut = Callable[[Pixels, Points], Pixels]
Run = Callable[[Pixels], Vector]

# MTCNN's box (left, top, width, height) relative to the extent of the 468 points; mean over 174 photos.
MTCNN_BOX = (0.020, -0.130, 0.956, 1.137)
FACENET_SIDE, FACENET_MARGIN = 160, 14  # px; facenet-pytorch's own evaluation on LFW

FACENET_LIMIT = ("1.1 as a squared distance, as in FaceNet's paper", math.sqrt(1.1))
ARCFACE_LIMITS = (("0.8 as 1 - cosine", math.sqrt(2 * 0.8)), ("0.8 as a distance", 0.8))
SFACE_LIMIT = ("OpenCV's own", sface.LIMIT)
ARCFACE_USERS = ("ifadit-official", "dbaf-official")


@dataclass(frozen=True)
class Embedder:
    """A recognizer of aligned faces.

    Attributes:
        name: its name here and in weights.toml.
        cut: from an FFHQ-aligned face, uint8 [256, 256, 3] RGB, and its landmarks [468, 2] in crop pixels, to the
            network's input, uint8 [s, s, 3] RGB.
        run: from that input to an embedding [d].
        limits: published decision thresholds, as (source, Euclidean distance of unit embeddings).
        seen_by_authors_of: backends whose networks their authors trained against this recognizer.
        digest: of the weights.
    """

    name: str
    cut: Cut
    run: Run
    limits: tuple[tuple[str, float], ...] = ()
    seen_by_authors_of: tuple[str, ...] = ()
    digest: str = ""

    def embed(self, crop: Pixels, mesh: Points) -> Vector:
        """The embedding, of unit length, float64 [d]; see ``cut`` for the arguments."""
        embedding = np.asarray(self.run(self.cut(crop, mesh)), dtype=np.float64)
        return embedding / np.linalg.norm(embedding)

    def seen(self, backend: object) -> bool:
        """Whether a loss that trained the networks of that backend used it; no loss of this project did."""
        return backend in self.seen_by_authors_of


# --- Inputs of the networks ------------------------------------------------------------------------------------------


def mtcnn_face(crop: Pixels, mesh: Points) -> Pixels:
    """The input of facenet-pytorch: MTCNN's box with a margin, stretched to 160 px."""
    low, extent = mesh.min(0), np.ptp(mesh, axis=0)
    start, size = low + extent * MTCNN_BOX[:2], extent * MTCNN_BOX[2:]
    margin = size * FACENET_MARGIN / (FACENET_SIDE - FACENET_MARGIN)
    corners = np.concatenate([start - margin / 2, start + size + margin / 2])
    left, top, right, bottom = (round(v) for v in corners.clip(0, crop.shape[0]).tolist())
    face = crop[top:bottom, left:right]
    return np.asarray(cv2.resize(face, (FACENET_SIDE, FACENET_SIDE), interpolation=cv2.INTER_AREA), np.uint8)


# --- Networks --------------------------------------------------------------------------------------------------------


def _in_torch(network: nn.Module, scale: float = 127.5, bgr: bool = False) -> Run:
    """Run a torch network on (pixels - 127.5) / scale."""
    network.eval()

    @torch.inference_mode()
    def run(pixels: Pixels) -> Vector:
        image = torch.from_numpy(np.ascontiguousarray(pixels[..., ::-1] if bgr else pixels))
        x = (image.permute(2, 0, 1)[None].float() - 127.5) / scale
        return np.asarray(network(x)[0].numpy(), np.float64)

    return run


def _edgeface(name: str) -> Run:
    network = sface.read_onnx(name)

    def run(pixels: Pixels) -> Vector:
        network.setInput(cv2.dnn.blobFromImage(pixels, 1 / 127.5, mean=(127.5, 127.5, 127.5)))
        return np.asarray(network.forward()[0], np.float64)

    return run


def _arcface(name: str) -> Run:
    try:
        network = facexlib_arcface.build() if name == "facexlib-arcface" else IRSE50()
    except ImportError as error:
        raise UsageError("facexlib is not installed", "pip install facexlib") from error
    weights.load(network, name)
    return _in_torch(network, bgr=True)  # as the data of its authors


def _adaface(stages: Stages, name: str) -> Run:
    network = AdaFace(AdaFaceParams(stages))
    state = weights.tensors(name)
    # The file is a whole training run; only keys with this prefix belong to the network.
    own = {key.removeprefix("model."): value for key, value in state.items() if not key.startswith("head.")}
    weights.fit(network, own, source=weights.entry(name).file)
    return _in_torch(network, bgr=True)


def _facenet(name: str) -> Run:
    network = FaceNet()
    state = {key: value for key, value in weights.tensors(name).items() if not key.startswith("logits.")}
    weights.fit(network, state, source=weights.entry(name).file)
    return _in_torch(network, scale=128)


# --- The registry ----------------------------------------------------------------------------------------------------

Limits = tuple[tuple[str, float], ...]
# By name: input, how the network is loaded, published thresholds, and the backends whose authors trained against it.
EMBEDDERS: dict[str, tuple[Cut, Callable[[str], Run], Limits, tuple[str, ...]]] = {
    "sface": (sface.five_point_face, sface.network, (SFACE_LIMIT,), ()),
    "edgeface": (sface.five_point_face, _edgeface, (), ()),
    "ir-se50": (sface.five_point_face, _arcface, ARCFACE_LIMITS, ARCFACE_USERS),
    "facexlib-arcface": (sface.five_point_face, _arcface, ARCFACE_LIMITS, ARCFACE_USERS),
    "adaface": (sface.five_point_face, partial(_adaface, IR_101), (), ()),
    "adaface-ir50": (sface.five_point_face, partial(_adaface, IR_50), (), ()),
    "facenet": (mtcnn_face, _facenet, (FACENET_LIMIT,), ()),
}


def load(name: str) -> Embedder:
    """The recognizer of that name.

    Raises:
        WeightsError: its weights cannot be had.
        UsageError: a library cannot read them.
    """
    cut, make, limits, users = EMBEDDERS[name]
    return Embedder(name, cut, make(name), limits, users, weights.digest(name)[:16])


def available(names: Sequence[str]) -> tuple[list[Embedder], list[str]]:
    """The named recognizers whose weights are available, and the names of the others.

    A file that is there and cannot be used is named with the reason.
    """
    found, absent = [], []
    for name in names:
        try:
            found.append(load(name))
        except AnonfaceError as error:
            missing = weights.status([name])[0].state == "missing"
            absent.append(name if missing else f"{name} ({error})")
    return found, absent
