"""Runs over a local Ray cluster of two workers, of which some die. Skipped where Ray is not installed."""

import os
import pickle
import signal
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fake import FakeEngine
from PIL import Image

from anonface.batch import ray_run, task
from anonface.batch import run as run_module
from anonface.batch.journal import Journal
from anonface.batch.plan import plan
from anonface.batch.run import Rules
from anonface.batch.task import Anonymizing, Recovering
from anonface.crypto.keys import Key, write_key_file
from anonface.errors import DeviceError, UsageError, WeightsError
from anonface.images import write_together

PHOTOS = 8
PATIENCE = 600  # seconds: on a busy machine Ray's workers need minutes to begin


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray")
    package = Path(run_module.__file__).parents[2]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        environment.setenv(
            "PYTHONPATH", os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[1], package)))
        )
        ray.init(num_cpus=2, log_to_driver=False, logging_level="error", include_dashboard=False)
        yield ray
        ray.shutdown()


@pytest.fixture
def album(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("album").mkdir()
    Path("notes").mkdir()
    for n in range(PHOTOS):
        Image.new("RGB", (40, 32), (50 + n, 20, 10)).save(f"album/{n}.png")
    write_key_file(tmp_path / "k.bin", Key.generate())
    return tmp_path


def workers(notes):
    """The processes that have begun a photo."""
    return {int(file.stem.split("-")[1]) for file in notes.glob("*.begun")}


class Patient(FakeEngine):
    """Notes in a file of its name which process does a photo."""

    notes = Path()

    def anonymize(self, pixels, key, **options):
        (self.notes / f"{pixels[0, 0, 0] - 50}-{os.getpid()}.begun").touch()
        patience = time.monotonic() + PATIENCE
        while len(workers(self.notes)) < 2 and time.monotonic() < patience:
            time.sleep(0.01)  # until both have come, so that both take part
        return super().anonymize(pixels, key, **options)


def once(file):
    """Whether this is the first process to ask."""
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def make(folder, death=None, photo=None):
    """A worker's task, made on the worker: the key is read there. Its process dies at one photo, the first time."""
    notes = folder / "notes"

    def write(files, overwrite=False, bound=False):
        path, _ = files[-1]
        fatal = path.name == f"{photo}.anon.png"
        if fatal and death == "before" and once(notes / "death"):
            os.kill(os.getpid(), signal.SIGKILL)
        write_together(files, overwrite, bound)
        with (notes / "written").open("a") as log:
            log.write(f"{path.name}\n")
        if fatal and death == "after" and once(notes / "death"):
            os.kill(os.getpid(), signal.SIGKILL)

    task.write_together = write
    Patient.notes = notes
    return Anonymizing(Key.from_file(folder / "k.bin"), Patient)


def told(jobs, task, **options):
    outcomes = []
    ray_run.run(jobs, task, outcomes.append, workers=2, **options)
    return outcomes


def written():
    return sorted(Path("notes/written").read_text().split())


def all_led_back(folder):
    task = Recovering(Key.from_file("k.bin"), FakeEngine)
    outcomes = []
    run_module.run(plan([folder], "recover", output="back"), task, outcomes.append)
    return [o.state for o in outcomes] == ["done"] * PHOTOS and all(
        (np.asarray(Image.open(f"back/{n}.recovered.png")) == np.asarray(Image.open(f"album/{n}.png"))).all()
        for n in range(PHOTOS)
    )


EVERYTHING = [f"{n}.anon.png" for n in range(PHOTOS)]


def test_every_photo_once_by_two_workers(ray, album):
    outcomes = told(plan(["album"], "anonymize", output="out"), partial(make, album))
    assert [(str(o.job.source), o.state) for o in outcomes] == [(f"album/{n}.png", "done") for n in range(PHOTOS)]
    assert written() == EVERYTHING and all_led_back("out")
    assert len(workers(Path("notes"))) == 2


@pytest.mark.parametrize("death", ["before", "after"])
def test_a_worker_dies_at_its_writing(ray, album, death):
    journal = Journal(album / "run.journal")
    jobs = plan(["album"], "anonymize", output="out")
    outcomes = told(jobs, partial(make, album, death, photo=3), rules=Rules(journal=journal))
    assert Path("notes/death").exists()
    assert [o.state for o in outcomes] == ["done"] * PHOTOS and written() == EVERYTHING and all_led_back("out")
    assert len(list(Path("notes").glob("3-*.begun"))) == (2 if death == "before" else 1)


def recovering(folder):
    """Sealed originals need no engine: there is none."""
    return Recovering(Key.from_file(folder / "k.bin"), original_suffix=True, engine=lambda: 1 / 0)


def test_sealed_originals_come_back(ray, album):
    for file in sorted(Path("album").iterdir()):
        Image.open(file).save(file.with_suffix(".jpg"))
        file.unlink()
    told(plan(["album"], "anonymize", output="out"), partial(make, album))
    journal = Journal(album / "run.journal")
    outcomes = told(plan(["out"], "recover", output="back"), partial(recovering, album), rules=Rules(journal=journal))
    assert [(str(o.job.target), o.tier, o.verified) for o in outcomes] == [
        (f"back/{n}.recovered.jpg", "file", "yes") for n in range(PHOTOS)
    ]
    assert all(o.job.target.read_bytes() == Path(f"album/{n}.jpg").read_bytes() for n, o in enumerate(outcomes))
    again = Journal(album / "run.journal", resumed=[""])
    assert all(again.finished(job.outputs) for job in plan(["out"], "recover", output="back"))


class Stuck(Patient):
    """The first process at photo 4 stays there."""

    def anonymize(self, pixels, key, **options):
        if pixels[0, 0, 0] == 54 and once(self.notes / "stuck"):
            (self.notes / "pid").write_text(f"{os.getpid()}.")
            time.sleep(PATIENCE)
        return super().anonymize(pixels, key, **options)


def make_stuck(folder):
    return replace(make(folder), engine=Stuck)


def kill_the_stuck_one(notes):
    patience = time.monotonic() + PATIENCE
    while not (pid := notes / "pid").exists() or not pid.read_text().endswith("."):
        if time.monotonic() > patience:
            return
        time.sleep(0.01)
    os.kill(int(pid.read_text()[:-1]), signal.SIGKILL)
    (notes / "killed").touch()


def test_a_worker_is_killed_over_a_photo(ray, album):
    killer = threading.Thread(target=kill_the_stuck_one, args=(album / "notes",), daemon=True)
    killer.start()
    outcomes = told(plan(["album"], "anonymize", output="out"), partial(make_stuck, album))
    killer.join()
    assert Path("notes/killed").exists()
    assert [(str(o.job.source), o.state) for o in outcomes] == [(f"album/{n}.png", "done") for n in range(PHOTOS)]
    assert written() == EVERYTHING and all_led_back("out")


def deadly(folder):
    class Deadly(FakeEngine):
        def anonymize(self, pixels, key, **options):
            if pixels[0, 0, 0] == 51:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().anonymize(pixels, key, **options)

    return Anonymizing(Key.from_file(folder / "k.bin"), Deadly)


def test_a_photo_that_kills_its_workers_is_given_up(ray, album):
    outcomes = told(plan(["album"], "anonymize", output="out"), partial(deadly, album))
    assert [o.state for o in outcomes] == ["done", "failed", *["done"] * (PHOTOS - 2)]
    assert isinstance(outcomes[1].error, DeviceError) and not outcomes[1].ends


def without_weights(folder):
    def engine():
        raise WeightsError("weights 'generator' could not be had", "unset ANONFACE_OFFLINE")

    return Anonymizing(Key.from_file(folder / "k.bin"), engine)


def test_what_concerns_every_photo_ends_the_run(ray, album):
    outcomes = told(plan(["album"], "anonymize", output="out"), partial(without_weights, album))
    assert 1 <= len(outcomes) <= 2 and outcomes[-1].ends and outcomes[-1].error.exit_code == 9


def test_an_interrupt_ends_the_workers(ray, album):
    outcomes = []

    def tell(outcome):
        outcomes.append(outcome)
        if len(outcomes) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ray_run.run(plan(["album"], "anonymize", output="out"), partial(make, album), tell, workers=2)
    there = sorted(file.name for file in Path("out").iterdir())
    assert 2 <= len(outcomes) < PHOTOS
    assert there == sorted(o.job.target.name for o in outcomes)


def test_no_key_passes_through_ray(ray, album):
    key = Key.from_file("k.bin")
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(key)
    with pytest.raises(TypeError, match="never pickled"):
        ray.put(key)
    told(plan(["album"], "anonymize", output="out"), partial(make, album))
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    secrets = key.to_text().encode(), key._secret
    logs = [file for file in session.rglob("*") if file.is_file()]
    assert logs and not [file for file in logs if any(secret in file.read_bytes() for secret in secrets)]


def test_without_ray_it_says_what_to_install(album, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError) as caught:
        told(plan(["album"], "anonymize", output="out"), partial(make, album))
    assert "[ray]" in caught.value.hint and not Path("out").exists()
