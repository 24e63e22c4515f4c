"""A short run of the fuzzer; fuzz.py says how to run it for long."""

import random

import pytest
from fuzz import TARGETS, check_container, check_intake, mended, mutated, photos, records
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SEEDS = {name: list(seeds().values()) for name, (seeds, _) in TARGETS.items()}
HOSTILE = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


def test_there_are_seeds_and_they_are_what_they_should_be() -> None:
    outcomes = {name: check_intake(data) for name, data in photos().items()}
    assert len(outcomes) >= 21 and all(photos().values())
    animated = {"png-animated", "webp-animated"}
    assert {name for name, outcome in outcomes.items() if outcome != "read"} == animated
    opened = {check_container(data) for data in records().values()}
    assert opened == {"decoded", "opened, tier none", "opened, tier face", "opened, tier file"} and len(records()) == 18


@pytest.mark.parametrize("name", TARGETS)
def test_mutations_reach_both_ends(name: str) -> None:
    """A fuzzer whose every file is refused at the door, or whose every file passes, tests nothing."""
    chance = random.Random(3)
    outcomes = {TARGETS[name][1](mutated(chance.choice(SEEDS[name]), SEEDS[name], chance)) for _ in range(300)}
    assert outcomes >= ({"read", "exit 4"} if name == "intake" else {"decoded", "exit 8"})


def test_mended_files_are_whole_again() -> None:
    for data in (photos()["png"], records()["png-stretched-file"], records()["plain"]):
        broken = data[:-1] + bytes([data[-1] ^ 1])
        assert broken != data and mended(broken) == mended(data) == data


@HOSTILE
@given(st.sampled_from(SEEDS["intake"]), st.randoms(use_true_random=False))
def test_any_image_is_read_or_refused(seed: bytes, chance: random.Random) -> None:
    check_intake(mutated(seed, SEEDS["intake"], chance))


@HOSTILE
@given(st.sampled_from(SEEDS["container"]), st.randoms(use_true_random=False))
def test_any_record_is_decoded_or_refused(seed: bytes, chance: random.Random) -> None:
    check_container(mutated(seed, SEEDS["container"], chance))


@HOSTILE
@given(st.binary(max_size=400), st.sampled_from([b"", b"ANF1\1", b"\xff\xd8\xff", b"RIFF\0\0\0\0WEBP", b"II*\0"]))
def test_any_bytes_at_all(tail: bytes, head: bytes) -> None:
    check_intake(head + tail)
    check_container(head + tail)
