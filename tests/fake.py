"""An engine without networks, for the rooms above the pipeline: faces are painted over with the key's stream."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from anonface.crypto.keys import CONSISTENT_SALT, Key, fresh_salt
from anonface.errors import ContainerError, NoFaceError, UsageError
from anonface.faces.details import FaceDetails
from anonface.pipeline import Anonymized, FaceReport, Recovered, choose_device
from anonface.record.anf1 import FaceChecks, FaceEntry, Header

SIDE = 16


class FakeEngine:
    """Faces lie at ``PLACES``, none in a black photo. XOR with the key's stream hides them and brings them back."""

    PLACES = ((0, 0),)

    def __init__(
        self,
        backend="inpaint",
        device="auto",
        detector="yunet",
        parser="trained",
        batch_size=4,
        settings=None,
        keep=(),
        watch=lambda doing, face, faces: None,
    ):
        self.watch, self.chosen_backend = watch, backend
        self.device_name = f"fake {choose_device(device)}"
        self.known = [tuple(pixels[0, 0]) for _, pixels in keep]

    def chosen(self, pixels, faces):
        """The number and place of each face to be changed; as the real engine counts them."""
        places = self.PLACES if pixels.any() else ()
        wanted = range(len(places)) if faces == "all" else [0] if faces == "largest" else faces
        if missing := [i for i in wanted if i >= len(places)]:
            raise UsageError(f"there is no face {missing[0]}")
        return {i: (x, y) for i, (x, y) in enumerate(places) if i in wanted and tuple(pixels[y, x]) not in self.known}

    def reports(self, pixels, chosen):
        places = self.PLACES if pixels.any() else ()
        kinds = ["synth" if i in chosen else "kept" for i in range(len(places))]
        return [FaceReport(i, kinds[i], (x, y, SIDE, SIDE)) for i, (x, y) in enumerate(places)]

    def unreported(self, pixels, faces):
        return []

    def anonymize(
        self,
        pixels,
        key,
        *,
        consistent=False,
        boxes=(),
        kdf=None,
        faces="all",
        faceless=False,
        sealed=False,
        keep_regions=(),
        check=False,
        detailed=False,
    ):
        if not pixels.any() and not faceless:
            raise NoFaceError("no face was found", "name one with --box x,y,w,h")
        salt = CONSISTENT_SALT if consistent else fresh_salt()
        chosen = self.chosen(pixels, faces)
        for number in range(1, len(chosen) + 1):
            self.watch("rendering", number, len(chosen))
        reports = self.reports(pixels, chosen)
        reports += [FaceReport(n, "mosaic", box, "too small") for n, box in enumerate(boxes, start=len(reports))]
        entries = [FaceEntry(square(x, y)) for x, y in chosen.values()]
        header = Header(
            backend=self.chosen_backend,
            parameters={"refine": 1, **({"regions": ",".join(keep_regions)} if keep_regions else {})},
            flow_salt=salt,
            consistent=consistent,
            kdf=kdf,
            weights_digest=bytes(32),
            canvas=(pixels.shape[1], pixels.shape[0]),
            faces=(*entries, *(FaceEntry(square(0, 0), "mosaic") for _ in boxes)),
        )
        checks = FaceChecks(True, True, 0.25, False) if check else FaceChecks(True)
        reports = [replace(report, checks=checks) for report in reports]
        labels = np.zeros(pixels.shape[:2], np.uint8)
        for number, (x, y) in chosen.items():
            labels[y : y + SIDE, x : x + SIDE] = number + 1
        known = FaceDetails(labels, tuple(np.zeros((468, 2)) for _ in reports)) if detailed else None
        return Anonymized(painted(pixels, key, salt, chosen.values()), reports, header, details=known)

    def recover(self, pixels, key, header=None, *, faces="all"):
        if header and header.backend != self.chosen_backend:
            raise ContainerError(f"the record is of backend {header.backend}", f"choose --backend {header.backend}")
        if header and header.canvas != (pixels.shape[1], pixels.shape[0]):
            raise ContainerError("the record says another size")
        if header:
            places = [tuple(map(int, face.quad[0])) for face in header.faces if face.kind == "synth"]
            reports = [report for report in header.reports() if report.kind == "synth"]
            return Recovered(painted(pixels, key, header.flow_salt, places), reports)
        chosen = self.chosen(pixels, faces)
        return Recovered(painted(pixels, key, CONSISTENT_SALT, chosen.values()), self.reports(pixels, chosen))


def square(x, y):
    return ((x, y), (x, y + SIDE), (x + SIDE, y + SIDE), (x + SIDE, y))


def painted(pixels: np.ndarray, key: Key, salt: bytes, places) -> np.ndarray:
    """Its own inverse, where faces overlap too."""
    result = pixels.copy()
    for index, (x, y) in enumerate(places):
        face = result[y : y + SIDE, x : x + SIDE]
        paint = np.frombuffer(key.face(salt, "fake", index).stream("paint", face.size), np.uint8)
        result[y : y + SIDE, x : x + SIDE] = face ^ paint.reshape(face.shape)
    return result
