"""The three parts of a recoverable backend: renderer, keyed identity and face watermark, one interface each.

:class:`anonface.backends.recoverable.RecoverableBackend` makes a :class:`anonface.backends.base.Backend` of any three.

Faces are [1, 3, R, R] in [-1, 1], masks [1, 1, R, R] in 0..1 (1 where the result is seen), on the device of the part.
Codes are unit vectors [1, d]; the identity computes them in float64 on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from anonface.backends.base import Margin
    from anonface.crypto.keys import FaceKey
    from anonface.watermark.face_watermark import Content, Message


@dataclass(frozen=True)
class Finished:
    """A finished face: what both ends see of an anonymized photo.

    Attributes:
        face: the aligned square, [1, 3, R, R] in [-1, 1].
        plain: the same without detail that could be a watermark, [1, 3, 128, 128]: equal before and after writing.
        mask: where the synthetic face is seen, [1, 1, R, R] in 0..1.
    """

    face: Tensor
    plain: Tensor
    mask: Tensor


class Renderer(Protocol):
    """Draws a face for an identity code, and draws the original again at recovery. It knows no watermark."""

    # As in ``base.Backend``: crop sizes, what changes around the mask, whether the face comes in the photo's light.
    resolutions: tuple[int, ...]
    margin: Margin
    matches_light: bool
    # Numbers of the latent residual, which recovery adds inside the renderer; 0 if the renderer has none.
    residual_size: int

    def draw(self, face: Tensor, mask: Tensor, hidden: Tensor, key: FaceKey) -> Tensor:
        """A synthetic face for a hidden code, in the photo's pose, expression and light.

        Args:
            hidden: float64 on the CPU.
            key: for keyed choices of the renderer's own, by a purpose of their own (:meth:`FaceKey.stream`).

        Returns:
            [1, 3, R, R] in [-1, 1] on the CPU, not composited.
        """
        ...

    def residual(self, finished: Finished, face: Tensor, original: Tensor, code: Tensor) -> Tensor | None:
        """What :meth:`redraw` needs beside the code to draw the original: [residual_size], or None.

        The watermark says which sizes and magnitudes it can hold; scale the numbers to a root mean square near 0.5.

        Args:
            finished: the finished face, from which recovery starts.
            face: what :meth:`draw` was given.
            original: the original photo in the square of ``finished``.
            code: the original's code.
        """
        ...

    def redraw(self, finished: Finished, code: Tensor, residual: Tensor | None, legible: bool = True) -> Tensor:
        """The original face again, drawn from a finished face and a recovered code.

        The same arguments give the same face: the pixel residual is measured against it. Of ``finished`` only ``plain``
        and ``mask`` are equal when it is measured and when it is read. Any code gives some face: where the checks are
        illegible, nothing tells that a key is wrong.

        Args:
            code: float32 on the renderer's device.
            residual: as it was read from the watermark; None if it was not.
            legible: whether the watermark was read well. Otherwise a renderer may search for a face of this code; the
                pixel residual is then not measured against the result.

        Returns:
            [1, 3, R, R] in [-1, 1] on the CPU, not composited.
        """
        ...

    def wrong_key_face(self, finished: Finished, code: Tensor) -> Tensor:
        """A plausible third person, for the code that a wrong key reveals. Shaped as :meth:`redraw`'s result."""
        ...


class KeyedIdentity(Protocol):
    """Embeds a face, hides its code under a key, and inverts that."""

    def embed(self, faces: Tensor) -> Tensor:
        """Faces [B, 3, R, R] in [-1, 1] -> unit codes [B, d]."""
        ...

    def hide(self, code: Tensor, key: FaceKey) -> Tensor:
        """A code [1, d] -> the hidden code [1, d] under this key."""
        ...

    def reveal(self, hidden: Tensor, key: FaceKey) -> Tensor:
        """The inverse of :meth:`hide`, exact up to rounding. Another key reveals an unrelated code."""
        ...

    def estimate(self, face: Tensor) -> Tensor:
        """The hidden code [1, d] as a finished face alone shows it, for faces whose watermark is illegible."""
        ...


class FaceWatermark(Protocol):
    """Writes into a finished face what recovery needs, and reads it: nonce, hidden code, checks and residuals."""

    version: str  # part of the record's digest of weights
    earlier_versions: tuple[str, ...]  # whose photos can still be read

    def plain(self, face: Tensor) -> Tensor:
        """A face without detail that could be a watermark, [1, 3, r, r]."""
        ...

    def message(self, hidden: Tensor, shown: Tensor, key: FaceKey, residual: Tensor | None) -> Message:
        """The encrypted message of one face, still without a pixel residual.

        Args:
            hidden: the hidden code [1, d].
            shown: the code [1, d] that the finished face shows without a watermark; the reader has it too.
            residual: the renderer's latent residual.
        """
        ...

    def with_pixels(self, message: Message, missing: Tensor, face: Tensor, mask: Tensor) -> Message:
        """The message with a pixel residual, as far as the finished face has room for one.

        Args:
            missing: original less redrawn face, [1, 3, R, R] in units of [-1, 1].
        """
        ...

    def write(self, message: Message, face: Tensor, mask: Tensor) -> Tensor:
        """What to add to a finished face, [1, 3, r, r] in units of ``face`` on the CPU, 0 where the mask is 0."""
        ...

    def read(self, face: Tensor, shown: Tensor, key: FaceKey) -> Content:
        """What a finished face holds under a key; ``shown`` as in :meth:`message`."""
        ...
