"""Files about the faces of one photo: a mask of what was replaced, and landmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anonface.images import Content, encode_labels

if TYPE_CHECKING:
    from anonface.pipeline import Anonymized

FACES = "faces"  # photo.anon.png -> photo.anon.faces.png and photo.anon.faces.json


def face_files(name: Path) -> tuple[Path, Path]:
    """The mask and the landmarks, by their name without a suffix."""
    return name.with_name(f"{name.name}.png"), name.with_name(f"{name.name}.json")


def encoded_faces(name: Path, source: Path | None, target: Path, result: Anonymized) -> list[tuple[Path, Content]]:
    """The contents of :func:`face_files`.

    Args:
        source, target: the photo's file and the new one.
        result: with its details.
    """
    known = result.details
    assert known
    mask, landmarks = face_files(name)
    height, width = known.labels.shape
    faces: list[dict[str, Any]] = [
        {
            "index": face.index,
            "kind": face.kind,
            "reason": face.reason,
            "box": [round(value, 1) for value in face.box],
            "mask_value": face.index + 1 if face.kind != "kept" else None,
            "landmarks_of": "original" if face.kind == "mosaic" else "result",
            "landmarks": [[round(float(x), 2), round(float(y), 2)] for x, y in points],
        }
        for face, points in zip(result.faces, known.landmarks, strict=True)
    ]
    told = {
        "photo": source.name if source else None,
        "picture": target.name,
        "width": width,
        "height": height,
        "mask": mask.name,
        "faces": faces,
    }
    return [(mask, encode_labels(known.labels)), (landmarks, json.dumps(told).encode() + b"\n")]
