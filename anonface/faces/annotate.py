"""Detected faces drawn into a photo, and listed in COCO's format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import cv2

from anonface.faces.detect import Pixels
from anonface.faces.locate import DetectedFace

REPLACED, COVERED, EDGE = (40, 220, 90), (255, 150, 0), (0, 0, 0)  # RGB: a face that can be replaced, one that cannot
POINTS = ["left_eye", "right_eye", "nose", "left_mouth", "right_mouth"]  # of the image's left and right
SEEN = 2  # COCO's word for a keypoint that is labelled and visible


def with_boxes(pixels: Pixels, faces: Sequence[DetectedFace]) -> Pixels:
    """A copy of a photo with each face's box and number; orange ones can only be covered."""
    drawn = pixels.copy()
    for face in faces:
        x, y, w, h = (round(value) for value in face.box)
        width = max(1, round(max(w, h) / 80))
        colour = REPLACED if face.obstacle is None else COVERED
        cv2.rectangle(drawn, (x, y), (x + w, y + h), colour, width)
        size = max(0.4, h / 200)
        for tint, thick in ((EDGE, 4 * width), (colour, 2 * width)):
            place = (max(x, 0) + 2 * width, max(y, 0) + round(30 * size))
            cv2.putText(drawn, str(face.index), place, cv2.FONT_HERSHEY_SIMPLEX, size, tint, thick, cv2.LINE_AA)
    return drawn


def coco(photos: Iterable[tuple[str, int, int, Sequence[DetectedFace]]]) -> dict[str, Any]:
    """Photos (name, width, height, faces) as a COCO data set of one category with five keypoints."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, (name, width, height, faces) in enumerate(photos, start=1):
        images.append({"id": number, "file_name": name, "width": width, "height": height})
        for face in faces:
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": 1,
                    "bbox": [round(value, 2) for value in face.box],
                    "area": round(face.box[2] * face.box[3], 2),
                    "iscrowd": 0,
                    "keypoints": [value for x, y in face.points for value in (round(x, 2), round(y, 2), SEEN)],
                    "num_keypoints": len(face.points),
                    "score": round(face.score, 4),
                }
            )
    category = {"id": 1, "name": "face", "supercategory": "person", "keypoints": POINTS, "skeleton": []}
    return {"images": images, "annotations": annotations, "categories": [category]}
