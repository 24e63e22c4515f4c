"""The help of every command: plain sentences, groups, examples that are valid, and former names that still work."""

import json
import re
import shlex
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from anonface.__main__ import main as entry_point
from anonface.cli.app import app
from anonface.cli.examples import EXAMPLES, FIRST_STEPS, WEIGHTS_STEPS
from anonface.cli.help import FORMER_NAMES, quick_help

ROOT = typer.main.get_command(app)
REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


def commands(group=ROOT, prefix=()):
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, (*prefix, name))
        else:
            yield " ".join((*prefix, name)), command


COMMANDS = dict(commands())


def parsed(line):
    """Parse a command line without running it."""
    words = shlex.split(re.split(r"\s[<>]\s", line)[0], comments=True)
    assert words.pop(0) == "anonface"
    command = ROOT
    while isinstance(command, TyperGroup):
        command = command.commands[words.pop(0)]
    return command.make_context(command.name, words).params


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_is_one_plain_sentence(name):
    parameters = [p for p in COMMANDS[name].params if not getattr(p, "hidden", False)]
    for parameter in parameters:
        text = parameter.help or ""
        assert text.endswith(".") and text[0].isupper(), f"{parameter.name}: {text!r}"
        assert not re.search(r"[.!?:]\s+[A-Z]", text.removesuffix(".")), f"{parameter.name} has two sentences: {text!r}"
        assert len(text.split()) < 20, f"{parameter.name} has {len(text.split())} words"


@pytest.mark.parametrize("name", ["anonymize", "recover", "compare", "evaluate", "audit"])
def test_options_are_grouped(name):
    options = [p for p in COMMANDS[name].params if p.param_type_name == "option"]
    assert all(option.rich_help_panel for option in options)
    groups = list(dict.fromkeys(option.rich_help_panel for option in options))
    headings = re.findall(r"^(\w[\w ]*):$", quick_help(ROOT, [name, "--help"]), re.MULTILINE)
    assert headings == ["Arguments", *groups, "Options", "Examples"]


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_a_terminal(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = quick_help(ROOT, [*name.split(), "--help"])
    assert max(map(len, text.splitlines())) <= 80 and "\N{NO-BREAK SPACE}" not in text


def test_quick_help_is_the_help(anonface, room):
    for name in ("anonymize", "weights list", "weights"):
        assert anonface(*name.split(), "--help")[1].strip() == quick_help(ROOT, [*name.split(), "--help"]).strip()
    assert quick_help(ROOT, ["anonimize", "--help"]) is None and quick_help(ROOT, ["anonymize"]) is None
    assert anonface("weights", "lost", "--help")[0] == 2


def test_every_command_has_examples():
    assert set(EXAMPLES) == set(COMMANDS)
    for name, text in EXAMPLES.items():
        lines = text.splitlines()
        assert 2 <= len(lines) <= 5 and f"anonface {name} " in f"{lines[-1]} "


@pytest.mark.parametrize("name", ["", "weights", *COMMANDS])
def test_every_help_ends_with_examples(name):
    assert re.search(r"\nExamples:\n(  anonface .*\n?){2,5}$", quick_help(ROOT, [*name.split(), "--help"]))


@pytest.mark.parametrize(
    "line", [line for text in (FIRST_STEPS, WEIGHTS_STEPS, *EXAMPLES.values()) for line in text.splitlines()]
)
def test_examples_are_valid(line):
    parsed(line)


def test_usage_names_the_arguments():
    usage = {name: quick_help(ROOT, [*name.split(), "--help"]).splitlines()[0] for name in COMMANDS}
    assert usage["anonymize"] == "Usage: anonface anonymize [OPTIONS] PATH..."
    assert usage["weights pull"] == "Usage: anonface weights pull [OPTIONS] [NAME...]"
    assert usage["evaluate"] == "Usage: anonface evaluate [OPTIONS] [DIR]"


def test_the_commands_of_the_documents_are_valid(room):
    Path("PHOTOS").mkdir()  # of the training page; typer looks whether it exists
    lines = [
        (document, line)
        for document in DOCUMENTS
        for text in re.findall(r"^    (anonface .*)$", document.read_text("utf-8"), re.MULTILINE)
        for line in text.split(" && ")
    ]
    assert len(lines) > 20
    for document, line in lines:
        line = re.split(r"\s[<>]\s|\s{2,}|\s->|\.\.\.| -> |#", line)[0]
        if "|" in line or line.split()[1] == "--debug":
            continue
        try:
            parsed(line)
        except typer.TyperException as error:
            pytest.fail(f"{document.name}: {line}: {error.format_message()}")


@pytest.mark.parametrize(
    ("name", "former", "present"),
    [(name, *pair) for name, renamed in FORMER_NAMES.items() for pair in renamed.items()],
)
def test_former_names_of_options_still_work_and_are_not_shown(name, former, present):
    needed = {"compare": "photo.jpg -o sheet.png", "evaluate": "album", "audit": "album"}[name]
    for line in (f"{former} 7", f"{former}=7"):
        assert parsed(f"anonface {name} {needed} {line}") == parsed(f"anonface {name} {needed} {present} 7")
    text = quick_help(ROOT, [name, "--help"])
    assert re.search(f"{present}\\b", text) and not re.search(f"{former}(?![\\w-])", text)


def test_what_follows_two_dashes_is_no_option():
    assert parsed("anonface compare -o sheet.png -- --beside")["paths"] == ["--beside"]


@pytest.mark.parametrize("args", [["--help"], ["anonymize", "--help"]])
def test_help_loads_nothing_heavy(args):
    code = (
        "import json, sys, time\n"
        "from anonface.cli import app\n"
        f"assert app.run({args}) == 0\n"
        "heavy = {'torch', 'numpy', 'cv2', 'PIL', 'rich', 'cryptography', 'pydantic'} & set(sys.modules)\n"
        "print(json.dumps([time.process_time(), *heavy]), file=sys.stderr)\n"
    )

    def seconds():
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        used, *heavy = json.loads(done.stderr)
        assert not heavy and "anonymize" in done.stdout
        return used

    started = time.perf_counter()
    assert min(seconds() for _ in range(4)) < 0.3, time.perf_counter() - started


def test_the_installed_command_is_the_module():
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    assert scripts == {"anonface": f"{entry_point.__module__}:{entry_point.__name__}"}
    code = "import sys; from anonface.__main__ import main; sys.argv[1:] = ['--version']; main()"
    runs = ([sys.executable, "-m", "anonface", "--version"], [sys.executable, "-c", code])
    first, second = (subprocess.run(run, capture_output=True, text=True, check=True).stdout for run in runs)
    assert first == second and first.startswith("anonface ")
