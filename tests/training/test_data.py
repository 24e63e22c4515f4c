"""Rows of training data in a file."""

import pytest
import torch

from anonface.training.data import drawn_rows, row_generator


def draw(done: int) -> dict[str, torch.Tensor]:
    rows = torch.randn(4, 3, generator=row_generator(5, done))
    return {"rows": rows, "signs": rows.sign().to(torch.int8)}


def test_rows_are_drawn_once_and_do_not_depend_on_interruptions(tmp_path):
    file, told = tmp_path / "deep" / "rows.safetensors", []
    first = drawn_rows(file, 6, draw, 4, lambda *x: told.append(x))
    assert told == [(4, 6), (8, 6)] and len(first["rows"]) == 6
    again = drawn_rows(file, 8, lambda done: pytest.fail("there are enough"), 4)
    assert torch.equal(again["rows"][:6], first["rows"]) and again["signs"].dtype == torch.int8
    assert len(again["rows"]) == 8
    more = drawn_rows(file, 20, draw, 8)
    whole = drawn_rows(tmp_path / "whole.safetensors", 20, draw, 100)
    assert torch.equal(more["rows"], whole["rows"]) and torch.equal(more["rows"][:8], again["rows"])
    assert not torch.equal(more["rows"][:4], more["rows"][4:8])


def test_saved_rows_survive_an_interruption(tmp_path):
    file = tmp_path / "rows.safetensors"

    def failing(done: int) -> dict[str, torch.Tensor]:
        if done >= 12:
            raise KeyboardInterrupt
        return draw(done)

    with pytest.raises(KeyboardInterrupt):
        drawn_rows(file, 100, failing, 8)
    kept = drawn_rows(file, 8, failing, 8)
    assert len(kept["rows"]) == 8 and [one.name for one in tmp_path.iterdir()] == [file.name]
