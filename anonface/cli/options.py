"""Options that several commands share, and what their values mean."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from anonface.errors import (
    UsageError,
)

if TYPE_CHECKING:
    from anonface.batch.plan import Job
    from anonface.pipeline import Chosen


ATTRIBUTES = ("sex", "age", "tone")  # which the key leaves alone unless told otherwise; models.identity's CONDITIONS
EFFORTS = {"fast": 0, "balanced": 20, "best": 40}  # refinement steps
Paths = Annotated[list[str], typer.Argument(metavar="PATH", help="Photos, folders, or quoted patterns ('a/**/*.jpg').")]
Output = Annotated[
    str | None,
    typer.Option("-o", "--output", help="File for one photo, folder for several. Default: beside each photo."),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(readable=False, help="Key file, see `anonface keygen`. Without one, a passphrase is used."),
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(readable=False, help="File holding the passphrase; else ANONFACE_PASSPHRASE, else a prompt."),
]
WeakPassphrase = Annotated[
    bool, typer.Option("--weak-passphrase", help="Take a passphrase that is short or common, and soon guessed.")
]
StrictKeys = Annotated[bool, typer.Option("--strict-keys", help="Refuse a key file that others can read.")]
Sidecar = Annotated[
    str | None, typer.Option(help="Record beside the image instead of in it: file for one photo, folder for several.")
]
RecordsBeside = Annotated[
    str | None, typer.Option("--sidecar", help="Where a record beside the image is: file for one photo, else folder.")
]
Seal = Annotated[
    Literal["file", "face", "none"] | None,
    typer.Option(help="What is stored under the key: the original file (default), the face pixels, or nothing."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Backend = Annotated[
    str,
    typer.Option(help="ifadit, diffusion, dbaf or hford; with the authors' weights ifadit-official or dbaf-official."),
]
Recorded = Annotated[
    str | None, typer.Option("--backend", help="Default: the one that the record names, or ifadit where there is none.")
]
BatchSize = Annotated[int, typer.Option(min=1, help="Faces at a time; fewer need less memory.")]
Detector = Annotated[str, typer.Option(help="yunet or retinaface.")]
Parser = Annotated[str, typer.Option(help="trained, landmarks, bisenet or parsenet.")]
Refine = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Optimisation steps a face; default 20, and two thirds as many again, at least 6, to find what recovery"
        " will need. Recovery takes the record's number, only where that cannot be read. 0: the networks alone."
        " Backends other than ifadit have none.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="A folder of weights, not of ifadit. Of diffusion, signflip: the authors'."),
]
Transform = Annotated[
    Literal["mix", "sign"] | None, typer.Option(help="Of diffusion. mix: hides most. sign: as published.")
]
Steps = Annotated[int | None, typer.Option(min=1, help="Of diffusion: DDIM steps each way; default 50.")]
Compile = Annotated[
    bool,
    typer.Option("--compile", help="Of diffusion: torch.compile the network: minutes at first, then faster."),
]
Free = Annotated[
    str | None,
    typer.Option(metavar="sex,age,tone", help="Of ifadit: what the key may change too; else sex, age, tone are kept."),
]
Keep = Annotated[
    str | None, typer.Option(metavar="sex,age,tone", help="The other way to say it: what alone the key may not change.")
]
Format = Annotated[Literal["png", "webp", "jpeg"] | None, typer.Option(help="Default: as --output is named, else png.")]
Quality = Annotated[
    Literal["fast", "balanced", "best"] | None,
    typer.Option(help="Instead of --refine: of ifadit, 0, 20 (the default) or 40 steps."),
]
JpegQuality = Annotated[int | None, typer.Option(min=1, max=100, help="Default 95. Other formats are lossless.")]
KeepMetadata = Annotated[
    bool,
    typer.Option("--keep-metadata", help="Keep how it was taken: exposure, lens, density; no place, date, device."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace outputs that exist.")]
SkipExisting = Annotated[bool, typer.Option("--skip-existing", help="Pass over photos whose output exists.")]
Name = Annotated[
    str | None, typer.Option(help="Names of results; {stem}, {suffix}, {mark}, {ext}. Default: {stem}.{mark}{ext}.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the same command where it was killed or failed.")]
Report = Annotated[
    Path | None,
    typer.Option(
        help="Write what became of each photo into this JSON file; --resume and --skip-existing replace an earlier one."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Photos read ahead and written behind (1), or on Ray processes (one a GPU or node)."),
]
RunsOn = Annotated[Literal["local", "ray"], typer.Option("--engine", help="ray: spread the photos over a Ray cluster.")]
Faces = Annotated[
    str, typer.Option(metavar="all|largest|N,...", help="Which faces, counted from 0, top-left to bottom-right.")
]
KeepFaces = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Photos of people to leave as they are, one face each.")
]
FacesKept = Annotated[
    Path | None, typer.Option("--keep-faces", metavar="DIR", help="Photos of people who were left as they are.")
]
Recursive = Annotated[bool, typer.Option("--recursive", "-r", help="Look into folders of folders.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON result on stdout.")]
Offline = Annotated[bool, typer.Option("--offline", help="Fetch nothing.")]
MaxPixels = Annotated[int, typer.Option(min=1, help="Refuse larger photos.")]


def check_options(overwrite: bool, skip_existing: bool, offline: bool) -> None:
    if overwrite and skip_existing:
        raise UsageError("--overwrite and --skip-existing exclude each other")
    if offline:
        os.environ["ANONFACE_OFFLINE"] = "1"


def refinement_steps(refine: int | None, quality: str | None) -> int | None:
    """The refinement steps that were asked for, as a number or a word."""
    if refine is not None and quality:
        raise UsageError("--quality stands for a number of --refine steps", "give one of the two")
    return EFFORTS[quality] if quality else refine


def check_jpeg(quality: int | None, jobs: Sequence[Job]) -> None:
    from anonface.batch.task import FORMATS

    if quality and all(FORMATS.get(job.target.suffix.lower()) != "jpeg" for job in jobs):
        raise UsageError(
            "only JPEG knows a --jpeg-quality, PNG and WebP are lossless", "--format jpeg, or no --jpeg-quality"
        )


def parse_box(text: str) -> tuple[float, float, float, float]:
    try:
        x, y, width, height = (float(part) for part in text.split(","))
    except ValueError:
        x = y = width = height = 0.0
    if not (width > 0 and height > 0 and all(map(math.isfinite, (x, y, width, height)))):
        raise UsageError(
            f"--box {text!r} is not X,Y,W,H in pixels, with a width and a height", "for example 120,80,64,64"
        )
    return x, y, width, height


Own = dict[str, str | int]  # settings that only some backends have


def _freed(free: str | None, keep: str | None) -> str | None:
    """What of the attributes is let go, for whichever way it was said."""
    if keep is None:
        return free
    if free is not None:
        raise UsageError("--keep and --free say the same thing", "give one of them")
    kept = {name for name in keep.split(",") if name}
    if unknown := kept.difference(ATTRIBUTES):
        raise UsageError(f"cannot keep {', '.join(sorted(unknown))} alone", f"one or more of {', '.join(ATTRIBUTES)}")
    return ",".join(name for name in ATTRIBUTES if name not in kept) or None


def own_settings(
    free: str | None,
    keep: str | None,
    model: str | None,
    transform: str | None,
    steps: int | None,
    compiled: bool = False,
) -> Own:
    """What was said of them."""
    free = _freed(free, keep)
    named = {"free": free, "model": model, "transform": transform, "steps": steps, "compile": compiled or None}
    return {name: value for name, value in named.items() if value is not None}


def chosen_faces(text: str) -> Chosen:
    if text == "all":
        return "all"
    if text == "largest":
        return "largest"
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = (-1,)
    if min(numbers) < 0:
        raise UsageError(f"--faces {text!r} is neither all, largest, nor numbers from 0", "for example 0,2")
    return numbers
