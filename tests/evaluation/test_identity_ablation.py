import pytest
import torch
from skimage import data

from anonface.crypto.keys import Key
from anonface.evaluation.identity_ablation import ablations, without_identity
from anonface.evaluation.measurements import NO_CODE, NO_IDENTITY
from anonface.models.identity import KEPT
from anonface.pipeline import Engine


@pytest.fixture(scope="module")
def engine():
    torch.manual_seed(0)
    return Engine(device="cpu")


pytestmark = pytest.mark.usefixtures("unsearched")


def test_without_identity_no_key_matters(engine):
    ablated = without_identity(engine)
    photo = data.astronaut()[:256, 100:356]
    keys = [Key(bytes([n]) * 32) for n in range(2)]
    told = [engine.recover(photo, key).pixels for key in keys]
    silent = [ablated.recover(photo, key).pixels for key in keys]
    assert (told[0] != told[1]).any() and (silent[0] == silent[1]).all()
    assert (silent[0] != told[0]).any() and (silent[0] != photo).any()
    assert engine.backend.identity.flow is not ablated.backend.identity.flow


def test_only_conditions_are_left_of_the_code(engine):
    backend = without_identity(engine).backend
    code = torch.nn.functional.normalize(torch.randn(3, 448, dtype=torch.float64), dim=1)
    key = backend.identity.keygen([Key.from_bytes(bytes(32)).face(bytes(32), "ifadit", 0)] * 3)
    silent = backend.identity.flow.inverse(code, key)
    assert (silent[:, :KEPT] == code[:, :KEPT]).all() and not silent[:, KEPT:].any()
    assert engine.backend.adds_residuals and not backend.adds_residuals


def test_nothing_at_all_is_left_of_a_code_at_zero(engine):
    found = ablations(engine)
    assert list(found) == [NO_IDENTITY, NO_CODE]
    code = torch.nn.functional.normalize(torch.randn(1, 448, dtype=torch.float64), dim=1)
    key = engine.backend.identity.keygen([Key.from_bytes(bytes(32)).face(bytes(32), "ifadit", 0)])
    left = [ablated.backend.identity.flow.inverse(code, key) for ablated in found.values()]
    assert left[0].any() and left[0].shape == left[1].shape == code.shape and not left[1].any()
    photo = data.astronaut()[:256, 100:356]
    one, other = (ablated.recover(photo, Key.from_bytes(bytes(32))).pixels for ablated in found.values())
    assert (one != other).any() and (other != photo).any()


def test_other_backends_have_no_identity_code(engine, monkeypatch):
    monkeypatch.setattr(engine, "backend", object())
    assert without_identity(engine) is None and ablations(engine) == {}
