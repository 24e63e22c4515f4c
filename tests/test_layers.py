"""Imports point one way: what a room may know is written down here."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import anonface

PACKAGE = Path(anonface.__file__).parent

# Room by room, leaves first, what each may import of the package. Rooms see their own files besides.
MAY_IMPORT = {
    "errors": set(),
    "signals": set(),
    "streams": {"errors"},
    "torchvision_adapter": set(),
    "crypto": {"errors"},
    "record": {"errors", "crypto"},
    "images": {"errors"},
    "weights": {"errors"},
    "models": {"torchvision_adapter", "weights.conversion"},
    "faces": {"errors", "torchvision_adapter", "crypto", "weights", "models"},
    "watermark": {"crypto", "faces", "models"},
    "backends": {"errors", "crypto", "weights", "models", "faces", "watermark"},
    "verification": {"errors", "crypto", "record", "watermark"},
    "checks": {"record", "faces"},
    "pipeline": {"errors", "crypto", "record", "faces", "watermark", "backends", "verification", "checks"},
    "batch": {"errors", "signals", "streams", "crypto", "record", "images", "faces.locate", "pipeline"},
    "api": {"errors", "crypto", "record", "images", "faces.detect", "faces.locate", "pipeline", "batch.task"},
    "annotations": {"errors", "images"},
    "training": {"errors", "crypto", "weights", "models", "faces", "watermark", "backends"},
    "evaluation": {
        *{"errors", "torchvision_adapter", "crypto", "record", "images", "weights", "models", "faces", "watermark"},
        *{"backends", "pipeline"},
    },
    "review": {"errors", "images", "record", "faces", "checks", "batch"},
    "__init__": {"crypto", "pipeline", "api"},
}
MAY_IMPORT["cli"] = {*MAY_IMPORT, "__version__"}
MAY_IMPORT["__main__"] = {"signals", "cli"}


def modules():
    return sorted(file.relative_to(PACKAGE) for file in PACKAGE.rglob("*.py"))


def imported(file):
    """Dotted names below the package that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse((PACKAGE / file).read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.removeprefix("anonface.") for name in names if name.startswith("anonface."))


def allowed(room, name):
    return name.split(".")[0] == room or any(f"{name}.".startswith(f"{other}.") for other in MAY_IMPORT[room])


@pytest.mark.parametrize("file", modules(), ids=str)
def test_a_room_imports_only_what_lies_below_it(file):
    room = file.parts[0].removesuffix(".py")
    assert room in MAY_IMPORT, f"{room} is a new room: say above what it may import"
    assert [name for name in imported(file) if not allowed(room, name)] == []


@pytest.mark.parametrize("file", ["base", "parts"])
def test_the_contract_of_backends_imports_none_of_them(file):
    others = ("crypto.", "watermark.", "backends.base.")
    assert [name for name in imported(Path(f"backends/{file}.py")) if not name.startswith(others)] == []


def test_the_rule_has_no_circle():
    seen = set()
    for room, below in MAY_IMPORT.items():
        assert {name.split(".")[0] for name in below} - {"__version__"} <= seen, room
        seen.add(room)


@pytest.mark.parametrize("file", [file for file in modules() if file.parts[0] != "cli"], ids=str)
def test_only_the_command_line_prints_or_exits(file):
    names = {node.id for node in ast.walk(ast.parse((PACKAGE / file).read_text("utf-8"))) if isinstance(node, ast.Name)}
    assert not names & {"print", "exit", "quit"}
    assert "sys.exit" not in (PACKAGE / file).read_text("utf-8")


@pytest.mark.parametrize("statement", ["import anonface", "from anonface import Key", "import anonface.cli.app"])
def test_what_must_be_instant_loads_no_network_library(statement):
    heavy = "{'torch', 'cv2', 'diffusers', 'facexlib'}"
    code = f"import sys; {statement}; assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# Files and functions that are longer than the limits, and why.
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS = {
    "cli/anonymize.py:anonymize": "a parameter an option",
    "cli/anonymize.py:recover": "a parameter an option",
    "cli/compare.py:compare": "a parameter an option",
    "cli/evaluate.py:evaluate": "a parameter an option",
    "cli/audit.py:audit": "a parameter an option",
    "cli/run.py:run_photos": "the steps of a run, in order",
    "evaluation/run.py:evaluate": "the steps of the protocol, in order",
    "pipeline.py:anonymize": "the steps of one photo, in order",
}


@pytest.mark.parametrize("file", modules(), ids=str)
def test_no_file_or_function_is_long(file):
    text = (PACKAGE / file).read_text("utf-8")
    assert text.count("\n") <= 600 or str(file) in LONG_FILES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= 80 or f"{file}:{node.name}" in LONG_FUNCTIONS, f"{node.name}: {length} lines"


def test_test_files_have_names_of_their_own():
    """pytest imports them by their bare names."""
    names = [file.name for file in Path(__file__).parent.rglob("test_*.py")]
    assert len(names) == len(set(names))
