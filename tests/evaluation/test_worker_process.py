"""Two processes measure what one would."""

import os
import pickle
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from colours import Colour, Perfect, Reddish, WholePictures, coloured_people

from anonface.cli import engines
from anonface.cli import evaluate as evaluate_module
from anonface.errors import OutputError
from anonface.evaluation.judges import Judges
from anonface.evaluation.run import evaluate
from anonface.evaluation.trials import Plan
from anonface.evaluation.worker_process import Worker
from anonface.pipeline import Engine

JUDGES = partial(WholePictures, Colour(), [Reddish()])


class Counting(Perfect):
    """Knows how often it was asked to hide a face."""

    def __init__(self):
        super().__init__()
        self.hidden = 0

    def anonymize(self, pixels, key, *, consistent):
        self.hidden += 1
        return super().anonymize(pixels, key, consistent=consistent)


class Mortal(Counting):
    """Takes its process along when it meets the third face."""

    def anonymize(self, pixels, key, *, consistent):
        if self.hidden == 2:
            os._exit(1)
        return super().anonymize(pixels, key, consistent=consistent)


def failing():
    raise OutputError("no room")


def distances(report):
    return {name: sorted(rows) for name, rows in report.samples.items() if name not in ("anonymize", "recover")}


@pytest.mark.slow
@pytest.mark.parametrize(("other", "here"), [(Perfect, 4), (Mortal, 6), (failing, 8)])
def test_every_photo_is_measured_once_whatever_becomes_of_the_other_process(tmp_path, other, here):
    folder, alone, engine = coloured_people(tmp_path), Perfect(), Counting()
    steps, pictures = [], {}
    journal = tmp_path / "run.jsonl"
    report = evaluate(
        engine,
        folder,
        Plan(1),
        judges=JUDGES(),
        journal=journal,
        worker=Worker(other, JUDGES),
        progress=lambda done, total: steps.append((done, total)),
        show=lambda original, versions: pictures.setdefault(original.file.name, versions),
    )
    assert engine.hidden == here
    assert steps == [(done, 8) for done in range(1, 9)]
    assert sorted(pictures) == sorted(file.name for file in folder.glob("*.png"))
    assert all((versions[0] == versions[2]).all() for versions in pictures.values())  # recovered
    assert len(journal.read_text().splitlines()) == 1 + 8
    assert distances(report) == distances(evaluate(alone, folder, Plan(1), judges=JUDGES()))


@pytest.mark.parametrize(
    ("device", "threads", "there"), [("cpu (2 threads)", 2, True), ("cpu", 1, False), ("cuda:0", 2, False)]
)
def test_it_is_for_several_cores(monkeypatch, device, threads, there):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    settings = engines.EngineSettings("ifadit", "cpu", "yunet", "trained", 7)
    worker = evaluate_module._worker(
        SimpleNamespace(device_name=device), settings, partial(Judges, embedders=("sface",))
    )
    assert (worker is not None) == there
    if worker:
        told = pickle.loads(pickle.dumps(worker))
        assert told.judges.func is Judges and told.judges.keywords == {"embedders": ("sface",)}
        assert told.engine.func is Engine and told.engine.args[4] == 7
