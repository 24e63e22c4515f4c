"""The training loop: it learns, saves, and a resumed run is the run that was not interrupted."""

import csv
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from anonface.training.loop import LoopSettings, Objective, step_generator, train


class Line(Objective):
    """Fits y = 3 x + 1 from random draws."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Linear(1, 1)

    def modules(self) -> dict[str, nn.Module]:
        return {"line": self.net}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        x = torch.randn(16, 1, generator=rng)
        return {"square": (self.net(x) - 3 * x - 1).square().mean(), "_drawn": x[0, 0]}


def settings(folder: Path, steps: int) -> LoopSettings:
    return LoopSettings(folder, steps, rate=0.1, betas=(0.9, 0.99), save_every=10, clip=100)


def test_it_learns_and_saves_half_precision(tmp_path):
    rows = list(train(Line(), settings(tmp_path, 300)))
    assert rows[-1]["square"] < 0.01 < rows[0]["square"]
    saved = load_file(tmp_path / "line.safetensors")
    assert saved["weight"].dtype == torch.float16 and abs(float(saved["weight"]) - 3) < 0.2


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    whole = list(train(Line(), settings(tmp_path / "whole", 40)))
    run = train(Line(), settings(tmp_path / "parts", 40))
    for _ in range(25):  # killed after 25 steps, 20 of them saved
        next(run)
    run.close()
    resumed = list(train(Line(), settings(tmp_path / "parts", 40)))
    assert [row["step"] for row in resumed] == list(range(20, 40))
    assert resumed[-1] == whole[-1]


def test_losses_are_logged_by_name(tmp_path):
    list(train(Line(), settings(tmp_path, 3)))
    with (tmp_path / "losses.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [r["step"] for r in rows] == ["0.0", "1.0", "2.0"] and float(rows[0]["square"]) > 0


def test_random_generators_of_steps_differ():
    drawn = {float(torch.randn((), generator=step_generator(seed, step))) for seed in (1, 2) for step in range(5)}
    assert len(drawn) == 10
