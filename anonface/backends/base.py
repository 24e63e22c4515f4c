"""The contract of a backend: protocols and types alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from anonface.crypto.keys import FaceKey
    from anonface.watermark.payload import Check

Parameter = str | int | float | bool
Settings = Mapping[str, Parameter]
Margin = Literal["none", "everywhere", "beyond"]
UNSETTABLE = "it takes none of --refine, --quality, --free, --keep, --transform and --steps"


class Backend(Protocol):
    """Turns aligned faces into somebody else under a key, and back.

    Faces are [B, 3, R, R] in [-1, 1] with R in :attr:`resolutions`, masks [B, 1, R, R] in 0..1 (where the result
    is seen, soft border included). Each face has a key. Results have the faces' shape. A batch of n equals n singles.
    """

    name: str
    resolutions: tuple[int, ...]
    # Whether recovery needs every pixel of a new face, and of a recovered one: then it is pasted as it is, without
    # matching light and grain.
    exact: bool
    exact_recovery: bool
    # Whether recovery needs the very square again: without a record a registration mark holds it.
    marked: bool
    # Whether several faces in one call take less time than one after another.
    batched: bool
    # Whether recovery needs the very masks again: then they are coarse and go into the record.
    records_masks: bool
    # The mask margin, since another face's outline differs: none, one wherever the face ends, or one only beyond its
    # landmarks' outline, which leaves hands and hair before the face as they are.
    margin: Margin
    # Whether its new faces come in the photo's light already.
    matches_light: bool

    def parameters(self) -> dict[str, Parameter]:
        """What recovery must know to invert it; canonical, goes into the header."""
        ...

    def under(self, settings: Settings) -> Backend:
        """The same loaded networks under other settings, a header's for instance."""
        ...

    def digest(self) -> bytes:
        """SHA-256 over the digests of the weights in use."""
        ...

    def visible(self, masks: Tensor) -> Tensor:
        """Where results are seen, [B, 1, R, R] in 0..1, for masks of a parser."""
        ...

    def anonymize(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor: ...

    def recover(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor:
        """The inverse of :meth:`anonymize`, from the anonymized photo."""
        ...


@runtime_checkable
class Watermarking(Protocol):
    """A backend that corrects finished photos, invisibly, so that recovery can read what it needs."""

    exact: bool
    # How often it corrects a face. Each time it sees the photo that the correction before led to.
    corrections: int

    def write_watermark(
        self, shown: Tensor, face: Tensor, original: Tensor, mask: Tensor, key: FaceKey
    ) -> Tensor | None:
        """What to add to one finished face, or None.

        Args:
            shown: the finished photo in the square where recovery will find the face, [1, 3, R, R] in [-1, 1]: a new
                face's landmarks differ a little from the old one's.
            face: what :meth:`Backend.anonymize` was given, [1, 3, R, R].
            original: the original photo in the square of ``shown``.
            mask: where the new face is seen there, [1, 1, R, R] in 0..1.
            key: its nonce encrypts the message; without one a fresh nonce is drawn.

        Returns:
            [1, 3, r, r] in units of ``shown``, over its whole square, 0 where the mask is 0.
        """
        ...


@runtime_checkable
class Verifying(Protocol):
    """A backend whose watermark is encrypted under a nonce of each face, with checks of key and record."""

    def checked(self, face: Tensor, key: FaceKey) -> Check | None:
        """The checks of a face [1, 3, R, R] that :meth:`Backend.recover` was given last, under that very key object;
        None if it was not given it."""
        ...

    def earlier_digests(self) -> tuple[bytes, ...]:
        """:meth:`Backend.digest` of photos with watermarks of earlier versions that can still be read."""
        ...


@runtime_checkable
class NonceKeyed(Protocol):
    """A backend whose whole transform is keyed by each face's nonce, because it encrypts nothing but latents: a key
    for two photos would use one stream twice. Nobody becomes the same person in two photos."""

    nonce_keyed: bool
