"""Annotations of data sets, carried from photos to the new pictures: COCO, YOLO, Pascal VOC and CVAT 1.1."""
