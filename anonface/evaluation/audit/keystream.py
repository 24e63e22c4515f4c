"""One keystream behind many payloads: what known numbers in them, their covariance and known originals tell of it.

Up to version 5 of the watermark, photos of one salt said wrap(Q v + pad) with one Q = H D2 H D1 (H the Hartley matrix,
D1 and D2 of secret signs) and one pad, and every v began with 64 ones. From anonymized photos alone:

1. Between a photo and the mean of all the pad cancels, and the first 64 numbers of D1 H D2 (H x) are 0 for each such
   difference x. These equations are linear in the signs D2: the least eigenvector of their crops has them.
2. D2 known, D1 turns the differences' covariance into that of payloads, which anybody knows who runs the program under
   keys of his own: the greatest eigenvector of their product has D1, up to one sign.
3. Every payload is read, but for the mean of all, and compared with those of suspected originals. Pairs of which each
   is the other's best count as known, and give the signs anew, some rounds long.

Where originals are known, their payloads (computed by the program) give both rows of signs: by steps in turn, begun at
step 1's and at the first singular vectors of what ties them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from anonface.errors import count
from anonface.evaluation.audit.finding import Attack, Finding, counted, standing, told_apart
from anonface.evaluation.audit.subject import Subject

Floats = NDArray[np.float64]

ONES = 64  # numbers that were always the same, up to version 5
SCALE = 0.82 / 2.6  # of a unit of a payload, see ``watermark/cipher.py``
KNOWN = (2, 3, 5)  # originals
TURNS, ROUNDS = 60, 8  # of steps in turn; of pairs found and signs anew
REPEATED = "nonces of one key that came twice"
MEASURES = "photos assigned to originals, none known", "photos assigned to originals, {} known"


def assigned(said: Floats, own: Floats, known: Mapping[int, int] | None = None, ones: int = ONES) -> Floats:
    """How well each photo fits each suspected original: correlations [photos, originals].

    Args:
        said: what photos of one key say, [photos, n], in [-1, 1).
        own: payloads of the originals as the attacker makes them under keys of his own, [originals, n].
        known: photos of which the original is known.
    """
    prior, known = own - own.mean(0), dict(known or {})
    prior[:, :ones] = 0
    differences = _wrapped(said - np.angle(np.exp(1j * np.pi * said).sum(0)) / np.pi) / SCALE
    second = _second(differences, ones)
    first = _first(_unturned(differences, second), prior)
    starts = [(first, second), (-first, second)]  # the covariance leaves one sign open
    if len(known) > 1:
        starts += _both(prior[list(known.values())], differences[list(known)], second)
    best = np.zeros((len(said), len(own)))
    for first, second in starts:
        for _ in range(ROUNDS):
            turned = _unturned(differences, second)
            fit = _fit(first * turned, prior, ones)
            pairs = {int(i): int(j) for i, j in enumerate(fit.argmax(1)) if fit[:, j].argmax() == i} | known
            first = _sign((turned[list(pairs)] * prior[list(pairs.values())]).sum(0))
        fit = _fit(first * turned, prior, ones)
        if fit.max(1).sum() > best.max(1).sum() or not best.any():
            best = fit
    return best


def _second(differences: Floats, ones: int) -> Floats:
    """Step 1: the signs D2 from differences [m, n]."""
    n = differences.shape[1]
    mixed, rows = _hartley(differences), _hartley(np.eye(n)[:ones])
    # the sum over photos and known numbers of squared H[r, j] (H x)[j] d2[j]
    crops = (mixed.T @ mixed) * (rows.T @ rows)
    return _sign(np.linalg.eigh(crops)[1][:, 0])


def _first(turned: Floats, prior: Floats) -> Floats:
    """Step 2: the signs D1 from D1 times differences [m, n], up to one sign, and payloads [k, n]."""
    other = prior - prior.mean(0)
    return _sign(np.linalg.eigh((turned.T @ turned) * (other.T @ other))[1][:, -1])


def _both(question: Floats, answer: Floats, start: Floats) -> list[tuple[Floats, Floats]]:
    """D1 and D2 by which payloads [k, n] come to what is said of them, from two beginnings."""
    # between known ones, whatever the mean of all is
    question, answer = (x - x.mean(0) for x in (question, answer))
    mixed, found = _hartley(answer), []
    likeliest = np.linalg.svd((question.T @ mixed) * _hartley(np.eye(len(start))))[2][0]
    for second in (start, _sign(likeliest)):
        for _ in range(TURNS):
            first = _sign((question * _hartley(second * mixed)).sum(0))
            second = _sign((mixed * _hartley(first * question)).sum(0))
        found.append((first, second))
    return [*found, (_sign((question * _hartley(start * mixed)).sum(0)), start)]


def _unturned(mixed: Floats, second: Floats) -> Floats:
    return _hartley(second * _hartley(mixed))


def _fit(read: Floats, own: Floats, ones: int) -> Floats:
    """Correlations of payloads read [m, n] with suspected ones [k, n], of what sets each apart from the others."""
    a, b = ((x - x.mean(0))[:, ones:] for x in (read, own))
    a, b = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9) for x in (a, b))
    return np.asarray(a @ b.T)


def _hartley(rows: Floats) -> Floats:
    spectrum = np.fft.fft(rows)
    return np.asarray((spectrum.real - spectrum.imag) / np.sqrt(rows.shape[-1]))


def _wrapped(values: Floats) -> Floats:
    return np.asarray((values + 1) % 2 - 1)


def _sign(values: Floats) -> Floats:
    return np.where(values < 0, -1.0, 1.0)


def _run(subject: Subject) -> list[Finding]:
    return [_nonces(subject), *_payloads(subject)]


def _nonces(subject: Subject) -> Finding:
    """Payloads are encrypted under a key of the nonce, which anybody reads: under one key none may come twice."""
    if subject.model.nonce is None:
        return counted(REPEATED, 0, 0, "no nonce is written under these settings")
    crops = [seen.crop for seen in subject.hidden if seen and seen.crop is not None]
    read = [nonce for nonce in map(subject.model.nonce, crops) if nonce]
    return counted(REPEATED, len(read) - len(set(read)), len(read))


def _payloads(subject: Subject) -> list[Finding]:
    """Photos under one key and the constant salt, their payloads as the program makes them under another key."""
    measures = [MEASURES[0], *(MEASURES[1].format(told) for told in KNOWN)]
    if subject.model.said is None or subject.model.payload is None:
        return [
            told_apart(measures[0], {}, subject.people, detail="no latent residual is written under these settings")
        ]
    said, own, people = [], [], []
    for hidden, other, person in zip(subject.hidden, subject.hidden_otherwise, subject.people, strict=True):
        crops = [seen.crop if seen else None for seen in (hidden, other)]
        if crops[0] is None or crops[1] is None:
            continue
        heard, payload = subject.model.said(crops[0]), subject.model.payload(crops[1], subject.drawn_key("other"))
        if heard is not None and payload is not None:
            said.append(heard)
            own.append(payload)
            people.append(person)
    # a larger face says more, and one keystream ties messages of one length alone
    lengths = [len(payload) if len(payload) == len(heard) else 0 for payload, heard in zip(own, said, strict=True)]
    usual = max(filter(None, lengths), key=lengths.count, default=0)
    alike = [number for number, length in enumerate(lengths) if length == usual]
    said, own = ([those[number] for number in alike] for those in (said, own))
    people = [people[number] for number in alike]
    if len(said) < 2 + max(KNOWN):
        few = f"{count(len(said), 'payload')} of one length, too few"
        return [told_apart(measures[0], {}, subject.people, detail=few)]
    findings = []
    for measure, told in zip(measures, (0, *KNOWN), strict=True):
        known = {number: number for number in range(told)}
        fits = assigned(np.stack(said), np.stack(own), known)
        others = np.arange(told, len(said))
        ranks = [standing(fits[i, i], fits[i, others[others != i]]) for i in others]
        findings.append(told_apart(measure, {"payload": ranks}, [people[i] for i in others]))
    return findings


ATTACK = Attack(
    "keystream",
    shows="one keystream encrypts the payloads of two photos, so that some open others",
    silent="what no pixel says; with few photos, an attack by their payloads' covariance alone",
    published="none",
    run=_run,
)
