from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from anonface import Engine, Key
from anonface.backends.device import choose_device, devices
from anonface.errors import DeviceError, UsageError

EXAMPLE = Path(__file__).parents[2] / "examples" / "small.jpg"


def machine(monkeypatch, gpus: int, apple: bool) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: apple)


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:1", "mps"])
def test_a_device_that_is_there_is_used(monkeypatch, name):
    machine(monkeypatch, 2, True)
    assert choose_device(name) == torch.device(name) and devices() == ["cpu", "cuda:0", "cuda:1", "mps:0"]


def test_auto_is_cuda_where_there_is_one(monkeypatch):
    machine(monkeypatch, 1, False)
    assert choose_device("auto").type == "cuda"
    machine(monkeypatch, 0, True)
    assert choose_device("auto").type == "cpu"  # nobody has measured what the networks draw on the other


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps"])
def test_a_device_that_is_not_there_is_refused_with_what_is(monkeypatch, name):
    machine(monkeypatch, 0, False)
    with pytest.raises(DeviceError, match="no device") as caught:
        choose_device(name)
    assert caught.value.hint.startswith("it has cpu;")
    machine(monkeypatch, 1, False)
    if name != "cuda":
        with pytest.raises(DeviceError) as caught:
            choose_device(name)
        assert caught.value.hint.startswith("it has cpu, cuda:0;")


@pytest.mark.parametrize("name", ["gpu", "xla", "meta"])
def test_other_kinds_are_refused(name):
    with pytest.raises(UsageError):
        choose_device(name)


@pytest.mark.slow
@pytest.mark.skipif(not torch.backends.mps.is_available(), reason="this machine has no Apple GPU")
@pytest.mark.parametrize("backend", ["ifadit", "hford"])
def test_an_apple_gpu_draws_what_the_cpu_draws(backend):
    with Image.open(EXAMPLE) as picture:
        photo = np.asarray(picture.convert("RGB"))
    key = Key.from_bytes(bytes(32))
    there, here = (Engine(backend, name).anonymize(photo, key).pixels for name in ("mps", "cpu"))
    assert abs(there.astype(int) - here).mean() < 1
