"""Two processes train one network: with averaged gradients and rows of their own."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from anonface.training.loop import step_generator

SCRIPT = """
import sys
from pathlib import Path
import torch
from torch import nn
from anonface.training.loop import LoopSettings, Objective, train
from anonface.training.processes import join

class Mean(Objective):
    def __init__(self):
        torch.manual_seed(join()[0])  # the first one's weights count
        self.net = nn.Linear(1, 1, bias=False)
        self.net.spare = nn.Parameter(torch.zeros(2))  # without a gradient
    def modules(self):
        return {"net": self.net}
    def losses(self, rng, step):
        wanted = float(join()[0])  # 0 in one process, 1 in the other
        return {"square": (self.net.weight - wanted).square().mean()}

rows = list(train(Mean(), LoopSettings(Path(sys.argv[1]), 200, rate=0.05, betas=(0.9, 0.99), save_every=200)))
assert len(rows) == 200
"""


@pytest.mark.slow
def test_gradients_of_two_processes_are_averaged(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run([*launch, str(script), str(tmp_path / "out")], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(load_file(tmp_path / "out" / "net.safetensors")["weight"]) == pytest.approx(0.5, abs=0.02)
    assert len((tmp_path / "out" / "losses.csv").read_text().splitlines()) == 201


def test_every_process_draws_rows_of_its_own() -> None:
    drawn = {float(torch.randn((), generator=step_generator(1, 0, process))) for process in range(4)}
    assert len(drawn) == 4
