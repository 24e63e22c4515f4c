"""``anonface doctor``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from anonface.cli.console import NOT_READY, download_progress, escaped, megabytes, print_json
from anonface.cli.options import AsJson
from anonface.errors import count

if TYPE_CHECKING:
    from anonface.weights import Status


def doctor(as_json: AsJson = False) -> int:
    """Check whether this machine is ready, and what is missing. Downloads nothing."""
    checks = list(_checks())
    ready = all(check["ok"] for check in checks if check["needed"])
    code = 0 if ready else NOT_READY
    if as_json:
        print_json({"exit": code, "ready": ready, "checks": checks})
        return code
    for check in checks:
        mark = "ok" if check["ok"] else "MISSING" if check["needed"] else "absent"
        print(escaped(f"{mark:8} {check['name']:12} {check['detail']}"))
    print("ready" if ready else "not ready")
    return code


def _checks() -> Iterator[dict[str, Any]]:
    import platform
    from importlib import metadata

    from anonface import __version__, weights

    def check(name: str, ok: bool, detail: str, needed: bool = True) -> dict[str, Any]:
        return {"name": name, "ok": ok, "needed": needed, "detail": detail}

    yield check("anonface", True, f"{__version__}, Python {platform.python_version()}, {platform.platform()}")
    for package, needed in (("torch", True), ("opencv-python", True), ("cryptography", True), ("dlib-bin", False)):
        try:
            yield check(package, True, metadata.version(package), needed)
        except metadata.PackageNotFoundError:
            hint = (
                "reinstall anonface"
                if needed
                else "only for `evaluate`: pip install '.[evaluation]' in a clone of anonface"
            )
            yield check(package, False, hint, needed)
    try:
        import torch

        gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        yield check("cpu", True, count(torch.get_num_threads(), "thread"))
        yield check("cuda", bool(gpus), ", ".join(gpus) or "no device: --device cpu is used", needed=False)
    except (ImportError, OSError) as error:
        yield check("cpu", False, f"torch cannot be loaded: {error}")
    missing = [status.entry for status in weights.status() if runs(status) and status.state != "ready"]
    size = megabytes(sum(entry.size for entry in missing))
    names = ", ".join(entry.name for entry in missing)
    yield check("weights", not missing, f"{names} ({size} MB): `anonface weights pull`" if missing else "all present")
    cache = weights.cache_dir()
    folder = next(place for place in (cache, *cache.parents) if place.exists())
    yield check("cache", os.access(folder, os.W_OK), str(cache), needed=False)


def runs(status: Status) -> bool:
    return status.entry.needed_for == "run"


def fetch_missing() -> None:
    """Download the weights that running needs, showing progress."""
    from anonface import weights

    missing = [status.entry.name for status in weights.status() if runs(status) and status.state != "ready"]
    if missing:
        with download_progress() as progress:
            weights.pull(missing, progress)
