"""An engine without networks, for the rooms above the pipeline: faces are painted over with the key's stream."""

from __future__ import annotations

import numpy as np

from anonface.container import FaceEntry, Header
from anonface.errors import ContainerError, NoFaceError
from anonface.keys import CONSISTENT_SALT, Key, fresh_salt
from anonface.pipeline import Anonymized, FaceReport, Recovered, choose_device

SIDE = 16


class FakeEngine:
    """One face in the top left corner, none in a black photo. XOR with the key's stream hides it and brings it back."""

    def __init__(
        self,
        backend="ifadit",
        device="auto",
        detector="yunet",
        parser="trained",
        refine=None,
        batch_size=4,
        settings=None,
    ):
        self.device_name = f"fake {choose_device(device)}"

    def anonymize(self, pixels, key, *, consistent=False, boxes=(), kdf=None):
        if not pixels.any():
            raise NoFaceError("no face was found", "name one with --box x,y,w,h")
        salt = CONSISTENT_SALT if consistent else fresh_salt()
        corners = ((0.0, 0.0), (0.0, float(SIDE)), (float(SIDE), float(SIDE)), (float(SIDE), 0.0))
        reports = [FaceReport(0, "synth", (0.0, 0.0, SIDE, SIDE))]
        reports += [FaceReport(n, "mosaic", box, "too small") for n, box in enumerate(boxes, start=1)]
        header = Header(
            backend="fake",
            parameters={"refine": 1},
            flow_salt=salt,
            consistent=consistent,
            kdf=kdf,
            weights_digest=bytes(32),
            canvas=(pixels.shape[1], pixels.shape[0]),
            faces=tuple(FaceEntry(corners, report.kind) for report in reports),
        )
        return Anonymized(painted(pixels, key, salt), reports, header)

    def recover(self, pixels, key, header=None):
        if header and header.canvas != (pixels.shape[1], pixels.shape[0]):
            raise ContainerError("the record says another size")
        salt = header.flow_salt if header else CONSISTENT_SALT
        return Recovered(painted(pixels, key, salt), [FaceReport(0, "synth", (0.0, 0.0, SIDE, SIDE))])


def painted(pixels: np.ndarray, key: Key, salt: bytes) -> np.ndarray:
    """Its own inverse."""
    result = pixels.copy()
    face = result[:SIDE, :SIDE]
    paint = np.frombuffer(key.face(salt, "fake", 0).stream("paint", face.size), np.uint8)
    result[:SIDE, :SIDE] = face ^ paint.reshape(face.shape)
    return result
