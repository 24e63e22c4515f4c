"""``anonface train``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from anonface.cli.console import progress_bar, say

SECONDS_BETWEEN_LOSSES = 10.0


def train(
    what: Annotated[str, typer.Argument(metavar="RECIPE", help="Recipe to run, from the list above.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the run; an existing run is resumed.")],
    steps: Annotated[int, typer.Option(min=0, metavar="N", help="Length of the training; 0 takes the recipe's.")] = 0,
    minutes: Annotated[float, typer.Option(min=0, metavar="M", help="Stop after this time; 0 sets no limit.")] = 0.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed for weights and training data.")] = 1,
    faces: Annotated[int, typer.Option(min=100, metavar="N", help="Synthetic faces to draw for the training.")] = 3600,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="Device: cpu, or cuda or cuda:N for the recipes that support it.")
    ] = "cpu",
    photos: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            file_okay=False,
            metavar="DIR",
            help="Folder of real photos for the recipe portraits; can be repeated.",
        ),
    ] = None,
) -> None:
    """Train a network on synthetic faces. A stopped run can be resumed.

    Each recipe builds on those before it in its line, and some on other lines; see docs/training.md.

    \b
    ifadit          heads, parser, identity, attributes, flow, ifadit
    regression      census (latent attribute regression)
    diffusion       autoencoder, diffusion, sharpener
    dbaf and hford  reader, inversion, dbaf, hford
    inpainter       portraits, code-landmarks, inpainter, inpainter-fine
    """
    from anonface.backends.device import choose_device
    from anonface.training.run import Request, train_command

    request = Request(folder, steps, minutes, seed, faces, str(choose_device(device)), tuple(photos or ()))
    with progress_bar("faces", 0) as advance:
        losses = train_command(what, request, lambda done, total: advance(done, "", total))
        printed = 0.0
        for values in losses:
            if time.monotonic() - printed > SECONDS_BETWEEN_LOSSES:
                printed = time.monotonic()
                say(", ".join(f"{name} {value:.4g}" for name, value in values.items()))
