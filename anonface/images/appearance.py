"""How viewers show a photo where that differs from its pixels: through transparency, and by its colour profile."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from anonface.images.photo import Photo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BACKGROUNDS = (255, 0)  # white and black, behind transparent places
PLAINLY = 8.0  # grey levels of mean difference from which a profile shows another picture


def appearances(photo: Photo) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """What makes a photo look unlike its pixels, and the picture [H, W, 3] in sRGB that is then seen."""
    import numpy as np

    pixels = _in_srgb(photo)
    if np.abs(pixels.astype(np.int16) - photo.pixels).mean() > PLAINLY:
        yield "its colour profile", pixels
    if photo.alpha is not None and (photo.alpha < 255).any():
        share = photo.alpha[..., None].astype(np.float32) / 255
        for level in BACKGROUNDS:
            yield "its transparency", np.rint(share * pixels + (1 - share) * level).astype(np.uint8)


def _in_srgb(photo: Photo) -> NDArray[np.uint8]:
    """Its pixels in sRGB; as they are where its profile cannot be applied."""
    if photo.icc is None:
        return photo.pixels
    import numpy as np
    from PIL import Image, ImageCms

    try:
        profile = ImageCms.ImageCmsProfile(io.BytesIO(photo.icc))
        shown = ImageCms.profileToProfile(Image.fromarray(photo.pixels), profile, ImageCms.createProfile("sRGB"))
    except (ImageCms.PyCMSError, ValueError, OSError):
        return photo.pixels
    return np.asarray(shown)
