"""The imprint: a faint pattern by which a finished face says exactly who it stands for.

Refinement moves latents, and no natural face meets its target code exactly; recovery then starts from a code that is
half noise. What is missing is written into the finished picture: each pixel may move by a few grey levels, less where
the picture is plain, so that ``read`` finds the target code in it. The pattern is wider than a pixel and
sought over jittered looks, so that it outlasts 8-bit rounding, JPEG and a fresh alignment. It holds nothing but the
keyed code: a wrong key reads another person from it, as it does from the face itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from anonface.backends.arena import denormals_flushed
from anonface.backends.looks import look, luma, schedule, shrink
from anonface.models.identity import IdentityEncoder

READ_AT = 128  # px, the side at which a finished face is read
BLUR, BLUR_REACH = 1.0, 4  # px there: what is finer is detail
FAINT = 0.06  # of pixels in [-1, 1], eight grey levels: detail stronger than this is the face's own
MAGNIFIED = 4.0  # how much detail is added to that which is there
SHOWN = 0.5  # how much of the code that the face shows without its detail is taken off
NEIGHBOURHOOD = 7  # px across, within which the picture's own contrast is measured


@dataclass(frozen=True)
class ImprintParams:
    """Steps, the pattern's side in px, Adam's rate, and how far a pixel may move.

    ``levels`` is that distance in grey levels where the picture's contrast is ordinary, ``plain`` the share of it that
    a plain one is allowed, ``busy`` the most in shares of it.
    """

    steps: int = 30
    side: int = READ_AT
    rate: float = 0.3
    levels: float = 4.5
    plain: float = 0.4
    busy: float = 2.0


@denormals_flushed()
def imprint(
    shown: Tensor, mask: Tensor, target: Tensor, frame: Tensor, encoder: IdentityEncoder, params: ImprintParams
) -> Tensor:
    """The pattern that is to be added to one finished face.

    Args:
        shown: the finished picture of the aligned face, [1, 3, R, R] in [-1, 1], with R at least ``params.side``.
        mask: soft mask [1, 1, R, R] in 0..1, 1 where pixels may change.
        target: unit code [1, 448].
        frame: [1, 2, 3], where recovery will look within the picture, as ``F.affine_grid`` takes it.

    Returns:
        [1, 3, side, side], in units of ``shown``; 0 outside the mask, grey in a grey picture.
    """
    picture, cover = shrink(shown, params.side), shrink(mask, params.side)
    room = _room(picture, params) * cover
    hues = 1 if bool((shown == shown[:, :1]).all()) else 3
    pattern = torch.zeros_like(picture[:, :hues], requires_grad=True)
    optimiser = torch.optim.Adam([pattern], lr=params.rate)
    for step in range(params.steps):
        optimiser.param_groups[0]["lr"] = params.rate * schedule(step / params.steps)
        seen = look(picture + room * pattern.tanh(), step, frame)
        loss = 1 - F.cosine_similarity(read(seen, encoder), target).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return (room * pattern.detach().tanh()).expand_as(picture)


def read(picture: Tensor, encoder: IdentityEncoder) -> Tensor:
    """The code that an imprinted face says, rather than the one that it shows.

    The encoder looks through a lens that magnifies what is faint and finer than the eye minds, be it the pattern, and
    leaves strong contours alone; half of what it sees of the face without such detail is taken off. That makes a
    pattern of half the strength as legible.

    Args:
        picture: [1, 3, R, R] in [-1, 1].

    Returns:
        Unit code [1, 448].
    """
    plain = shrink(picture, min(READ_AT, picture.shape[-1]))
    smooth = _smoothed(plain)
    detail = FAINT * ((plain - smooth) / FAINT).tanh()
    through, shown = encoder(torch.cat([plain + MAGNIFIED * detail, smooth])).chunk(2)
    return F.normalize(through - SHOWN * shown, dim=1)


def _smoothed(picture: Tensor) -> Tensor:
    """Gaussian blur, mirrored at the border."""
    at = torch.arange(-BLUR_REACH, BLUR_REACH + 1, dtype=picture.dtype, device=picture.device)
    bell = torch.exp(-0.5 * (at / BLUR) ** 2)
    kernel = ((bell / bell.sum())[:, None] * (bell / bell.sum())).expand(picture.shape[1], 1, -1, -1)
    return F.conv2d(F.pad(picture, [BLUR_REACH] * 4, mode="reflect"), kernel, groups=picture.shape[1])


def _room(picture: Tensor, params: ImprintParams) -> Tensor:
    """How far each pixel may move: Weber's law, the eye sees a pattern less where there is contrast anyway."""
    light = luma(picture)
    blur = lambda x: F.avg_pool2d(x, NEIGHBOURHOOD, 1, NEIGHBOURHOOD // 2, count_include_pad=False)  # noqa: E731
    contrast = (blur(light.square()) - blur(light).square()).clamp_min(0).sqrt()
    return params.levels / 127.5 * (params.plain + 4 * contrast).clamp_max(params.busy)
