from __future__ import annotations

from argparse import Namespace
from hashlib import shake_256
from pathlib import Path

import pytest
import torch
from torch import Tensor

from anonface import weights
from anonface.backends.official.ifadit import ENTRIES, OfficialIFADITBackend, password
from anonface.errors import WeightsError
from anonface.models.ifadit_official import IdentityFlowParams, OfficialIFADIT, OfficialIFADITParams
from anonface.models.ir_se50 import IRSE50Params
from anonface.models.psp import PSp
from anonface.models.stylegan2 import StyleGAN2Params

pytestmark = pytest.mark.filterwarnings("ignore:keys of the authors")

RECOGNIZER = IRSE50Params(stages=((4, 1), (8, 1), (8, 1), (16, 1)), reduction=4, embedding=16)
GENERATOR = StyleGAN2Params(latent=16, mapping_layers=2, max_channels=8, channel_base=1024)


def small(matrices: bool = False) -> OfficialIFADITParams:
    flow = IdentityFlowParams(matrices=matrices, halved=not matrices, width=16, hidden=(12, 8))
    return OfficialIFADITParams(RECOGNIZER, GENERATOR, flow)


class Stream:
    """As much of a face's key as the backend sees."""

    def __init__(self, name: str) -> None:
        self.name = name

    def stream(self, purpose: str, n: int) -> bytes:
        return shake_256(f"{self.name} {purpose}".encode()).digest(n)


@pytest.fixture
def networks() -> OfficialIFADIT:
    torch.manual_seed(0)
    return OfficialIFADIT(small()).eval()


def faces_and_masks(count: int) -> tuple[Tensor, Tensor]:
    mask = torch.zeros(count, 1, 256, 256)
    mask[:, :, 64:192, 64:192] = 1
    return torch.rand(count, 3, 256, 256) * 2 - 1, mask


def test_the_backend_warns_of_its_keys(networks: OfficialIFADIT) -> None:
    with pytest.warns(UserWarning, match="nearly coincide"):
        OfficialIFADITBackend(networks)


def test_passwords_are_the_stream_s_bytes_and_reach_half_the_range(networks: OfficialIFADIT) -> None:
    key = Stream("a")
    drawn = password(key)
    assert drawn.tolist() == [byte / 256 for byte in key.stream("flow", 512)]
    uniform = torch.tensor([[0.0] * 8 + [0.5] * 8])
    torch.testing.assert_close(
        networks.key_code(uniform), networks.generator.mapping(torch.tensor([[0.5] * 8 + [0.75] * 8]))
    )


@pytest.mark.parametrize("direction", ["anonymize", "recover"])
def test_every_face_has_its_own_key_whatever_its_companions(networks: OfficialIFADIT, direction: str) -> None:
    backend = OfficialIFADITBackend(networks)
    run = getattr(backend, direction)
    faces, masks = faces_and_masks(2)
    faces[1] = faces[0]
    keys = [Stream("a"), Stream("b")]
    batched = run(faces, masks, keys)
    assert batched.shape == faces.shape and batched.min() >= -1 and batched.max() <= 1
    assert not torch.allclose(batched[0], batched[1])
    for i in range(2):
        alone = run(faces[i : i + 1], masks[i : i + 1], [keys[i]])
        torch.testing.assert_close(alone[0], batched[i], atol=1e-4, rtol=1e-4)


def test_the_steps_are_those_of_the_networks(networks: OfficialIFADIT) -> None:
    backend = OfficialIFADITBackend(networks)
    faces, masks = faces_and_masks(1)
    key = Stream("a")
    code = networks.key_code(password(key, 16)[None])
    everything = torch.ones_like(masks)
    expected = networks.anonymize((faces + 1) / 2, code).clamp(-1, 1)
    torch.testing.assert_close(backend.anonymize(faces, everything, [key]), expected)
    expected = networks.recover((faces + 1) / 2, code).clamp(-1, 1)
    torch.testing.assert_close(backend.recover(faces, everything, [key]), expected)
    outside = backend.anonymize(faces, masks, [key])[:, :, :48]
    torch.testing.assert_close(outside, faces[:, :, :48])


def test_unequal_numbers_and_sizes_are_refused(networks: OfficialIFADIT) -> None:
    backend = OfficialIFADITBackend(networks)
    faces, masks = faces_and_masks(2)
    with pytest.raises(ValueError, match="1 keys"):
        backend.anonymize(faces, masks, [Stream("a")])
    with pytest.raises(ValueError, match="256 px"):
        backend.anonymize(faces[..., :128], masks, [Stream("a"), Stream("b")])


def save(networks: OfficialIFADIT, folder: Path) -> None:
    """The six files, each wrapped another way; two with names of their own."""
    inversion = PSp(GENERATOR, backbone=RECOGNIZER)
    inversion.encoder = networks.attribute_encoder
    mapper = {f"mlp.{i}": tensor for i, tensor in enumerate(networks.mapper.state_dict().values())}
    flow = {f"inn.{name}": tensor for name, tensor in networks.flow.state_dict().items()}
    contents = {
        "identity_encoder": networks.identity_encoder.state_dict(),
        "attribute_encoder": {
            "state_dict": inversion.state_dict(),
            "latent_avg": torch.zeros(14, 16),
            "opts": Namespace(device="cuda"),
        },
        "mapper": mapper,
        "flow": flow,
        "compensation": {f"module.{name}": tensor for name, tensor in networks.compensation.state_dict().items()},
        "generator": {"g_ema": networks.generator.state_dict(), "d": {}, "latent_avg": torch.zeros(16)},
    }
    for component, content in contents.items():
        torch.save(content, folder / weights.entry(ENTRIES[component]).file)


@pytest.mark.parametrize("matrices", [False, True])
def test_the_authors_files_load_by_name_or_by_order(tmp_path: Path, matrices: bool) -> None:
    torch.manual_seed(1)
    networks = OfficialIFADIT(small(matrices)).eval()
    save(networks, tmp_path)
    loaded = OfficialIFADITBackend.from_folder(tmp_path, params=small())
    assert loaded.parameters() == {"halved": not matrices}
    faces, masks = faces_and_masks(1)
    expected = OfficialIFADITBackend(networks).anonymize(faces, masks, [Stream("a")])
    torch.testing.assert_close(loaded.anonymize(faces, masks, [Stream("a")]), expected)


def test_files_that_the_user_accepted_load_from_the_weights_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, networks: OfficialIFADIT
) -> None:
    monkeypatch.setenv("ANONFACE_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("ANONFACE_CACHE", str(tmp_path / "cache"))
    save(networks, tmp_path)
    with pytest.raises(WeightsError, match="refused"):
        OfficialIFADITBackend.from_weights(params=small())
    weights.pull(ENTRIES.values(), accept_unknown=True)
    loaded = OfficialIFADITBackend.from_weights(params=small())
    for name, tensor in networks.generator.state_dict().items():
        assert torch.equal(loaded.networks.generator.state_dict()[name], tensor)


def test_a_missing_or_foreign_file_is_named(tmp_path: Path, networks: OfficialIFADIT) -> None:
    with pytest.raises(WeightsError, match=r"no model_ir_se50.pth"):
        OfficialIFADITBackend.from_folder(tmp_path, params=small())
    save(networks, tmp_path)
    torch.save({"weight": torch.zeros(3)}, tmp_path / "550000.pt")
    with pytest.raises(WeightsError, match=r"550000.pt"):
        OfficialIFADITBackend.from_folder(tmp_path, params=small())
