"""Foreign network files -> numpy arrays and plain operation lists, without the frameworks that wrote them.

Four formats carry the third-party networks of this project: OpenVINO IR (the default generator), TFLite (dense
landmarks, one training teacher), ONNX (the recognizer) and TensorFlow.js graph models (teachers and judges). Only what
those files use is read. A graph becomes a list of :class:`Node` in NCHW terms, which ``models.graph.Graph`` runs in
torch; that keeps every third-party network differentiable.
"""

from __future__ import annotations

import base64
import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anonface.errors import WeightsError

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Node:
    """One operation: ``output = op(*inputs, **attributes)``; inputs name arrays, or outputs of earlier nodes."""

    op: str
    inputs: tuple[str, ...]
    output: str
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GraphFile:
    """A network read from a file: operations in running order, its arrays, and the names of its inputs and outputs."""

    nodes: tuple[Node, ...]
    arrays: Arrays
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


# --- OpenVINO IR -----------------------------------------------------------------------------------------------------

_IR_TYPES = {"f32": np.float32, "f16": np.float16, "i64": np.int64, "i32": np.int32}


@dataclass(frozen=True)
class _IrLayer:
    kind: str
    name: str
    array: np.ndarray | None


class _Ir:
    """An OpenVINO IR v10 graph: layers by id and, for each layer, the ids that feed its ports in order."""

    def __init__(self, xml: bytes, blob: bytes) -> None:
        root = ElementTree.fromstring(xml)
        self.layers: dict[int, _IrLayer] = {}
        for layer in root.iterfind("layers/layer"):
            data, array = layer.find("data"), None
            if layer.get("type") == "Const" and data is not None:
                shape = [int(n) for n in re.findall(r"\d+", data.get("shape", ""))]
                offset, size = int(data.get("offset", "0")), int(data.get("size", "0"))
                dtype = np.dtype(_IR_TYPES[data.get("element_type", "f32")])
                array = np.frombuffer(blob, dtype, size // dtype.itemsize, offset).reshape(shape)
            self.layers[int(layer.get("id", ""))] = _IrLayer(layer.get("type", ""), layer.get("name", ""), array)
        self.feeds: dict[int, list[int]] = {key: [] for key in self.layers}
        edges = [
            (int(e.get("to-layer", "")), int(e.get("to-port", "")), int(e.get("from-layer", "")))
            for e in root.iterfind("edges/edge")
        ]
        for target, _, source in sorted(edges):
            self.feeds[target].append(source)
        self.users: dict[int, list[int]] = {key: [] for key in self.layers}
        for target, _, source in edges:
            self.users[source].append(target)

    def operand(self, key: int, constant: bool) -> int:
        """The single constant (or non-constant) layer feeding layer ``key``."""
        found = [f for f in self.feeds[key] if (self.layers[f].array is not None) == constant]
        if len(found) != 1:
            raise WeightsError(f"unexpected structure at IR layer {self.layers[key].name!r}")
        return found[0]

    def array(self, key: int) -> np.ndarray:
        array = self.layers[key].array
        if array is None:
            raise WeightsError(f"IR layer {self.layers[key].name!r} holds no constant")
        return array


def mobile_stylegan_tensors(xml: bytes, blob: bytes) -> Arrays:
    """The MobileStyleGAN synthesis network from its IR, under the names of ``models.mobile_stylegan``.

    Pointwise weights and baked noise have numeric names only, so they are found by walking back from each named bias:
    ``bias -> Add -> Add(noise) -> Convolution(weight)``.
    """
    ir = _Ir(xml, blob)
    tensors: Arrays = {}
    for key, layer in ir.layers.items():
        if layer.array is None or not layer.name.startswith("m."):
            continue
        name = layer.name.removeprefix("m.").replace(".conv.", ".").replace("input.input", "input")
        name = re.sub(r"^layers\.\d+\.to_img", "to_image", name)
        tensors[name] = layer.array
        if not layer.name.endswith(".bias") or ".modulation." in layer.name:
            continue
        prefix = name.removesuffix(".bias")
        if prefix == "to_image":
            continue
        add_bias = next(user for user in ir.users[key] if ir.layers[user].kind == "Add")
        add_noise = ir.operand(add_bias, constant=False)
        convolution = ir.operand(add_noise, constant=False)
        tensors[f"{prefix}.noise"] = ir.array(ir.operand(add_noise, constant=True))
        tensors[f"{prefix}.weight"] = ir.array(ir.operand(convolution, constant=True))
    return {name: np.ascontiguousarray(array, np.float32) for name, array in tensors.items()}


def mapping_tensors(xml: bytes, blob: bytes) -> Arrays:
    """The mapping network's eight (512, 512) weights and (512,) biases, in running order."""
    ir = _Ir(xml, blob)
    constants = [layer.array for _, layer in sorted(ir.layers.items()) if layer.array is not None]
    weights = [a for a in constants if a.shape == (512, 512)]
    biases = [a for a in constants if a.size == 512]
    if len(weights) != 8 or len(biases) != 8:
        raise WeightsError(f"the mapping network's IR holds {len(weights)} weights and {len(biases)} biases, not 8")
    pairs = enumerate(zip(weights, biases, strict=True))
    return {
        name: np.ascontiguousarray(array, np.float32)
        for i, (weight, bias) in pairs
        for name, array in ((f"layers.{i}.weight", weight), (f"layers.{i}.bias", bias.reshape(512)))
    }


# --- TFLite ----------------------------------------------------------------------------------------------------------

_TFLITE_ACTIVATIONS = {0: None, 1: "relu", 3: "relu6"}


def read_tflite(data: bytes) -> GraphFile:
    """A float32 TFLite file as a graph in NCHW terms.

    Raises:
        WeightsError: an operation that this reader does not know.
    """
    import tflite

    model = tflite.Model.GetRootAs(data, 0)
    graph = model.Subgraphs(0)
    arrays: Arrays = {}
    dtypes = {0: np.float32, 1: np.float16, 2: np.int32}
    for i in range(graph.TensorsLength()):
        tensor = graph.Tensors(i)
        buffer = model.Buffers(tensor.Buffer())
        if buffer.DataLength():
            shape = tensor.ShapeAsNumpy() if tensor.ShapeLength() else ()
            arrays[f"t{i}"] = np.frombuffer(buffer.DataAsNumpy().tobytes(), dtypes[tensor.Type()]).reshape(shape)
    nodes = []
    for i in range(graph.OperatorsLength()):
        operator = graph.Operators(i)
        name = tflite.opcode2name(model.OperatorCodes(operator.OpcodeIndex()).BuiltinCode())
        inputs = tuple(f"t{k}" for k in operator.InputsAsNumpy() if k >= 0)
        nodes.append(_tflite_node(tflite, operator, name, inputs, f"t{operator.OutputsAsNumpy()[0]}", arrays))
    ends = [tuple(f"t{k}" for k in keys) for keys in (graph.InputsAsNumpy(), graph.OutputsAsNumpy())]
    return GraphFile(tuple(nodes), _only_used(nodes, arrays), ends[0], ends[1])


def _tflite_node(tflite: Any, operator: Any, name: str, inputs: tuple[str, ...], output: str, arrays: Arrays) -> Node:
    table = operator.BuiltinOptions()

    def options(kind: str) -> Any:
        parsed = getattr(tflite, kind)()
        parsed.Init(table.Bytes, table.Pos)
        return parsed

    if name in ("CONV_2D", "DEPTHWISE_CONV_2D"):
        depthwise = name == "DEPTHWISE_CONV_2D"
        opts = options("DepthwiseConv2DOptions" if depthwise else "Conv2DOptions")
        weight = arrays[inputs[1]]
        arrays[f"{inputs[1]}.oihw"] = weight.transpose(3, 0, 1, 2) if depthwise else weight.transpose(0, 3, 1, 2)
        attributes = {
            "stride": opts.StrideH(),
            "same": opts.Padding() == 0,
            "groups": weight.shape[3] if depthwise else 1,
            "activation": _TFLITE_ACTIVATIONS[opts.FusedActivationFunction()],
        }
        return Node("conv2d", (inputs[0], f"{inputs[1]}.oihw", *inputs[2:]), output, attributes)
    if name == "MAX_POOL_2D":
        opts = options("Pool2DOptions")
        attributes = {"kernel": opts.FilterHeight(), "stride": opts.StrideH(), "same": opts.Padding() == 0}
        return Node("max_pool", inputs, output, attributes)
    if name == "PAD":
        return Node("pad", inputs[:1], output, {"nhwc": arrays[inputs[1]].tolist()})
    if name == "PRELU":
        arrays[f"{inputs[1]}.flat"] = arrays[inputs[1]].reshape(-1)
        return Node("prelu", (inputs[0], f"{inputs[1]}.flat"), output)
    if name in ("ADD", "SUB", "MUL", "ABS", "RELU"):
        return Node(name.lower(), inputs, output)
    if name == "RESHAPE":
        return Node("flatten", inputs[:1], output)
    raise WeightsError(f"TFLite operation {name} is not supported")


# --- ONNX ------------------------------------------------------------------------------------------------------------


def read_onnx(data: bytes) -> GraphFile:
    """An ONNX model of convolutions as a graph in NCHW terms. Batch norms become a product and a sum.

    Raises:
        WeightsError: this is no ONNX model, or has an operation that this reader does not know.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        graph = onnx.load_model_from_string(data).graph
    except DecodeError as error:
        raise WeightsError("this is no ONNX model") from error
    arrays: Arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    nodes: list[Node] = []
    for node in graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        nodes += _onnx_nodes(node.op_type, tuple(node.input), node.output[0], attributes, arrays)
    inputs = tuple(entry.name for entry in graph.input if entry.name not in arrays)
    return GraphFile(tuple(nodes), _only_used(nodes, arrays), inputs, tuple(entry.name for entry in graph.output))


def _onnx_nodes(
    op: str, inputs: tuple[str, ...], output: str, attributes: dict[str, Any], arrays: Arrays
) -> list[Node]:
    if op == "Conv":
        pads, strides = set(attributes.get("pads", [0])), set(attributes.get("strides", [1]))
        if len(pads) > 1 or len(strides) > 1 or set(attributes.get("dilations", [1])) != {1}:
            raise WeightsError(f"the ONNX convolution {output!r} is not supported")
        given = {"stride": strides.pop(), "same": False, "padding": pads.pop(), "groups": attributes.get("group", 1)}
        return [Node("conv2d", inputs, output, {**given, "activation": None})]
    if op == "PRelu":
        arrays[f"{inputs[1]}.flat"] = arrays[inputs[1]].reshape(-1)
        return [Node("prelu", (inputs[0], f"{inputs[1]}.flat"), output)]
    if op == "Add":
        return [Node("add", inputs, output)]
    if op == "Flatten":
        return [Node("flatten", inputs, output, {"channels_first": True})]
    if op == "Gemm" and attributes.get("transB") and attributes.get("alpha", 1) == attributes.get("beta", 1) == 1:
        arrays[f"{inputs[1]}.turned"] = arrays[inputs[1]].T
        return [Node("matmul", (inputs[0], f"{inputs[1]}.turned", inputs[2]), output, {"activation": None})]
    if op == "BatchNormalization":
        scale, bias, mean, variance = (arrays[name] for name in inputs[1:])
        gain = scale / np.sqrt(variance + attributes.get("epsilon", 1e-5))
        times, plus, scaled = f"{output}.times", f"{output}.plus", f"{output}.scaled"
        arrays |= {times: gain, plus: bias - mean * gain}
        return [Node("mul", (inputs[0], times), scaled), Node("add", (scaled, plus), output)]
    raise WeightsError(f"ONNX operation {op} is not supported")


# --- TensorFlow.js graph model ---------------------------------------------------------------------------------------

_TFJS_PLAIN = {
    "Add": "add", "AddV2": "add", "BiasAdd": "add", "Sub": "sub", "Mul": "mul", "Maximum": "maximum",
    "Minimum": "minimum", "Relu": "relu", "Abs": "abs", "Sigmoid": "sigmoid", "Softmax": "softmax",
    "Identity": "identity",
}  # fmt: skip


def read_tfjs(topology: bytes, blob: bytes) -> GraphFile:
    """A TensorFlow.js graph model (its .json and its one .bin) as a graph in NCHW terms.

    Raises:
        WeightsError: an operation that this reader does not know.
    """
    description = json.loads(topology)
    arrays = _tfjs_arrays(description, blob)
    raw = [n for n in description["modelTopology"]["node"] if n["op"] != "Const"]
    inputs = tuple(n["name"] for n in raw if n["op"] == "Placeholder")
    nodes, known = [], set(arrays) | set(inputs)
    pending = [n for n in raw if n["op"] not in ("Placeholder", "NoOp")]
    while pending:  # the file's order is not always the running order
        ready = [n for n in pending if all(i.split(":")[0] in known for i in n["input"])]
        if not ready:
            raise WeightsError(f"the graph model has a cycle or a dangling input at {pending[0]['name']!r}")
        for node in ready:
            nodes.append(_tfjs_node(node, arrays))
            known.add(node["name"])
        pending = [n for n in pending if n["name"] not in known]
    consumed = {i for n in nodes for i in n.inputs}
    outputs = tuple(n.output for n in nodes if n.output not in consumed)
    return GraphFile(tuple(nodes), _only_used(nodes, arrays), inputs, outputs)


def _tfjs_arrays(description: dict[str, Any], blob: bytes) -> Arrays:
    arrays: Arrays = {}
    offset = 0
    for entry in (w for group in description["weightsManifest"] for w in group["weights"]):
        stored = np.dtype(entry.get("quantization", {}).get("dtype", entry["dtype"]))
        count = int(np.prod(entry["shape"]))
        array = np.frombuffer(blob, stored, count, offset).reshape(entry["shape"])
        offset += count * stored.itemsize
        arrays[entry["name"]] = array.astype(entry["dtype"])
    return arrays


def _tfjs_node(node: dict[str, Any], arrays: Arrays) -> Node:
    op, name = node["op"], node["name"]
    inputs = tuple(i.split(":")[0] for i in node["input"])
    attr = node.get("attr", {})
    fused = [base64.b64decode(s).decode() for s in attr.get("fused_ops", {}).get("list", {}).get("s", [])]
    activation = next((f.lower() for f in fused if f != "BiasAdd"), None)
    if op in ("Conv2D", "_FusedConv2D", "DepthwiseConv2dNative", "FusedDepthwiseConv2dNative"):
        depthwise = "Depthwise" in op
        weight = arrays[inputs[1]]
        # HWIO -> OIHW; a depthwise kernel is H W C M
        across = weight.transpose(2, 3, 0, 1).reshape(-1, 1, *weight.shape[:2])
        arrays[f"{inputs[1]}.oihw"] = across if depthwise else weight.transpose(3, 2, 0, 1)
        attributes = {
            "stride": int(attr["strides"]["list"]["i"][1]),
            "same": base64.b64decode(attr["padding"]["s"]).decode() == "SAME",
            "groups": weight.shape[2] if depthwise else 1,
            "activation": activation,
        }
        extra = (inputs[2],) if "BiasAdd" in fused else ()
        slope = (inputs[2 + len(extra)],) if activation == "prelu" else ()
        return Node("conv2d", (inputs[0], f"{inputs[1]}.oihw", *extra, *slope), name, attributes)
    if op in ("MatMul", "_FusedMatMul"):
        return Node("matmul", inputs, name, {"activation": activation})
    if op == "Pad":
        return Node("pad", inputs[:1], name, {"nhwc": arrays[inputs[1]].tolist()})
    if op == "MaxPool":
        kernel, stride = (int(attr[k]["list"]["i"][1]) for k in ("ksize", "strides"))
        same = base64.b64decode(attr["padding"]["s"]).decode() == "SAME"
        return Node("max_pool", inputs, name, {"kernel": kernel, "stride": stride, "same": same})
    if op in ("Reshape", "Squeeze"):
        return Node("flatten", inputs[:1], name)
    if op in ("Mean", "Max"):
        return Node(f"global_{op.lower()}", inputs[:1], name)
    if op in _TFJS_PLAIN:
        return Node(_TFJS_PLAIN[op], inputs, name)
    raise WeightsError(f"TensorFlow.js operation {op} is not supported")


def _only_used(nodes: list[Node], arrays: Arrays) -> Arrays:
    used = {name for node in nodes for name in node.inputs}
    return {name: np.ascontiguousarray(a) for name, a in arrays.items() if name in used}
