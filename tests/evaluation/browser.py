"""What a browser makes of a page: headless Chromium, cut off from every network."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape

NAMES = ("chromium", "chromium-browser", "google-chrome")
FOUND = next(filter(None, map(shutil.which, NAMES)), None)
PROBE = """<script>addEventListener("load", () => setTimeout(() => {
  const seen = document.createElement("pre");
  seen.id = "seen";
  seen.textContent = JSON.stringify({
    widths: [...document.images].map(image => image.naturalWidth),
    shown: [...document.images].map(image => image.getBoundingClientRect().width),
    asked: performance.getEntriesByType("resource").map(entry => entry.name).filter(name => !name.startsWith("data:")),
    text: document.body.innerText,
  });
  document.body.append(seen);
}, 100));</script>"""


@dataclass
class Seen:
    """Own ``widths`` of the pictures and those ``shown``; addresses ``asked`` for; visible ``text``; ``console``."""

    widths: list[int]
    shown: list[float]
    asked: list[str]
    text: str
    console: list[str]


def look(page, folder):
    """Open the text of a page, with a script at its end that looks at it once it is loaded."""
    file = folder / "opened.html"
    assert page.count("</body>") == 1
    probed = page.replace("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'")
    file.write_text(probed.replace("</body>", PROBE + "</body>"), "utf-8")
    command = [FOUND, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    command += ["--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=0.0.0.0:1"]
    command += [f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=5000"]
    done = subprocess.run([*command, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=120)
    seen = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert seen, done.stderr[-2000:]
    console = re.findall(r"CONSOLE[^\"]*(\".*)", done.stderr)
    return Seen(**json.loads(unescape(seen[1])), console=console)
