"""The imprint, with a made-up encoder and with the real one."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface import weights
from anonface.backends.imprint import ImprintParams, imprint, read
from anonface.backends.looks import look
from anonface.models.identity import IdentityEncoder

WHOLE = torch.tensor([[[1.0, 0, 0], [0, 1, 0]]])
PARAMS = ImprintParams(steps=12, side=32)


class Projection(nn.Module):
    """A linear encoder: [B, 3, 32, 32] -> unit [B, 16]."""

    def __init__(self) -> None:
        super().__init__()
        rows = torch.randn(16, 3 * 16 * 16, generator=torch.Generator().manual_seed(1))
        self.register_buffer("rows", rows)

    def forward(self, faces: Tensor) -> Tensor:
        return F.normalize(F.adaptive_avg_pool2d(faces, 16).flatten(1) @ self.rows.T, dim=1)


@pytest.fixture
def face() -> Tensor:
    cells = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(2)) - 0.5
    return F.interpolate(cells, (64, 64), mode="bicubic")


@pytest.fixture
def mask() -> Tensor:
    mask = torch.zeros(1, 1, 64, 64)
    mask[:, :, 16:48, 16:48] = 1
    return mask


@pytest.fixture
def target() -> Tensor:
    return F.normalize(torch.randn(1, 16, generator=torch.Generator().manual_seed(3)), dim=1)


def agreement(encoder: nn.Module, picture: Tensor, target: Tensor) -> float:
    return float(F.cosine_similarity(read(picture, encoder), target))


def test_the_code_comes_nearer_within_the_mask_and_the_bound(face, mask, target):
    encoder = Projection()
    pattern = imprint(face, mask, target, WHOLE, encoder, PARAMS)
    assert pattern.shape == (1, 3, 32, 32)
    before, after = (agreement(encoder, F.adaptive_avg_pool2d(face, 32) + p, target) for p in (0 * pattern, pattern))
    assert after > before + 0.08
    outside = F.adaptive_avg_pool2d(mask, 32).expand_as(pattern) == 0
    assert outside.any() and (pattern[outside] == 0).all()
    assert 0 < pattern.abs().max() * 127.5 <= PARAMS.busy * PARAMS.levels + 1e-4


def test_plain_skin_is_spared(mask, target):
    encoder, plain = Projection(), torch.full((1, 3, 64, 64), 0.2)
    pattern = imprint(plain, mask, target, WHOLE, encoder, PARAMS)
    assert 0 < pattern.abs().max() * 127.5 <= PARAMS.plain * PARAMS.levels + 1e-4


def test_a_grey_picture_stays_grey(face, mask, target):
    grey = face[:, :1].expand_as(face)
    pattern = imprint(grey, mask, target, WHOLE, Projection(), PARAMS)
    assert pattern.abs().max() > 0 and torch.equal(pattern[:, 0], pattern[:, 2])


def test_the_pattern_is_made_for_the_frame_that_recovery_sees(face, mask, target):
    encoder = Projection()
    moved = torch.tensor([[[1.0, 0, 0.2], [0, 1, -0.1]]])
    small = F.adaptive_avg_pool2d(face, 32)
    here, there = (imprint(face, mask, target, frame, encoder, PARAMS) for frame in (WHOLE, moved))
    assert (
        agreement(encoder, look(small + there, 0, moved), target)
        > agreement(encoder, look(small + here, 0, moved), target) + 0.02
    )


def test_the_real_encoder_reads_it_after_jpeg_and_a_wrong_alignment():
    import io

    import numpy as np
    from PIL import Image

    encoder = IdentityEncoder()
    weights.load(encoder, "identity")
    encoder.requires_grad_(False).eval()
    from skimage.data import astronaut

    portrait = np.ascontiguousarray(astronaut()[0:256, 96:352])
    face = torch.from_numpy(portrait).permute(2, 0, 1)[None].float() / 127.5 - 1
    mask = torch.zeros(1, 1, 256, 256)
    mask[:, :, 70:220, 70:190] = 1
    target = F.normalize(torch.randn(1, 448, generator=torch.Generator().manual_seed(4)), dim=1)
    pattern = F.interpolate(
        imprint(face, mask, target, WHOLE, encoder, ImprintParams(steps=20)), (256, 256), mode="bicubic"
    )
    finished = ((face + pattern).clamp(-1, 1) + 1).mul(127.5).round().byte()[0].permute(1, 2, 0).numpy()
    saved = io.BytesIO()
    Image.fromarray(finished).save(saved, "JPEG", quality=80)
    opened = np.asarray(Image.open(saved).convert("RGB"))
    read = torch.from_numpy(np.roll(opened, 1, axis=1).copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
    assert np.abs(finished.astype(int) - portrait).max() <= 15  # 9 on the pattern's own grid
    assert agreement(encoder, read, target) > agreement(encoder, face, target) + 0.1


def test_reading_magnifies_what_is_faint_and_leaves_contours_alone():
    seen = []

    def encoder(pictures):
        seen[:] = pictures
        return F.normalize(pictures.flatten(1), dim=1)

    checks = ((torch.arange(32)[:, None] + torch.arange(32)) % 2 * 2 - 1.0).expand(1, 3, 32, 32)
    gains = []
    for strength in (0.02, 0.5):
        read(strength * checks, encoder)
        through, shown = (float(picture[:, 8:24, 8:24].abs().mean()) for picture in seen)
        gains.append(through / strength)
        assert shown < 0.02 * strength
    assert gains[0] > 4.5 and gains[1] < 1.6
