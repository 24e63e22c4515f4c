"""Run `anonface evaluate` with changed weights of refinement, or of the choice of the target identity.

python benchmarks/people.py [--steps NAME=VALUE ...] [--choice NAME=VALUE ...] -- DIR --split even --limit 8 ...

Names are those of `RefineParams` and `ChoiceParams` (`anonface/backends/ifadit/refinement.py`). All that follows `--`
is passed to evaluate. `--sheet FILE` shows the faces, which the figures alone do not replace. Give each run its own
journal, because journals do not record these weights. The weights hold in this process alone, so `--quick`, which uses
a second one, is refused.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TypeVar

from anonface.backends.ifadit import renderer
from anonface.backends.ifadit.refinement import ChoiceParams, RefineParams
from anonface.cli.app import main as command

Params = TypeVar("Params", RefineParams, ChoiceParams)


def changed(params: Params, changes: Sequence[str]) -> Params:
    """Parameters with changes of the form ``NAME=VALUE``.

    Raises:
        SystemExit: a name is unknown, or its value is not a number.
    """
    known = {field.name: type(getattr(params, field.name)) for field in fields(params) if field.name != "steps"}
    values = {}
    for change in changes:
        name, _, value = change.partition("=")
        if name not in known:
            raise SystemExit(f"no weight named {name!r} (of steps, see --refine); there are {', '.join(known)}")
        try:
            values[name] = known[name](float(value))
        except ValueError:
            raise SystemExit(f"{change!r} is not NAME=NUMBER") from None
    return replace(params, **values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--choice", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("evaluate", nargs="+", help="arguments of evaluate, after --")
    args = parser.parse_args()
    for option in ("--quick", "--backend"):
        if any(word.split("=")[0] == option for word in args.evaluate):
            parser.error(f"{option} does not use these weights")
    renderer.ANONYMIZE = changed(renderer.ANONYMIZE, args.steps)
    renderer.CHOICE = changed(renderer.CHOICE, args.choice)
    sys.argv = ["anonface", "evaluate", *args.evaluate]
    command()


if __name__ == "__main__":
    main()
