"""Reader of the layout files in tests/conformance (recipe in their README): fills networks and judges outputs.

Every value is drawn from a PCG64 generator seeded by the salt and the tensor's name, so that a file of a few
kilobytes pins a network of hundreds of megabytes. `ANONFACE_CONFORMANCE` names another folder, e.g. another salt.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

FOLDER = Path(os.environ.get("ANONFACE_CONFORMANCE") or Path(__file__).parent / "conformance")


@dataclass(frozen=True)
class Row:
    """One tensor of a state dict: its layout and how its values come about."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    add: float | str
    scale: float


class Layout:
    """One file: the rows of its state dict(s), the inputs and the expected outputs."""

    def __init__(self, name: str, folder: Path = FOLDER) -> None:
        self.data = json.loads((folder / f"{name}.json").read_text())
        self.salt: str = self.data["salt"]
        self.buffers = {
            name: np.array(group["values"], np.float32)
            for group in self.data.get("code_buffers", [])
            for name in group["names"]
        }

    def rows(self, state: str = "state") -> list[Row]:
        return [Row(row[0], tuple(row[1]), *row[2:]) for row in self.data[state]]

    def random(self, name: str) -> np.random.Generator:
        seed = sha256((self.salt + name).encode()).digest()[:8]
        return np.random.Generator(np.random.PCG64(int.from_bytes(seed, "big")))

    def normal(self, name: str, shape: Iterable[int]) -> np.ndarray:
        return self.random(name).standard_normal(tuple(shape)).astype(np.float32)

    def input(self, name: str) -> Tensor:
        """An input as drawn; the operation its `then` describes is the caller's."""
        entry = next(entry for entry in self.data["inputs"] if entry["name"] == name)
        if entry["dist"] == "uniform01":
            return torch.from_numpy(self.random(name).random(tuple(entry["shape"])).astype(np.float32))
        return torch.from_numpy(self.normal(name, entry["shape"]))

    def value(self, row: Row) -> np.ndarray:
        """The tensor of a row, by its kind."""
        match row.kind:
            case "lin":
                return self.normal(row.name, row.shape) * np.float32(row.scale) + np.float32(row.add)
            case "abs":
                return np.abs(self.normal(row.name, row.shape)) * np.float32(row.scale) + np.float32(row.add)
            case "zero":
                return np.zeros(row.shape, row.dtype)
            case "code":
                return self.buffers[row.name].reshape(row.shape)
            case "perm":
                return self._permutation(row)
            case "invperm":
                return np.argsort(self._permutation(row))
            case "permmat":
                return np.eye(row.shape[0], dtype=np.float32)[self._permutation(row)]
            case "permmat_t":
                return np.eye(row.shape[0], dtype=np.float32)[self._permutation(row)].T
        raise ValueError(f"unknown kind {row.kind!r} of {row.name}")

    def _permutation(self, row: Row) -> np.ndarray:
        name = row.name.removesuffix("_inv")
        order = self.random(name).permutation(row.shape[0])
        assert order.tolist() == self.data["permutations"][name]
        return order

    def values(self, state: str = "state") -> dict[str, Tensor]:
        """The whole state dict."""
        filled: dict[str, Tensor] = {}
        for row in self.rows(state):
            filled[row.name] = filled[str(row.add)] if row.kind == "alias" else torch.from_numpy(self.value(row).copy())
        return filled

    def fill(self, module: nn.Module, state: str = "state", prefix: str = "") -> None:
        """Check that the module's state dict is the file's, name by name in order, and fill it in place.

        With a prefix, only the rows under it belong to the module.
        """
        own = module.state_dict()
        rows = [row for row in self.rows(state) if row.name.startswith(prefix)]
        expected = [(row.name.removeprefix(prefix), row.shape, row.dtype) for row in rows]
        assert [(n, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in own.items()] == expected
        for row in rows:
            tensor = own[row.name.removeprefix(prefix)]
            if row.kind == "code":
                np.testing.assert_array_equal(tensor.numpy(), self.value(row))
            elif row.kind != "alias":
                tensor.copy_(torch.from_numpy(self.value(row)))

    def check(self, outputs: Mapping[str, Tensor], key: str = "outputs") -> None:
        """Compare outputs with the official code's: values at 64 places, mean and spread."""
        expected = self.data[key]
        assert set(outputs) == set(expected)
        for name, entry in expected.items():
            got = outputs[name].detach().double().numpy()
            assert list(got.shape) == entry["shape"], name
            spread = entry["std"]
            worst = float(np.abs(got.reshape(-1)[entry["idx"]] - np.array(entry["val"])).max())
            assert worst <= 1e-3 * spread, f"{name}: off by {worst / spread:.2e} of its spread"
            assert abs(got.std() - spread) <= 1e-4 * spread, f"{name}: spread {got.std()} instead of {spread}"
            # A mean near zero has no relative accuracy of its own: judge it on the scale of the values.
            assert abs(got.mean() - entry["mean"]) <= 1e-4 * entry["absmean"], f"{name}: mean {got.mean()}"
