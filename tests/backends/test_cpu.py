"""What networks run in on a CPU."""

import pytest
import torch

from anonface.backends.cpu import denormals_flushed


@pytest.mark.parametrize("before", [False, True])
def test_denormals_are_zero_within_and_as_before_afterwards(before):
    tiny = torch.full((64,), 1e-38)
    torch.set_flush_denormal(before)
    try:
        with denormals_flushed():
            assert not (tiny * 0.1).any()
        assert bool((tiny * 0.1).any()) is not before
        with pytest.raises(ValueError, match="inside"), denormals_flushed():
            raise ValueError("inside")
        assert bool((tiny * 0.1).any()) is not before
    finally:
        torch.set_flush_denormal(False)
