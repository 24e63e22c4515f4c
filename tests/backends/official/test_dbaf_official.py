from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from anonface import weights
from anonface.backends.official.dbaf import ENTRIES, LEVELS, OfficialDBAFBackend
from anonface.backends.registry import build
from anonface.crypto.keys import FaceKey, Key
from anonface.errors import UsageError, WeightsError
from anonface.models.dbaf_official import DisentanglerParams, OfficialDBAF, OfficialDBAFParams
from anonface.models.ir_se50 import IRSE50Params
from anonface.models.psp import PSp
from anonface.models.stylegan2 import StyleGAN2, StyleGAN2Params

SMALL = OfficialDBAFParams(
    IRSE50Params(stages=((4, 1), (8, 1), (8, 1), (16, 1)), reduction=4, embedding=16),
    StyleGAN2Params(latent=16, mapping_layers=2, max_channels=16, channel_base=4096),
    DisentanglerParams(latent=16, depth=1, heads=2, head=4, hidden=8),
)


@pytest.fixture
def networks() -> OfficialDBAF:
    torch.manual_seed(0)
    networks = OfficialDBAF(SMALL).eval()
    for noise in (module for name, module in networks.generator.named_modules() if name.endswith(".noise")):
        torch.nn.init.constant_(noise.weight, 0.3)
    return networks


def keys(count: int, master: bytes = bytes(32)) -> list[FaceKey]:
    return [Key(master).face(bytes(16), "dbaf-official", i) for i in range(count)]


def pictures(count: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    return torch.rand(count, 3, 256, 256, generator=rng) * 2 - 1, torch.ones(count, 1, 256, 256)


@pytest.mark.parametrize("direction", ["anonymize", "recover"])
def test_no_face_sees_its_companions(networks: OfficialDBAF, direction: str) -> None:
    faces, masks = pictures(2)
    run = getattr(OfficialDBAFBackend(networks), direction)
    batched = run(faces, masks, keys(2))
    singles = [run(faces[i : i + 1], masks[i : i + 1], keys(2)[i : i + 1]) for i in range(2)]
    assert torch.equal(batched, torch.cat(singles)) and batched.abs().max() <= 1
    with torch.no_grad():  # the networks themselves would let it
        codes = torch.randn(2, 14, 16)
        assert not torch.allclose(networks.disentangler(codes)[:1], networks.disentangler(codes[:1]), atol=1e-3)


def test_the_key_moves_the_face_and_each_level_has_its_own(networks: OfficialDBAF) -> None:
    backend = OfficialDBAFBackend(networks)
    faces, masks = pictures(1)
    first, second = (backend.anonymize(faces, masks, keys(1, master)) for master in (bytes(32), b"\1" + bytes(31)))
    assert not torch.allclose(first, second, atol=1e-3)
    drawn = backend._drawn(keys(1)[0])[0]
    assert drawn.shape == (len(LEVELS), 16) and not torch.isclose(drawn[0], drawn[1]).any()
    code = networks.key_code(drawn[None])
    assert torch.equal(code[:, 0], code[:, 3]) and not torch.equal(code[:, 3], code[:, 4])


def test_attribute_maps_stand_in_for_stored_noise(networks: OfficialDBAF) -> None:
    codes, (images, _) = torch.randn(1, 14, 16), pictures(1)
    with torch.no_grad():
        maps = networks.attributes(networks.encoder.features(images))
        assert [m.shape[-1] for m in maps] == [16, 32, 64]
        plain = networks.generator(codes)
        stored = tuple(networks.generator.noises.maps()[i] for i in (3, 5, 7))
        networks.generator.noises.noise_4.copy_(stored[0])
        networks.generator.noises.noise_6.copy_(stored[1])
        networks.generator.noises.noise_8.copy_(stored[2])
        same = networks.render(codes, stored)
        torch.testing.assert_close(same, networks.generator(codes))
        assert not torch.allclose(same, plain)


def save(networks: OfficialDBAF, folder: Path) -> None:
    """The six files as their authors might wrap them."""
    inversion, start = PSp(SMALL.generator, offsets=True, backbone=SMALL.backbone), StyleGAN2(SMALL.generator)
    inversion.encoder, start.style = networks.encoder, networks.key_mapping
    contents = {
        "encoder": {"state_dict": inversion.state_dict(), "latent_avg": torch.ones(16), "opts": Namespace(device="x")},
        "disentangler": networks.disentangler.state_dict(),
        "attributes": {f"module.{name}": value for name, value in networks.attributes.state_dict().items()},
        "anonymizer": {"state_dict": networks.anonymizer.state_dict()},
        "generator": networks.generator.state_dict(),
        "key_mapping": {"g_ema": start.state_dict(), "latent_avg": torch.zeros(16)},
    }
    for part, content in contents.items():
        torch.save(content, folder / weights.entry(ENTRIES[part]).file)


def test_the_authors_files_load(tmp_path: Path, networks: OfficialDBAF) -> None:
    save(networks, tmp_path)
    loaded = OfficialDBAFBackend.from_folder(tmp_path, params=SMALL)
    assert torch.equal(loaded.networks.latent_avg, torch.ones(14, 16))
    networks.latent_avg.fill_(1)
    direct = OfficialDBAFBackend(networks)
    assert loaded.digest() == direct.digest()
    faces, masks = pictures(1)
    assert torch.equal(loaded.anonymize(faces, masks, keys(1)), direct.anonymize(faces, masks, keys(1)))


def test_what_is_missing_is_named(tmp_path: Path, networks: OfficialDBAF, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANONFACE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(WeightsError, match="refused"):
        build("dbaf-official", torch.device("cpu"))
    with pytest.raises(UsageError, match="no setting 'refine'"):
        build("dbaf-official", torch.device("cpu"), {"refine": 3})
    with pytest.raises(WeightsError, match=r"no e4e_ffhq_encode_256.pt"):
        build("dbaf-official", torch.device("cpu"), {"model": str(tmp_path)})
    save(networks, tmp_path)
    inversion = PSp(SMALL.generator, offsets=True, backbone=SMALL.backbone)
    torch.save({"state_dict": inversion.state_dict()}, tmp_path / "e4e_ffhq_encode_256.pt")
    with pytest.raises(WeightsError, match="latent_avg"):
        OfficialDBAFBackend.from_folder(tmp_path, params=SMALL)


def test_there_is_nothing_to_set(networks: OfficialDBAF) -> None:
    backend = OfficialDBAFBackend(networks)
    assert backend.parameters() == {} and backend.under({}) is backend
    with pytest.raises(UsageError, match="no setting 'refine'"):
        backend.under({"refine": 3})
    with pytest.raises(ValueError, match="256 px"):
        backend.anonymize(torch.zeros(1, 3, 128, 128), torch.zeros(1, 1, 128, 128), keys(1))
    with pytest.raises(ValueError, match="2 keys"):
        backend.anonymize(*pictures(1), keys(2))


def test_another_generator_s_levels_are_refused() -> None:
    with pytest.raises(ValueError, match="14 styles"):
        OfficialDBAFParams(generator=StyleGAN2Params(size=1024))
