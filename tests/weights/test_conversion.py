"""Foreign networks as graphs: what is read computes what the file says."""

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper

from anonface.errors import WeightsError
from anonface.models.graph import Graph
from anonface.weights.conversion import read_onnx


def model(nodes, arrays) -> bytes:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("face", "code")]
    stored = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "recognizer", ends[:1], ends[1:], stored)
    return helper.make_model(graph).SerializeToString()


@pytest.fixture
def arrays():
    rng = np.random.default_rng(1)
    shapes = {"w": (4, 3, 3, 3), "b": (4,), "slope": (4, 1, 1), "deep": (4, 1, 3, 3), "dense": (5, 64), "bias": (5,)}
    norm = {name: rng.uniform(0.5, 2, 5).astype(np.float32) for name in ("scale", "shift", "mean", "variance")}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()} | norm


NODES = [
    helper.make_node("Conv", ["face", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2], kernel_shape=[3, 3]),
    helper.make_node("PRelu", ["c", "slope"], ["p"]),
    helper.make_node("Conv", ["p", "deep"], ["d"], pads=[1, 1, 1, 1], group=4, kernel_shape=[3, 3]),
    helper.make_node("Add", ["p", "d"], ["sum"]),
    helper.make_node("Flatten", ["sum"], ["flat"]),
    helper.make_node("Gemm", ["flat", "dense", "bias"], ["e"], transB=1),
    helper.make_node("BatchNormalization", ["e", "scale", "shift", "mean", "variance"], ["code"], epsilon=0.01),
]


def test_a_small_onnx_network_computes_what_its_operations_say(arrays):
    graph = Graph(read_onnx(model(NODES, arrays)))
    a = {name: torch.from_numpy(array) for name, array in arrays.items()}
    face = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(2), requires_grad=True)
    x = F.prelu(F.conv2d(face, a["w"], a["b"], stride=2, padding=1), a["slope"].flatten())
    flat = (x + F.conv2d(x, a["deep"], padding=1, groups=4)).flatten(1)
    x = F.linear(flat, a["dense"], a["bias"])
    expected = F.batch_norm(x, a["mean"], a["variance"], a["scale"], a["shift"], eps=0.01)
    assert torch.allclose(graph(face), expected, atol=1e-4) and expected.std() > 0.1
    both = Graph(read_onnx(model(NODES, arrays)), "flat", "code").all_outputs(face)
    assert torch.allclose(both[0], flat, atol=1e-4) and torch.equal(both[1], graph(face))
    graph(face).sum().backward()
    assert face.grad is not None and face.grad.abs().max() > 0


@pytest.mark.parametrize("node", [
    helper.make_node("Conv", ["face", "w", "b"], ["code"], pads=[0, 0, 1, 1], kernel_shape=[3, 3]),
    helper.make_node("Conv", ["face", "w", "b"], ["code"], dilations=[2, 2], kernel_shape=[3, 3]),
    helper.make_node("Gemm", ["face", "dense", "bias"], ["code"]),
    helper.make_node("Erf", ["face"], ["code"]),
])  # fmt: skip
def test_what_the_reader_does_not_know_is_refused(node, arrays):
    with pytest.raises(WeightsError, match="not supported"):
        read_onnx(model([node], arrays))


def test_what_is_no_model_is_refused():
    with pytest.raises(WeightsError, match="no ONNX model"):
        read_onnx(b"\xff\xff\xff not a model")
    assert onnx.load_model_from_string(b"").graph.node == []  # an empty message is one, and has nothing to run
