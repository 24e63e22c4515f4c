"""``anonface blind-score``, and the sheets of ``evaluate --blind``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anonface.cli.console import print_json, say, table
from anonface.cli.options import AsJson
from anonface.errors import OutputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from anonface.evaluation.blind import Face


class BlindSheets:
    """Faces of an evaluation, collected for a blind test.

    Args:
        folder: of the sheets; the key file is written next to it.

    Raises:
        OutputError: the folder is not empty, or the key file exists.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.key = folder, folder.with_name(f"{folder.name}.key.json")
        if self.key.exists() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
            raise OutputError(f"{str(folder)!r} or its key file exists already", "name a new folder for the sheets")
        self._faces: list[Face] = []

    def add(self, name: str, original: NDArray[np.uint8], altered: NDArray[np.uint8]) -> None:
        """Add one version of a photo's face, chosen at random; a face that did not change is left out."""
        import numpy as np

        from anonface.evaluation.blind import face

        if found := face(name, original, altered, np.random.default_rng()):
            self._faces.append(found)

    def write(self) -> None:
        """Write the sheets in random order, and their key file."""
        import numpy as np

        from anonface.evaluation.blind import write_sheets

        order = np.random.default_rng().permutation(len(self._faces))
        self.folder.mkdir(parents=True, exist_ok=True)
        count = write_sheets([self._faces[i] for i in order], self.folder, self.key)
        say(f"{len(order)} faces on {count} sheets in {self.folder}; the judge must not see {self.key}")


def blind_score(
    key: Annotated[Path, typer.Argument(metavar="KEY", help="Key file that was written next to the folder of sheets.")],
    answers: Annotated[
        Path, typer.Argument(metavar="ANSWERS", help='The judge\'s answers, as {"1": ["photo", 90, 5], ...}.')
    ],
    as_json: AsJson = False,
) -> None:
    """Score a blind test: how many altered faces passed as photos, and how many photos did."""
    from dataclasses import asdict

    from anonface.evaluation.blind import scores

    counted = scores(key, answers)
    if as_json:
        print_json({"exit": 0, **{kind: asdict(score) for kind, score in counted.items()}})
        return
    rows = [
        (
            kind,
            f"{score.passed} of {score.faces}",
            "{:.0%} to {:.0%}".format(*score.interval),
            f"{score.mean:.2f}",
            f"{score.broken} of {score.faces}",
        )
        for kind, score in counted.items()
    ]
    table(("", "passed as photo", "95 % interval", "mean score", "plainly broken"), rows)
