"""Windows lacks some of Python's modules; nothing here needs one of them."""

import subprocess
import sys
from pathlib import Path

import anonface

UNIX_ONLY = ("fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "curses", "readline", "syslog")
BLOCKED = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {UNIX_ONLY!r}:
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Blocker())
for name in {UNIX_ONLY!r}:
    sys.modules.pop(name, None)
"""
MODULES = sorted(
    ".".join(file.relative_to(Path(anonface.__file__).parents[1]).with_suffix("").parts)
    for file in Path(anonface.__file__).parent.rglob("*.py")
    if file.name not in ("__init__.py", "__main__.py")
)


def run_blocked(code: str, room: Path) -> str:
    told = subprocess.run([sys.executable, "-c", BLOCKED + code], capture_output=True, text=True, cwd=room)
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_every_module_loads_without_them(tmp_path):
    run_blocked(f"import importlib\nfor name in {MODULES!r}: importlib.import_module(name)", tmp_path)


def test_photos_are_anonymized_and_recovered_without_them(tmp_path):
    """With os.name as on Windows where files are written, too."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from PIL import Image
Image.new("RGB", (64, 64), (90, 120, 40)).save("a.png")
import anonface.images.files as files, anonface.pipeline
from fake import FakeEngine
anonface.pipeline.Engine = FakeEngine
class Windows:
    def __getattr__(self, name): return getattr(__import__("os"), name)
    name = "nt"
files.os = Windows()
from anonface.cli import app
for line in ("keygen k", "anonymize a.png --key-file k -o b.png", "recover b.png --key-file k -o c.png"):
    assert app.run(line.split()) == 0, line
assert open("a.png", "rb").read() == open("c.png", "rb").read()
print("done")
"""
    assert run_blocked(code, tmp_path).endswith("done\n")
