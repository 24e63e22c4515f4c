"""The package as users get it: built, installed into a fresh environment, run; and what the Dockerfile says."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UNIX_ONLY = ("fcntl", "grp", "pwd", "resource", "termios")
NOT_RUN = ("FROM", "ENV", "WORKDIR")  # lines of the Dockerfile that need Docker
NEEDS_NETWORK = ("apt-get", "torch torchvision")  # what no test can install


def docker_lines() -> list[tuple[str, str]]:
    text = (ROOT / "Dockerfile").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """What the Dockerfile copies, in a fresh folder."""
    folder = tmp_path_factory.mktemp("source")
    for what, rest in docker_lines():
        if what == "COPY":
            *names, target = rest.split()
            for name in names:
                assert (ROOT / name).exists(), name
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, folder / target, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / name, folder / target)
    return folder


@pytest.fixture(scope="module")
def built(source):
    subprocess.run([sys.executable, "-m", "hatchling", "build"], cwd=source, check=True, capture_output=True)
    (wheel,), (sdist,) = (source / "dist").glob("*.whl"), (source / "dist").glob("*.tar.gz")
    return wheel, sdist


@pytest.fixture(scope="module")
def python(tmp_path_factory, built):
    """The interpreter of a fresh environment with the wheel; of this one it sees the dependencies."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    options = ("--no-deps", "--no-index", "--quiet", "-c", str(ROOT / "constraints.txt"))
    subprocess.run([python, "-m", "pip", "install", *options, built[0]], check=True)
    where = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = subprocess.run([python, "-c", where], check=True, capture_output=True, text=True).stdout.strip()
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    return python


@pytest.mark.slow
def test_wheel_and_sdist_hold_what_runs_and_nothing_else(built):
    wheel, sdist = built
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        text = archive.read(metadata).decode()
    assert {"anonface/weights.toml", "anonface/py.typed", "anonface/__main__.py"} <= set(names)
    assert all(re.match(r"anonface[/-]", name) for name in names) and not any("__pycache__" in name for name in names)
    assert "Typing :: Typed" in text and "Requires-Dist: torch" in text
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "weights.toml", "anonface/__init__.py", "LICENSE"} <= inside


@pytest.mark.slow
def test_the_wheel_runs_in_a_fresh_environment_without_the_modules_that_windows_lacks(python, tmp_path):
    site = tmp_path / "blocked"
    site.mkdir()
    for name in UNIX_ONLY:
        (site / f"{name}.py").write_text(f"raise ModuleNotFoundError(name={name!r})")
    shutil.copy(ROOT / "examples" / "small.jpg", tmp_path / "a.jpg")
    environment = {**os.environ, "PYTHONPATH": str(site)}
    for line in (
        "keygen my.key",
        "anonymize a.jpg --key-file my.key -o b.png",
        "recover b.png --key-file my.key -o c.jpg",
    ):
        told = subprocess.run(
            [python, "-m", "anonface", *line.split()], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert told.returncode == 0, told.stderr
    assert (tmp_path / "c.jpg").read_bytes() == (tmp_path / "a.jpg").read_bytes()
    where = subprocess.run(
        [python, "-c", "import anonface; print(anonface.__file__)"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    ).stdout
    assert str(python.parents[1]) in where


@pytest.mark.slow
def test_every_line_of_the_dockerfile_is_run_or_known_to_need_docker_or_the_network(python):
    for what, rest in docker_lines():
        if what == "RUN" and not any(part in rest for part in NEEDS_NETWORK):
            assert rest == "pip install --no-cache-dir -c constraints.txt ."  # as the fixtures do from its copies
        elif what == "ENTRYPOINT":
            (command,) = json.loads(rest)
            told = subprocess.run([python.parent / command, "--version"], check=True, capture_output=True, text=True)
            assert told.stdout.startswith("anonface ")
        else:
            assert what in (*NOT_RUN, "COPY", "RUN")
