"""Image files: decoding, encoding, colours, depths above 8 bits, metadata, atomic writes."""

from anonface.images.decode import MAX_PIXELS, frame, read_photo
from anonface.images.encode import encode_labels, encode_photo
from anonface.images.files import (
    MAX_FILE_BYTES,
    Content,
    PathLike,
    belonging,
    check_folder,
    check_output,
    interims,
    read_file,
    size_of,
    write_atomic,
    write_together,
)
from anonface.images.photo import Photo

__all__ = [
    "MAX_FILE_BYTES",
    "MAX_PIXELS",
    "Content",
    "PathLike",
    "Photo",
    "belonging",
    "check_folder",
    "check_output",
    "encode_labels",
    "encode_photo",
    "frame",
    "interims",
    "read_file",
    "read_photo",
    "size_of",
    "write_atomic",
    "write_together",
]
