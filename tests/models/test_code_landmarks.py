import pytest
import torch
import torch.nn.functional as F

from anonface import weights
from anonface.models.code_landmarks import CODE, COMPONENTS, FARTHEST, POINTS, CodeLandmarks
from anonface.models.identity import KEPT


def people(n, seed):
    """Codes and landmarks of which the first few components are one another's linear functions, and noise."""
    rng = torch.Generator().manual_seed(seed)
    ways = torch.Generator().manual_seed(0)
    shapes = torch.randn(n, COMPONENTS, generator=rng) * torch.linspace(3, 1, COMPONENTS)
    mesh = 0.5 + 0.01 * shapes @ torch.randn(COMPONENTS, 2 * POINTS, generator=ways)
    codes = torch.randn(n, CODE, generator=rng) + 0.1 * shapes @ torch.randn(COMPONENTS, CODE, generator=ways)
    return F.normalize(codes, dim=1), mesh.view(n, POINTS, 2)


@pytest.fixture(scope="module")
def fitted():
    regression = CodeLandmarks()
    regression.fit(*people(1500, 1))
    return regression


def test_codes_tell_of_landmarks(fitted):
    codes, mesh = people(300, 2)
    off = (fitted.told(codes) - fitted.shapes(mesh)).square().mean(0)
    assert (off < 0.5 * fitted.shapes(mesh).var(0)).all()


def test_a_code_is_moved_to_the_landmarks_of_another_face(fitted):
    codes, mesh = people(300, 3)
    moved = fitted(codes, mesh.roll(1, 0))
    wanted = fitted.shapes(mesh.roll(1, 0)).clamp(-FARTHEST, FARTHEST)
    before, after = ((fitted.told(x) - wanted).square().mean() for x in (codes, moved))
    assert after < 0.1 * before
    assert torch.equal(moved[:, :KEPT], codes[:, :KEPT])
    assert torch.allclose(moved.norm(dim=1), codes.norm(dim=1), atol=1e-5)
    person, stranger = F.cosine_similarity(moved, codes), F.cosine_similarity(moved, codes.roll(1, 0))
    assert person.mean() > stranger.mean() + 0.1  # as much as is no landmark's


def test_the_shipped_one_is_fitted():
    shipped = CodeLandmarks()
    weights.load(shipped, "code-landmarks")
    assert all(buffer.any() for buffer in shipped.buffers())
    smiling = shipped.reading.norm(dim=0)
    assert torch.isfinite(smiling).all() and (smiling > 0).all()
