"""``anonface blind-score``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anonface.cli.console import print_json, table
from anonface.cli.options import AsJson


def blind_score(
    key: Annotated[Path, typer.Argument(metavar="KEY", help="Key file that was written next to the folder of sheets.")],
    answers: Annotated[
        Path, typer.Argument(metavar="ANSWERS", help='The judge\'s answers, as {"1": ["photo", 90, 5], ...}.')
    ],
    as_json: AsJson = False,
) -> None:
    """Score a blind test: how many altered faces passed as photos, and how many photos did."""
    from anonface.evaluation.blind import scores

    counted = scores(key, answers)
    if as_json:
        print_json({"exit": 0, **counted})
        return
    rows = [
        (
            kind,
            f"{score['passed']} of {score['faces']}",
            "{:.0%} to {:.0%}".format(*score["interval"]),
            f"{score['mean']:.2f}",
            f"{score['broken']} of {score['faces']}",
        )
        for kind, score in counted.items()
    ]
    table(("", "passed as photo", "95 % interval", "mean score", "plainly broken"), rows)
