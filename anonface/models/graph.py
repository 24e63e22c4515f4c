"""A third-party network read by ``anonface.weights.conversion``, run in torch so that gradients pass through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anonface.weights.conversion import GraphFile, Node


class Graph(nn.Module):
    """Runs the operations of a :class:`~anonface.weights.conversion.GraphFile` in order.

    The input is [B, 3, H, W] float32 in the range that the network expects. The outputs are the named ones, by default
    the file's first one, each [B, C, H, W] or [B, C].
    """

    def __init__(self, file: GraphFile, *outputs: str) -> None:
        super().__init__()
        self._input = file.inputs[0]
        self._outputs = outputs or file.outputs[:1]
        self._nodes = _needed(file.nodes, self._outputs)
        used = {name for node in self._nodes for name in node.inputs}
        self._keys = {name: f"array_{i}" for i, name in enumerate(file.arrays) if name in used}
        for name, key in self._keys.items():
            self.register_buffer(key, torch.from_numpy(file.arrays[name].copy()), persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        """The first output."""
        return self.all_outputs(image)[0]

    def all_outputs(self, image: Tensor) -> tuple[Tensor, ...]:
        """All outputs, in one pass."""
        values: dict[str, Tensor] = {self._input: image}
        values.update({name: getattr(self, key) for name, key in self._keys.items()})
        for node in self._nodes:
            values[node.output] = _OPERATIONS[node.op](node, *(values[name] for name in node.inputs))
        return tuple(values[name] for name in self._outputs)


def _needed(nodes: tuple[Node, ...], outputs: Sequence[str]) -> tuple[Node, ...]:
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if node.output in wanted:
            wanted.update(node.inputs)
            kept.append(node)
    return tuple(reversed(kept))


def _pad_same(x: Tensor, kernel: tuple[int, int], stride: int, value: float) -> Tensor:
    """TensorFlow's SAME padding: the odd pixel goes to the bottom and the right."""
    pads = []
    for size, k in zip((x.shape[3], x.shape[2]), (kernel[1], kernel[0]), strict=True):
        total = max((-(-size // stride) - 1) * stride + k - size, 0)
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads, value=value) if any(pads) else x


def _conv2d(node: Node, x: Tensor, weight: Tensor, *rest: Tensor) -> Tensor:
    a = node.attributes
    activation = a["activation"]
    slope = rest[-1] if activation == "prelu" else None
    bias = rest[0] if len(rest) > (slope is not None) else None
    if a["same"]:
        x = _pad_same(x, (weight.shape[2], weight.shape[3]), a["stride"], 0.0)
    x = F.conv2d(x, weight, bias, stride=a["stride"], padding=a.get("padding", 0), groups=a["groups"])
    return F.prelu(x, slope.flatten()) if slope is not None else _activate(x, activation)


def _activate(x: Tensor, name: str | None) -> Tensor:
    match name:
        case None:
            return x
        case "relu":
            return F.relu(x)
        case "relu6":
            return F.relu6(x)
        case _:
            raise ValueError(f"unknown activation {name!r}")


def _max_pool(node: Node, x: Tensor) -> Tensor:
    k, stride = node.attributes["kernel"], node.attributes["stride"]
    if node.attributes["same"]:
        x = _pad_same(x, (k, k), stride, float("-inf"))
    return F.max_pool2d(x, k, stride)


def _pad(node: Node, x: Tensor) -> Tensor:
    _, (top, bottom), (left, right), (front, back) = node.attributes["nhwc"]
    return F.pad(x, [left, right, top, bottom, front, back])


def _flatten(node: Node, x: Tensor) -> Tensor:
    first = x.ndim != 4 or node.attributes.get("channels_first", False)
    return x.flatten(1) if first else x.permute(0, 2, 3, 1).flatten(1)


def _matmul(node: Node, x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
    x = x @ weight
    return _activate(x + bias[0] if bias else x, node.attributes["activation"])


def _binary(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def run(node: Node, x: Tensor, y: Tensor) -> Tensor:
        return function(_channels(x, y), _channels(y, x))

    return run


def _channels(x: Tensor, other: Tensor) -> Tensor:
    """A per-channel constant, shaped to broadcast against [B, C, H, W]."""
    return x.reshape(-1, 1, 1) if other.ndim == 4 and x.ndim == 1 else x


_OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "conv2d": _conv2d,
    "max_pool": _max_pool,
    "pad": _pad,
    "flatten": _flatten,
    "matmul": _matmul,
    "prelu": lambda node, x, slope: F.prelu(x, slope),
    "add": _binary(torch.add),
    "sub": _binary(torch.sub),
    "mul": _binary(torch.mul),
    "maximum": _binary(torch.maximum),
    "minimum": _binary(torch.minimum),
    "relu": lambda node, x: F.relu(x),
    "abs": lambda node, x: x.abs(),
    "sigmoid": lambda node, x: x.sigmoid(),
    "softmax": lambda node, x: x.softmax(1),
    "identity": lambda node, x: x,
    "global_mean": lambda node, x, *_: x.mean((2, 3)),
    "global_max": lambda node, x, *_: x.amax((2, 3)),
}
