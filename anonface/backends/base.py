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
Rim = Literal["none", "everywhere", "beyond"]
UNSETTABLE = "it takes none of --refine, --quality, --free, --keep, --transform and --steps"


class Backend(Protocol):
    """Turns aligned faces into somebody else under a key, and back.

    Faces are [B, 3, R, R] in [-1, 1] with R in :attr:`resolutions`, masks [B, 1, R, R] in 0..1 (where the result
    will be seen, soft border included), keys one each. Results have the faces' shape. A batch of n equals n singles.
    """

    name: str
    resolutions: tuple[int, ...]
    # Whether every pixel of a new face counts for recovery, and of a recovered one for what it is: then it is pasted as
    # it is, its light and grain untouched.
    exact: bool
    exact_back: bool
    # Whether recovery needs the very square again: then, where there is no record, the photo's last bits say it.
    anchored: bool
    # Whether faces that are given together take less time than one after another.
    together: bool
    # Whether recovery needs the very masks again: then they are coarse, and recorded.
    outlined: bool
    # What about the face may change too, for another face's outline is not the same: nothing, a rim wherever the face
    # ends, or only beyond its landmarks' outline, so that what hides it stays as it is.
    rim: Rim
    # Whether its new faces come in the photo's light: to match it along the rim as well brings the original nearer.
    lit: bool

    def parameters(self) -> dict[str, Parameter]:
        """What recovery must know to be this one's inverse; canonical, goes into the header."""
        ...

    def under(self, settings: Settings) -> Backend:
        """The same loaded networks under other settings, a header's for instance."""
        ...

    def digest(self) -> bytes:
        """SHA-256 over the digests of the weights in use."""
        ...

    def visible(self, masks: Tensor) -> Tensor:
        """Where results are to be seen, [B, 1, R, R] in 0..1, for faces that a parser masks so."""
        ...

    def anonymize(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor: ...

    def recover(self, faces: Tensor, masks: Tensor, keys: Sequence[FaceKey]) -> Tensor:
        """The inverse of :meth:`anonymize`, from what can be seen of the anonymized photo."""
        ...


@runtime_checkable
class Imprinting(Protocol):
    """A backend that corrects finished photos, faintly, so that recovery reads what was meant."""

    exact: bool
    # How often it corrects a face, each time looking at what the correction before came to in the photo.
    corrections: int

    def imprint(self, shown: Tensor, face: Tensor, original: Tensor, mask: Tensor, key: FaceKey) -> Tensor | None:
        """What to add to one finished face, or None.

        Args:
            shown: the finished photo's square in which recovery will look for the face, [1, 3, R, R] in [-1, 1]: a new
                face's landmarks do not lie quite as the old one's.
            face: what :meth:`Backend.anonymize` was given, [1, 3, R, R].
            original: what the original photo shows in the first square.
            mask: where the new face is seen there, [1, 1, R, R] in 0..1.

        Returns:
            [1, 3, r, r] in units of ``shown``, over its whole square, 0 where the mask is 0.

        What it says is encrypted under the nonce that the key names, else under a fresh one.
        """
        ...


@runtime_checkable
class Saying(Protocol):
    """A backend whose new faces say, in pixels, what recovery needs, encrypted under a nonce of each face's own."""

    def checked(self, face: Tensor, key: FaceKey) -> Check | None:
        """What a face [1, 3, R, R] said that :meth:`Backend.recover` was given last, under that very key object; None
        if it was not given it."""
        ...

    def digest_of_version_5(self) -> bytes:
        """:meth:`Backend.digest` of the photos that watermarks of version 5 are in, which are read still."""
        ...


@runtime_checkable
class Renewing(Protocol):
    """A backend whose whole transform is keyed by each face's nonce: what it says is nothing but transformed latents,
    so a key that served two photos would be a stream used twice. It makes nobody the same person in two photos."""

    renews: bool
