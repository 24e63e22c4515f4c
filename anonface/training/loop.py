"""One resumable training loop for every objective.

A run lives in a folder: ``state.pt`` (resumable: parameters, optimiser, step), ``losses.csv``, ``sheet-*.png`` and the
deployable snapshots ``<name>.safetensors`` (fp16). Every step has a random generator seeded by (seed, step), so a
resumed run gets the same data as an uninterrupted one.
"""

from __future__ import annotations

import csv
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anonface.backends.cpu import denormals_flushed
from anonface.training.processes import any_of, average_gradients, join, share_weights


@dataclass(frozen=True)
class LoopSettings:
    """Settings of a run.

    Attributes:
        folder: the run's folder.
        steps: number of steps.
        rate: the initial learning rate; it falls linearly to a tenth over ``steps``.
        betas: of Adam; the default is the paper's, section 4.1.
        minutes: time after which the run stops early; 0: no limit.
        save_every: steps between two saves.
        clip: the largest norm of the gradient.
    """

    folder: Path
    steps: int
    rate: float = 4e-4
    betas: tuple[float, float] = (0.0, 0.999)
    seed: int = 1
    minutes: float = 0.0
    save_every: int = 100
    clip: float = 1.0


class Objective(ABC):
    """What is trained: its modules by snapshot name, the losses of one step, and a contact sheet."""

    @abstractmethod
    def modules(self) -> dict[str, nn.Module]: ...

    @abstractmethod
    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        """Named scalar losses, already weighted; their sum is minimised. Names starting with '_' are only logged."""

    def deployable(self) -> dict[str, dict[str, Tensor]]:
        """The tensors to ship, by snapshot name; by default those of all modules."""
        return {name: module.state_dict() for name, module in self.modules().items()}

    def rates(self) -> dict[str, float]:
        """By how much a module's learning rate exceeds the run's; 1 for those that are not named."""
        return {}

    def sheet(self) -> NDArray | None:
        """uint8 [H, W, 3] RGB contact sheet of held-out samples, or None."""
        return None


class Then(Objective):
    """Two objectives in sequence, the second from step ``at`` on. The modules of the second are shipped."""

    def __init__(self, first: Objective, second: Objective, at: int) -> None:
        self.first, self.second, self.at = first, second, at

    def modules(self) -> dict[str, nn.Module]:
        return {**self.first.modules(), **self.second.modules()}

    def losses(self, rng: torch.Generator, step: int) -> dict[str, Tensor]:
        return (self.first if step < self.at else self.second).losses(rng, step)

    def deployable(self) -> dict[str, dict[str, Tensor]]:
        return self.second.deployable()

    def sheet(self) -> NDArray | None:
        return self.second.sheet()


def step_generator(seed: int, step: int, process: int = 0) -> torch.Generator:
    """The random generator of one step, a function of (seed, step, process) alone."""
    mixed = np.random.SeedSequence([seed, step, process] if process else [seed, step]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed) & 0x7FFF_FFFF_FFFF_FFFF)


def train(objective: Objective, settings: LoopSettings) -> Iterator[dict[str, float]]:
    """Run or resume; yields the logged losses after every step.

    Of several processes (``training.processes``) each takes as many rows a step; the first one logs and saves.
    """
    process, processes = join()
    settings.folder.mkdir(parents=True, exist_ok=True)
    described = {**asdict(settings), "folder": settings.folder.name}
    (settings.folder / "settings.json").write_text(json.dumps(described, indent=1))
    modules = objective.modules()
    groups: dict[float, list[nn.Parameter]] = {}
    for name, module in modules.items():
        learned = [parameter for parameter in module.parameters() if parameter.requires_grad]
        groups.setdefault(objective.rates().get(name, 1.0), []).extend(learned)
    parameters = [parameter for group in groups.values() for parameter in group]
    apart = [{"params": group} for group in groups.values()]
    optimiser = torch.optim.Adam(apart, lr=settings.rate, betas=settings.betas, fused=True)
    first = _resume(settings.folder / "state.pt", modules, optimiser)
    if processes > 1:
        share_weights(modules.values())
    started = time.monotonic()
    for step in range(first, settings.steps):
        for factor, group in zip(groups, optimiser.param_groups, strict=True):
            group["lr"] = factor * settings.rate * (1.0 - 0.9 * step / settings.steps)
        with denormals_flushed():
            losses = objective.losses(step_generator(settings.seed, step, process), step)
            total = torch.stack([v for k, v in losses.items() if not k.startswith("_")]).sum()
            optimiser.zero_grad(set_to_none=True)
            total.backward()
        if processes > 1:
            average_gradients(parameters, processes)
        norm = nn.utils.clip_grad_norm_(parameters, settings.clip)
        if torch.isfinite(norm):
            optimiser.step()
        row = {"step": float(step), "total": float(total.detach()), **{k: float(v.detach()) for k, v in losses.items()}}
        if process == 0:
            _log(settings.folder / "losses.csv", row)
        yield row
        over = bool(settings.minutes) and time.monotonic() - started > settings.minutes * 60
        over = over if processes == 1 else any_of(over)
        due = (step + 1) % settings.save_every == 0 or step + 1 == settings.steps or over
        if due and process == 0:
            _save(settings.folder, objective, optimiser, step + 1)
        if over:
            return


def _resume(path: Path, modules: dict[str, nn.Module], optimiser: torch.optim.Optimizer) -> int:
    if not path.exists():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    for name, module in modules.items():
        module.load_state_dict(state["modules"][name])
    optimiser.load_state_dict(state["optimiser"])
    return int(state["step"])


def _save(folder: Path, objective: Objective, optimiser: torch.optim.Optimizer, step: int) -> None:
    from safetensors.torch import save_file

    modules = {name: module.state_dict() for name, module in objective.modules().items()}
    torch.save({"modules": modules, "optimiser": optimiser.state_dict(), "step": step}, folder / "state.tmp")
    (folder / "state.tmp").replace(folder / "state.pt")
    for name, state in objective.deployable().items():
        kept = {k: v.detach().cpu() for k, v in state.items() if not k.endswith("num_batches_tracked")}
        save_file({k: v.to(torch.float16).contiguous() for k, v in kept.items()}, str(folder / f"{name}.safetensors"))
    picture = objective.sheet()
    if picture is not None:
        import cv2

        (folder / f"sheet-{step:06d}.png").write_bytes(cv2.imencode(".png", picture[:, :, ::-1])[1].tobytes())


def _log(path: Path, row: dict[str, float]) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row), extrasaction="ignore")
        if new:
            writer.writeheader()
        writer.writerow(row)
