"""Options that several commands share, and the meaning of their values."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from anonface.cli.help import BATCH, EXPERT, FACES, FILES, KEY, OUTPUT, QUALITY
from anonface.errors import UsageError

if TYPE_CHECKING:
    from anonface.batch.plan import Job
    from anonface.faces.locate import Chosen


ATTRIBUTES = ("sex", "age", "tone")  # the key preserves them by default; models.identity's CONDITIONS
REGIONS = ("eyes", "brows", "nose", "mouth")  # that --keep-regions knows; faces.regions.PARTS
Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH", help="Photos, folders, quoted patterns such as 'album/**/*.jpg', or - for stdin."),
]

# Output
Output = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="PATH",
        show_default="next to each photo",
        help="Output file for one photo (- is stdout), or output folder for several.",
        rich_help_panel=OUTPUT,
    ),
]
Seal = Annotated[
    Literal["file", "face", "none"] | None,
    typer.Option(
        show_default="file",
        help="Encrypt and store the original file, the original face pixels, or nothing.",
        rich_help_panel=OUTPUT,
    ),
]
SealUsed = Annotated[
    Literal["best", "none"],
    typer.Option(
        "--seal",
        help="Use the best encrypted original that is stored, or none to use the networks.",
        rich_help_panel=OUTPUT,
    ),
]
Stateless = Annotated[
    bool,
    typer.Option("--stateless", help="Store nothing in the photo; implies --consistent.", rich_help_panel=OUTPUT),
]
RecoverStateless = Annotated[
    bool,
    typer.Option(
        "--stateless",
        help="Use only the pixels and the key, for photos made with --stateless.",
        rich_help_panel=OUTPUT,
    ),
]
Decoy = Annotated[
    bool,
    typer.Option(
        "--decoy",
        help="With a wrong key, also write the wrong-key face; the exit code stays 7.",
        rich_help_panel=OUTPUT,
    ),
]
Sidecar = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Write the metadata record to this file, or to this folder for several photos.",
        rich_help_panel=OUTPUT,
    ),
]
RecordSidecar = Annotated[
    str | None,
    typer.Option(
        "--sidecar",
        metavar="PATH",
        help="Read the metadata record from this file, or from this folder for several photos.",
        rich_help_panel=OUTPUT,
    ),
]
Format = Annotated[
    Literal["png", "webp", "jpeg"] | None,
    typer.Option(
        show_default="that of --output, else the photo's or png", help="Output format.", rich_help_panel=OUTPUT
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="List what would be done, written and refused; write nothing.", rich_help_panel=OUTPUT
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing outputs.", rich_help_panel=OUTPUT)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON to stdout.", rich_help_panel=OUTPUT)]

# Key
KeyFile = Annotated[
    Path | None,
    typer.Option(
        readable=False,
        metavar="FILE",
        help="Key file from `anonface keygen`; without one, a passphrase is used.",
        rich_help_panel=KEY,
    ),
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        readable=False,
        metavar="FILE",
        help="File with the passphrase, instead of ANONFACE_PASSPHRASE or a prompt.",
        rich_help_panel=KEY,
    ),
]
WeakPassphrase = Annotated[
    bool,
    typer.Option(
        "--weak-passphrase", help="Accept a short or common passphrase, which is easy to guess.", rich_help_panel=KEY
    ),
]
StrictKeys = Annotated[
    bool, typer.Option("--strict-keys", help="Refuse a key file that other users can read.", rich_help_panel=KEY)
]

# Faces
Faces = Annotated[
    str,
    typer.Option(
        metavar="all|largest|N,...|all-N,...",
        help="Faces to change, by the numbers that `anonface detect` shows; all-2,5 is all but 2 and 5.",
        rich_help_panel=FACES,
    ),
]
ChangedFaces = Annotated[
    str,
    typer.Option(
        "--faces",
        metavar="all|largest|N,...|all-N,...",
        help="Faces that were changed, as given to `anonymize --stateless`.",
        rich_help_panel=FACES,
    ),
]
KeepFaces = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="Photos of people to leave unchanged, one face each: a folder, or one photo.",
        rich_help_panel=FACES,
    ),
]
FacesKept = Annotated[
    Path | None,
    typer.Option(
        "--keep-faces",
        metavar="PATH",
        help="Photos of people who were left unchanged: a folder, or one photo.",
        rich_help_panel=FACES,
    ),
]
Box = Annotated[
    list[str] | None,
    typer.Option(
        metavar="X,Y,W,H",
        help="Box in pixels around a face that the detector misses (left, top, width, height); can be repeated.",
        rich_help_panel=FACES,
    ),
]
NoFace = Annotated[
    Literal["fail", "copy", "skip"],
    typer.Option(
        help="Fail on a photo without a face, copy it without its metadata, or skip it.", rich_help_panel=FACES
    ),
]
Consistent = Annotated[
    bool,
    typer.Option(
        "--consistent",
        help="Give a person the same synthetic face in all photos under the key.",
        rich_help_panel=FACES,
    ),
]
Free = Annotated[
    str | None,
    typer.Option(
        metavar="sex,age,tone",
        help="Apparent attributes that the key may also change (inpaint and ifadit).",
        rich_help_panel=FACES,
    ),
]
Keep = Annotated[
    str | None,
    typer.Option(
        metavar="sex,age,tone",
        show_default="all three",
        help="Keep only these attributes; the key may change the rest.",
        rich_help_panel=FACES,
    ),
]

KeepRegions = Annotated[
    str | None,
    typer.Option(
        metavar="eyes,brows,...",
        help="Parts of faces to leave unchanged: eyes, brows, nose or mouth, three at most; less private.",
        rich_help_panel=FACES,
    ),
]
Check = Annotated[
    bool,
    typer.Option(
        "--check",
        help="Look for each face again in the result, and compare it with the original; see --report.",
        rich_help_panel=FACES,
    ),
]

# Quality and speed
Backend = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Method: inpaint, ifadit, dbaf, hford or diffusion; with --model also ifadit-official or dbaf-official.",
        rich_help_panel=QUALITY,
    ),
]
RecordedBackend = Annotated[
    str | None,
    typer.Option(
        "--backend",
        metavar="NAME",
        show_default="the record's, else inpaint",
        help="Method that the photo was anonymized with.",
        rich_help_panel=QUALITY,
    ),
]
Device = Annotated[
    str,
    typer.Option(metavar="NAME", help="Device: auto, cpu, cuda, cuda:N or mps.", rich_help_panel=QUALITY),
]
BatchSize = Annotated[
    int,
    typer.Option(
        min=1, metavar="N", help="Faces processed at a time; fewer need less memory.", rich_help_panel=QUALITY
    ),
]

# Files and metadata
Name = Annotated[
    str | None,
    typer.Option(
        metavar="TEMPLATE",
        show_default="{stem}.{mark}{ext}",
        help="Name of each result, built from {stem}, {suffix}, {mark} and {ext}.",
        rich_help_panel=FILES,
    ),
]
JpegQuality = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=100,
        metavar="N",
        show_default="the photo's, else 95",
        help="Quality of JPEG outputs.",
        rich_help_panel=FILES,
    ),
]
KeepMetadata = Annotated[
    bool,
    typer.Option(
        "--keep-metadata",
        help="Keep exposure, lens and pixel density; place, date, text and device are always removed.",
        rich_help_panel=FILES,
    ),
]
Sheet = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Also write a PNG with originals and results side by side.", rich_help_panel=FILES
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Also write the results to this JSON file.", rich_help_panel=OUTPUT),
]
Review = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Also write an HTML page of every face before and after; it shows the originals.",
        rich_help_panel=FILES,
    ),
]
FacesOut = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Also write masks of what was replaced, and landmarks, to this folder.",
        rich_help_panel=FILES,
    ),
]
AnnotationPaths = Annotated[
    list[Path] | None,
    typer.Option(
        "--annotations",
        metavar="PATH",
        help="COCO, YOLO, Pascal VOC or CVAT annotations (file or folder) to carry to the results; can be repeated.",
        rich_help_panel=FILES,
    ),
]
MaxPixels = Annotated[
    int, typer.Option(min=1, metavar="N", help="Refuse photos with more pixels.", rich_help_panel=FILES)
]

# Batch
Recursive = Annotated[bool, typer.Option("--recursive", "-r", help="Search subfolders too.", rich_help_panel=BATCH)]
SkipExisting = Annotated[
    bool, typer.Option("--skip-existing", help="Skip photos whose output exists.", rich_help_panel=BATCH)
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Continue the same command after it failed or was stopped.", rich_help_panel=BATCH),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        show_default="1, or one per GPU or node",
        help="Photos read ahead while one is processed, or processes on Ray.",
        rich_help_panel=BATCH,
    ),
]
RunsOn = Annotated[
    Literal["local", "ray"],
    typer.Option("--engine", help="Run on this machine or on a Ray cluster.", rich_help_panel=BATCH),
]

# Expert
Detector = Annotated[
    str, typer.Option(metavar="NAME", help="Face detector: yunet or retinaface.", rich_help_panel=EXPERT)
]
Parser = Annotated[
    str,
    typer.Option(metavar="NAME", help="Face parser: trained, landmarks, bisenet or parsenet.", rich_help_panel=EXPERT),
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Folder of weights for the backend, or signflip for the authors' diffusion weights.",
        rich_help_panel=EXPERT,
    ),
]
Transform = Annotated[
    Literal["mix", "sign"] | None,
    typer.Option(
        show_default="mix",
        help="Keyed transform of diffusion: the stronger mix, or the published sign.",
        rich_help_panel=EXPERT,
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", show_default="50", help="DDIM steps of diffusion in each direction.", rich_help_panel=EXPERT
    ),
]
Compile = Annotated[
    bool,
    typer.Option(
        "--compile",
        help="Compile the network of diffusion, which takes minutes once and saves time later.",
        rich_help_panel=EXPERT,
    ),
]
Offline = Annotated[bool, typer.Option("--offline", help="Download nothing.", rich_help_panel=EXPERT)]


def check_options(overwrite: bool, skip_existing: bool, offline: bool) -> None:
    if overwrite and skip_existing:
        raise UsageError("--overwrite and --skip-existing exclude each other")
    if offline:
        os.environ["ANONFACE_OFFLINE"] = "1"


def check_jpeg(quality: int | None, jobs: Sequence[Job]) -> None:
    from anonface.batch.task import FORMATS

    if quality and all(FORMATS.get(job.target.suffix.lower()) != "jpeg" for job in jobs):
        raise UsageError(
            "--jpeg-quality applies to JPEG only; PNG and WebP are lossless", "give --format jpeg, or no --jpeg-quality"
        )


def parse_box(text: str) -> tuple[float, float, float, float]:
    try:
        x, y, width, height = (float(part) for part in text.split(","))
    except ValueError:
        x = y = width = height = 0.0
    if not (width > 0 and height > 0 and all(map(math.isfinite, (x, y, width, height)))):
        raise UsageError(
            f"--box {text!r} is not X,Y,W,H in pixels, with a width and a height",
            "give left, top, width and height, for example 120,80,64,64",
        )
    return x, y, width, height


def parse_boxes(texts: Sequence[str] | None, photos: int) -> list[tuple[float, float, float, float]]:
    """The boxes of --box, for a command over so many photos."""
    boxes = [parse_box(text) for text in texts or ()]
    if boxes and photos > 1:
        raise UsageError("--box belongs to one photo", "name that photo alone")
    return boxes


BackendOptions = dict[str, str | int]  # settings that only some backends have


def _changeable(free: str | None, keep: str | None) -> str | None:
    """The attributes that the key may change, from --free or --keep."""
    if keep is None:
        return free
    if free is not None:
        raise UsageError("--keep and --free set the same thing", "give one of them")
    kept = {name for name in keep.split(",") if name}
    if unknown := kept.difference(ATTRIBUTES):
        raise UsageError(f"cannot keep {', '.join(sorted(unknown))} alone", f"one or more of {', '.join(ATTRIBUTES)}")
    return ",".join(name for name in ATTRIBUTES if name not in kept) or None


def backend_options(
    free: str | None,
    keep: str | None,
    model: str | None,
    transform: str | None,
    steps: int | None,
    compiled: bool = False,
) -> BackendOptions:
    """The settings that were given."""
    free = _changeable(free, keep)
    named = {"free": free, "model": model, "transform": transform, "steps": steps, "compile": compiled or None}
    return {name: value for name, value in named.items() if value is not None}


def chosen_regions(text: str | None, stateless: bool) -> tuple[str, ...]:
    """The regions of --keep-regions."""
    from anonface.batch.task import NO_STATELESS

    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    if text is not None and not (names and set(names) <= set(REGIONS)):
        raise UsageError(f"--keep-regions {text!r} names other regions than {', '.join(REGIONS)}", "for example eyes")
    if set(names) == set(REGIONS):
        raise UsageError("if all regions stay, hardly anything of a face is replaced", "keep three at most")
    if names and stateless:
        raise UsageError("the regions that stay are in the record, and --stateless stores none", NO_STATELESS)
    return tuple(name for name in REGIONS if name in names)


def chosen_faces(text: str) -> Chosen:
    if text == "all":
        return "all"
    if text == "largest":
        return "largest"
    listed = text.removeprefix("all-")
    try:
        numbers = tuple(int(part) for part in listed.split(","))
    except ValueError:
        numbers = (-1,)
    if min(numbers) < 0:
        raise UsageError(
            f"--faces {text!r} is neither all, largest, nor numbers from 0",
            "for example 0,2, or all-1 for all but face 1; `anonface detect` shows the numbers",
        )
    if listed == text:
        return numbers
    from anonface.faces.locate import AllBut

    return AllBut(numbers)
