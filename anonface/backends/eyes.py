"""The networks by which a new face is seen while it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from anonface import weights
from anonface.backends.recognizer import Recognizer
from anonface.models.apparent import Apparent
from anonface.models.face_parser import FaceParser
from anonface.models.graph import Graph
from anonface.models.identity import IdentityEncoder

LandmarkNetwork = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Eyes:
    """Frozen networks: who somebody is, to the encoder of codes and to a recognizer; of what sex and age people look;
    where the face lies; what is face.

    ``landmarks`` takes [B, 3, 192, 192] in [0, 1] to 468 points (x, y, z) in pixels, flat.
    """

    encoder: IdentityEncoder
    landmarks: LandmarkNetwork
    parser: FaceParser
    recognizer: Recognizer
    apparent: Apparent


def load_eyes(device: torch.device | str = "cpu") -> Eyes:
    """Those of the listed files.

    Raises:
        WeightsError: a file is missing or wrong.
    """
    encoder, parser = IdentityEncoder(), FaceParser()
    weights.load(encoder, "identity")
    weights.load(parser, "face-parser")
    landmarks, arcface = (Graph(weights.graph(name)) for name in ("landmarks", "arcface-mobile"))
    recognizer, apparent = Recognizer(arcface), Apparent(weights.graph("faceres"))
    for network in (encoder, landmarks, parser, recognizer, apparent):
        network.requires_grad_(False).eval().to(device)
    return Eyes(encoder=encoder, landmarks=landmarks, parser=parser, recognizer=recognizer, apparent=apparent)
