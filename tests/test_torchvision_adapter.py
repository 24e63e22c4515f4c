from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from anonface.torchvision_adapter import suppress

# torchvision without its compiled library is what a build for another torch amounts to.
WITHOUT_OPERATORS = """
import torch
def refuse(path):
    raise OSError("built for another torch")
torch.ops.load_library = refuse
try:
    import torchvision
except RuntimeError as error:
    assert "torchvision::nms does not exist" in str(error)
else:
    raise SystemExit("the mismatch could not be simulated")
"""

DETECT = """
import numpy, torch
from anonface import torchvision_adapter
assert torchvision_adapter.repair_torchvision() is True
assert torchvision_adapter.repair_torchvision() is True
retinaface = torchvision_adapter.load("facexlib.detection.retinaface")
torch.manual_seed(0)
network = retinaface.RetinaFace(network_name="mobile0.25", device="cpu")
torch.set_grad_enabled(False)
found = network.detect_faces(numpy.full((96, 96, 3), 128, numpy.uint8), conf_threshold=0.0)
assert found.shape[1] == 15, found.shape
from torchvision.ops import nms
assert nms(torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 2]]), torch.tensor([0.5, 0.9]), 0.5).tolist() == [1]
torchvision_adapter.load("diffusers").UNet2DModel
"""

UNTOUCHED = """
import torch
from anonface import torchvision_adapter
assert torchvision_adapter.repair_torchvision() is False
assert torchvision_adapter.load("torchvision").ops.nms() == "its own"
assert not hasattr(torch.ops.torchvision, "nms")
"""


def python(script: str, *paths: Path) -> None:
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {[str(path) for path in paths]!r}\n{script}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr


def fake_torchvision(folder: Path, content: str) -> None:
    (folder / "torchvision").mkdir()
    (folder / "torchvision" / "__init__.py").write_text(content)


@pytest.mark.slow
def test_facexlib_and_diffusers_run_beside_a_mismatched_torchvision() -> None:
    python(WITHOUT_OPERATORS + DETECT)


def test_a_sound_torchvision_is_left_alone(tmp_path: Path) -> None:
    fake_torchvision(tmp_path, "class ops:\n    nms = staticmethod(lambda: 'its own')\n")
    python(UNTOUCHED, tmp_path)


def test_an_absent_torchvision_is_no_fault() -> None:
    absent = "import sys; sys.meta_path.insert(0, Absent())"
    finder = (
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torchvision':\n"
        "            raise ModuleNotFoundError(name=name)\n"
    )
    check = "from anonface import torchvision_adapter\nassert torchvision_adapter.repair_torchvision() is False\n"
    python(f"{finder}{absent}\n{check}")


@pytest.mark.parametrize("failure", ["RuntimeError('out of order')", "ModuleNotFoundError(name='PIL')"])
def test_other_failures_are_passed_on(tmp_path: Path, failure: str) -> None:
    fake_torchvision(tmp_path, f"raise {failure}\n")
    kind = failure.partition("(")[0]
    check = (
        "from anonface import torchvision_adapter\n"
        f"try:\n    torchvision_adapter.repair_torchvision()\nexcept {kind}:\n    pass\n"
        "else:\n    raise SystemExit(1)\n"
    )
    python(check, tmp_path)


def test_suppression_keeps_the_best_of_overlapping_boxes() -> None:
    boxes = torch.tensor([[0, 0, 10, 10], [1, 1, 11, 11], [20, 20, 30, 30], [0, 0, 10, 5]], dtype=torch.float32)
    scores = torch.tensor([0.8, 0.9, 0.3, 0.7])
    # Overlaps: 0 with 1 81/119, 0 with 3 50/100, 1 with 3 36/114.
    assert suppress(boxes, scores, 0.5).tolist() == [1, 3, 2]
    assert suppress(boxes, scores, 0.7).tolist() == [1, 0, 3, 2]
    assert suppress(boxes, scores, 0.3).tolist() == [1, 2]
    assert suppress(boxes[:0], scores[:0], 0.5).tolist() == []
