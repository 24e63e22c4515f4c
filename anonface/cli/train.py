"""``anonface train``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from anonface.cli.console import progress_bar, say

SECONDS_BETWEEN_LOSSES = 10.0


def train(
    what: Annotated[
        str,
        typer.Argument(
            help="heads, parser, identity, attributes, flow, ifadit, each on the former; ethnicity, census, on the "
            "first three; critic, critic-again; autoencoder, then diffusion, sharpener; reader, then inversion, then "
            "dbaf, hford; exchanges, then translator."
        ),
    ],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the run lives; an earlier one there goes on.")],
    steps: Annotated[int, typer.Option(min=0, help="Length of the run; 0: as the recipe says.")] = 0,
    minutes: Annotated[float, typer.Option(min=0, help="Stop after so long; 0: never.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of everything drawn.")] = 1,
    faces: Annotated[int, typer.Option(min=100, help="Synthetic faces kept at hand.")] = 3600,
    device: Annotated[
        str, typer.Option(help="cpu; cuda, cuda:N for what trains on a GPU too (docs/training.md).")
    ] = "cpu",
    photos: Annotated[
        list[Path] | None,
        typer.Option(exists=True, file_okay=False, help="exchanges: a folder of real photos; repeat it for more."),
    ] = None,
) -> None:
    """Train networks on synthetic faces. Resumable; logs losses and contact sheets into DIR."""
    from anonface.backends.device import choose_device
    from anonface.training.run import Request, train_command

    request = Request(folder, steps, minutes, seed, faces, str(choose_device(device)), tuple(photos or ()))
    with progress_bar("faces", 0) as advance:
        losses = train_command(what, request, lambda done, total: advance(done, "", total))
        said = 0.0
        for values in losses:
            if time.monotonic() - said > SECONDS_BETWEEN_LOSSES:
                said = time.monotonic()
                say(", ".join(f"{name} {value:.4g}" for name, value in values.items()))
