"""An audit: the attacks that were asked for, one after the other, on one subject."""

from __future__ import annotations

import datetime
import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from anonface.errors import count
from anonface.evaluation.audit import candidates, files, key_guessing, keystream, learning, recognition, several_photos
from anonface.evaluation.audit.finding import Attack, Finding
from anonface.evaluation.audit.subject import Subject
from anonface.evaluation.report import to_json as strict_json

if TYPE_CHECKING:
    from rich.table import Table

ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        recognition.VIEWER,
        recognition.ATTRIBUTES,
        files.LOW_BITS,
        recognition.DIVERSITY,
        key_guessing.KEY_GUESSING,
        key_guessing.OBSERVER,
        candidates.CANDIDATES,
        several_photos.KNOWN_PAIR,
        keystream.ATTACK,
        several_photos.LINKABILITY,
        learning.INVERSION,
        learning.PARROT,
        files.TAMPERING,
        files.METADATA,
    )
}

VERDICTS = {True: "held", False: "BROKEN", None: "untold"}


@dataclass(frozen=True)
class Tried:
    """One attack with what it found."""

    attack: Attack
    findings: Sequence[Finding]
    seconds: float


@dataclass(frozen=True)
class Audit:
    """All attacks of one audit; ``settings`` are printable values by name."""

    settings: Mapping[str, object]
    tried: Sequence[Tried]

    @property
    def broken(self) -> list[str]:
        """Names of the attacks that succeeded."""
        return [t.attack.name for t in self.tried if any(finding.passed is False for finding in t.findings)]


def audit(
    subject: Subject,
    attacks: Sequence[Attack],
    about: Mapping[str, object] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Audit:
    """Run attacks on a subject.

    Args:
        about: what the engine is, for the settings.
        progress: told each attack's name before it begins.
    """
    tried = []
    for attack in attacks:
        if progress:
            progress(attack.name)
        started = time.monotonic()
        findings = attack.run(subject)
        tried.append(Tried(attack, findings, round(time.monotonic() - started, 1)))
    photos = hashlib.sha256(b"".join(target.file.read_bytes() for target in subject.targets))
    settings = {
        "date": datetime.date.today().isoformat(),
        "photos attacked": len(subject.targets),
        "people": len(set(subject.people)),
        "set of photos": photos.hexdigest()[:16],
        **asdict(subject.sizes),
        "seed": subject.seed,
        "recognizer": subject.judges.recognizer.name,
        "recognizer seen by a training loss": subject.judges.recognizer.seen_by_loss,
        **(about or {}),
    }
    return Audit(settings, tried)


def table(result: Audit) -> Table:
    """What was found, one line a measure, for a terminal."""
    from rich import box
    from rich.table import Table

    title = f"Audit of {count(int(str(result.settings['photos attacked'])), 'photo')}"
    lines = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("attack", "measure", "found", "limit", "of", ""):
        lines.add_column(column, justify="right" if column in ("found", "limit", "of") else "left")
    for tried in result.tried:
        for number, finding in enumerate(tried.findings):
            name = tried.attack.name if number == 0 else ""
            measure = f"{finding.measure} ({finding.detail})" if finding.detail else finding.measure
            found, limit = (_text(finding, value) for value in (finding.value.value, finding.limit))
            lines.add_row(name, measure, found, limit, str(finding.value.n), VERDICTS[finding.passed])
    return lines


def to_json(result: Audit) -> str:
    """The whole audit as strict JSON, NaN as null."""
    attacks = [
        {
            "name": tried.attack.name,
            "shows": tried.attack.shows,
            "silent": tried.attack.silent,
            "published": tried.attack.published,
            "seconds": tried.seconds,
            "findings": [asdict(finding) for finding in tried.findings],
        }
        for tried in result.tried
    ]
    whole = {"settings": dict(result.settings), "broken": result.broken, "attacks": attacks}
    return strict_json(whole)


def _text(finding: Finding, value: float) -> str:
    if math.isnan(value):
        return "–"
    if finding.unit == "rate":
        return f"{100 * value:.1f} %"
    return f"{value:.0f}" if finding.unit == "count" else f"{value:.2f}"
