"""Seed models for the mutators: small, valid, and of most operator families."""

from __future__ import annotations

import functools
import struct
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import helper, numpy_helper

from conformance import nodes

# name: (opset imports, inputs, outputs, body), in ONNX's own text form
_SMALL: dict[str, tuple[str, str, str, str]] = {
    "chain": ("21", "float[n, 4] x", "float[n, 4] y", "a = Relu(x) b = Tanh(a) y = Add(a, b)"),
    "matmul": ("21", "float[2, 3] x, float[3, 4] w", "float[2, 4] y", "y = MatMul(x, w)"),
    "gemm": ("13", "float[2, 3] x, float[4, 3] w, float[4] b", "float[2, 4] y",
             "y = Gemm<transB = 1, alpha = 0.5>(x, w, b)"),
    "conv": ("21", "float[1, 2, 8, 8] x, float[3, 2, 3, 3] w", "float[1, 3, m, m] y",
             "y = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w)"),
    "transposed": ("21", "float[1, 2, 4, 4] x, float[2, 3, 3, 3] w", "float[a, b, c, d] y",
                   "y = ConvTranspose<strides = [2, 2], output_padding = [1, 1]>(x, w)"),
    "pool": ("21", "float[1, 2, 8, 8] x", "float[a, b, c, d] y, int64[a, b, c, d] i",
             "y, i = MaxPool<kernel_shape = [3, 3], dilations = [2, 2], ceil_mode = 1>(x)"),
    "average": ("22", "float[1, 2, 8] x", "float[a, b, c] y",
                "y = AveragePool<kernel_shape = [3], pads = [1, 1], count_include_pad = 1>(x)"),
    "batchnorm": ("15", "float[2, 3, 4] x, float[3] s, float[3] b, float[3] m, float[3] v",
                  "float[2, 3, 4] y", "y = BatchNormalization<epsilon = 0.001>(x, s, b, m, v)"),
    "layernorm": ("21", "float[2, 3, 4] x, float[4] s", "float[2, 3, 4] y",
                  "y = LayerNormalization<axis = -1>(x, s)"),
    "groupnorm": ("21", "float[2, 4, 3] x, float[4] s, float[4] b", "float[2, 4, 3] y",
                  "y = GroupNormalization<num_groups = 2>(x, s, b)"),
    "attention": ("23", "float[1, 2, 3, 4] q, float[1, 2, 5, 4] k, float[1, 2, 5, 4] v",
                  "float[1, 2, 3, 4] y", "y = Attention<is_causal = 1>(q, k, v)"),
    "softmax": ("13", "float[2, 3] x", "float[2, 3] y",
                "a = Softmax<axis = 1>(x) b = LogSoftmax(x) y = Mul(a, b)"),
    "reduce": ("18", "float[2, 3, 4] x, int64[1] axes", "float[a, b, c] y",
               "y = ReduceSum<keepdims = 1>(x, axes)"),
    "argmax": ("13", "float[2, 3] x", "int64[2] i", "i = ArgMax<axis = 1, keepdims = 0>(x)"),
    "reshape": ("21", "float[2, 6] x, int64[3] shape", "float[a, b, c] y",
                "y = Reshape<allowzero = 0>(x, shape)"),
    "shapes": ("21", "float[n, 6] x", "float[a, b] y",
               "s = Shape(x) one = Constant<value_ints = [-1]>() "
               "zero = Constant<value_ints = [0]>() last = Constant<value_ints = [1]>() "
               "t = Slice(s, zero, last) u = Concat<axis = 0>(t, one) y = Reshape(x, u)"),
    "slice": ("13", "float[4, 5] x, int64[2] start, int64[2] end", "float[a, b] y",
              "y = Slice(x, start, end)"),
    "gather": ("13", "float[4, 5] x, int64[3] i", "float[3, 5] y", "y = Gather<axis = 0>(x, i)"),
    "scatter": ("18", "float[4] x, int64[2] i, float[2] u", "float[4] y",
                "y = ScatterElements<axis = 0, reduction = \"add\">(x, i, u)"),
    "scatternd": ("18", "float[4, 2] x, int64[2, 1] i, float[2, 2] u", "float[4, 2] y",
                  "y = ScatterND(x, i, u)"),
    "topk": ("11", "float[2, 5] x, int64[1] k", "float[2, m] v, int64[2, m] i",
             "v, i = TopK<axis = -1, largest = 1>(x, k)"),
    "pad": ("19", "float[2, 3] x, int64[4] p", "float[a, b] y",
            "y = Pad<mode = \"reflect\">(x, p)"),
    "resize": ("19", "float[1, 1, 2, 2] x, float[4] s", "float[a, b, c, d] y",
               "e = Constant<value = float[0] {}>() "
               "y = Resize<mode = \"cubic\", cubic_coeff_a = -0.5>(x, e, s)"),
    "expand": ("13", "float[3, 1] x, int64[2] s", "float[a, b] y", "y = Expand(x, s)"),
    "tile": ("13", "float[2] x, int64[1] r", "float[m] y", "y = Tile(x, r)"),
    "range": ("11", "int64 a, int64 b, int64 c", "int64[m] y", "y = Range(a, b, c)"),
    "fill": ("20", "int64[2] s", "float[a, b] y",
             "y = ConstantOfShape<value = float[1] {1.5}>(s)"),
    "onehot": ("11", "int64[3] i, int64 d, float[2] v", "float[3, m] y", "y = OneHot(i, d, v)"),
    "nonzero": ("13", "float[2, 3] x", "int64[2, m] y", "y = NonZero(x)"),
    "unique": ("11", "float[6] x", "float[m] y, int64[m] i", "y, i = Unique<sorted = 1>(x)"),
    "cumsum": ("14", "float[2, 3] x, int64 a", "float[2, 3] y", "y = CumSum(x, a)"),
    "einsum": ("12", "float[2, 3] x, float[3, 4] z", "float[2, 4] y",
               "y = Einsum<equation = \"ij,jk->ik\">(x, z)"),
    "where": ("16", "bool[3] c, float[3] x, float[1] z", "float[3] y", "y = Where(c, x, z)"),
    "cast": ("21", "float[3] x", "float16[3] y, int8[3] z",
             "y = Cast<to = 10>(x) z = Cast<to = 3, saturate = 1>(x)"),
    "bfloat16": ("21", "bfloat16[3] x", "bfloat16[3] y", "y = Mul(x, x)"),
    "quantised": ("21", "float[2, 4] x", "float[2, 4] y",
                  "s = Constant<value = float {0.1}>() z = Constant<value = uint8 {128}>() "
                  "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)"),
    "qmatmul": ("21", "uint8[2, 3] x, uint8[3, 2] w", "int32[2, 2] y", "y = MatMulInteger(x, w)"),
    "dynamic": ("11", "float[2, 3] x", "uint8[2, 3] y, float s, uint8 z",
                "y, s, z = DynamicQuantizeLinear(x)"),
    "lstm": ("14", "float[3, 1, 2] x, float[1, 8, 2] w, float[1, 8, 2] r",
             "float[3, 1, 1, 2] y, float[1, 1, 2] h", "y, h = LSTM<hidden_size = 2>(x, w, r)"),
    "gru": ("14", "float[3, 1, 2] x, float[2, 6, 2] w, float[2, 6, 2] r", "float[a, b, c, d] y",
            "y = GRU<hidden_size = 2, direction = \"bidirectional\">(x, w, r)"),
    "if": ("21", "bool c, float[2] x", "float[2] y",
           "y = If(c) <then_branch = t () => (float[2] a) { a = Neg(x) }, "
           "else_branch = e () => (float[2] b) { b = Abs(x) }>"),
    "loop": ("21", "int64 n, bool c, float[2] x", "float[2] y, float[m, 2] rows",
             "y, rows = Loop(n, c, x) <body = b (int64 i, bool ci, float[2] s) => "
             "(bool co, float[2] t, float[2] r) { co = Identity(ci) t = Add(s, s) "
             "r = Identity(t) }>"),
    "scan": ("21", "float[2] s, float[3, 2] x", "float[2] y, float[3, 2] rows",
             "y, rows = Scan(s, x) <num_scan_inputs = 1, body = b (float[2] p, float[2] v) => "
             "(float[2] q, float[2] r) { q = Add(p, v) r = Mul(p, v) }>"),
    "sequence": ("17", "float[2] x, float[2] z", "float[m] y, int64 n",
                 "s = SequenceConstruct(x, z) n = SequenceLength(s) "
                 "y = ConcatFromSequence<axis = 0>(s)"),
    "split": ("18", "float[6] x", "float[2] a, float[2] b, float[2] c",
              "a, b, c = Split<axis = 0, num_outputs = 3>(x)"),
    "text": ("20", "string[2] x, string[2] z", "string[2] y", "y = StringConcat(x, z)"),
    "normaliser": ("10", "string[2] x", "string[m] y",
                   "y = StringNormalizer<case_change_action = \"UPPER\", locale = \"C\">(x)"),
    "optional": ("18", "float[2] x", "float[2] y, bool h",
                 "o = Optional(x) h = OptionalHasElement(o) y = OptionalGetElement(o)"),
    "random": ("22", "float[2] x", "float[2] y",
               "r = RandomNormalLike<seed = 1.0>(x) y = Dropout<seed = 1>(r)"),
    "loss": ("13", "float[2, 3] x, int64[2] t", "float l",
             "l = SoftmaxCrossEntropyLoss<reduction = \"mean\">(x, t)"),
    "boxes": ("11", "float[1, 4, 4] b, float[1, 1, 4] s, int64 m", "int64[k, 3] y",
              "y = NonMaxSuppression(b, s, m)"),
    "signal": ("17", "float[1, 8, 1] x", "float[a, b, c] y", "y = DFT<axis = 1, onesided = 1>(x)"),
    "bits": ("18", "uint8[3] x, uint8[3] z", "uint8[3] y",
             "a = BitwiseAnd(x, z) y = BitShift<direction = \"LEFT\">(a, z)"),
    "grid": ("20", "float[1, 1, 3, 3] x, float[1, 2, 2, 2] g", "float[1, 1, 2, 2] y",
             "y = GridSample<mode = \"linear\">(x, g)"),
    "gelu": ("20", "float[3] x", "float[3] y", "y = Gelu<approximate = \"tanh\">(x)"),
    "contrib": ("21", "float[2, 3] x, float[3, 4] w", "float[2, 4] y",
                "y = com.microsoft.FusedMatMul<alpha = 0.5>(x, w)"),
}  # fmt: skip


@functools.cache
def small() -> list[onnx.ModelProto]:
    """The models of this file, parsed in milliseconds."""
    models = [_parsed(name, *parts) for name, parts in _SMALL.items()]
    return [*models, _network(), _function(), _external(), _sparse()]


# Unmutated, ONNX's reference evaluator takes over two seconds for it: one kernel, in Python.
_SLOW = {"test_lppool_3d_default"}


@functools.cache
def every() -> list[onnx.ModelProto]:
    """These and the small models of ONNX's node tests, which take seconds to make."""
    tests = [case.model for name, case in nodes.load().items() if name not in _SLOW]
    return small() + [model for model in tests if model.ByteSize() < 20_000]


def write(models: list[onnx.ModelProto], path: Path) -> None:
    """Write models to a file for workers."""
    with path.open("wb") as file:
        for model in models:
            data = model.SerializeToString()
            file.write(struct.pack("<Q", len(data)) + data)


def read(path: Path) -> list[bytes]:
    """The models that were written there."""
    data, at, models = path.read_bytes(), 0, []
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        models.append(data[at + 8 : at + 8 + size])
        at += 8 + size
    return models


def _parsed(name: str, opset: str, takes: str, gives: str, body: str) -> onnx.ModelProto:
    imports = f'"" : {opset}, "com.microsoft" : 1'
    text = (
        f"<ir_version: 10, opset_import: [{imports}]>\n{name} ({takes}) => ({gives}) {{ {body} }}"
    )
    return onnx.parser.parse_model(text)


def _network() -> onnx.ModelProto:
    """Convolution, normalisation and a classifier, with weights inside."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.random(shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], kernel_shape=[3, 3]),
        helper.make_node("BatchNormalization", ["a", "s", "b", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "g", "c"], ["y"]),
    ]
    weights = [weight("w", 4, 3, 3, 3), *(weight(n, 4) for n in "sbmv")]
    weights += [weight("g", 4, 5), weight("c", 5)]
    takes = [helper.make_tensor_value_info("x", 1, ["batch", 3, 8, 8])]
    gives = [helper.make_tensor_value_info("y", 1, ["batch", 5])]
    graph = helper.make_graph(nodes, "network", takes, gives, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _function() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
        calls (float[2] x) => (float[2] y) { a = local.twice(x) y = local.scaled<by = 3.0>(a) }
        <domain: "local", opset_import: ["" : 21]>
        twice (v) => (w) { w = Add(v, v) }
        <domain: "local", opset_import: ["" : 21]>
        scaled <by> (v) => (w) { k = Constant<value_float: float = @by>() w = Mul(v, k) }"""
    )


def _external() -> onnx.ModelProto:
    """A model with a weight in an external file."""
    model = onnx.ModelProto.FromString(_network().SerializeToString())
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", "432")):
        weight.external_data.add(key=key, value=value)
    return model


def _sparse() -> onnx.ModelProto:
    values = numpy_helper.from_array(np.array([1, 2], np.float32), "s")
    indices = numpy_helper.from_array(np.array([0, 3], np.int64), "s_indices")
    model = _parsed("sparse", "21", "float[4] x", "float[4] y", "y = Add(x, s)")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    return model
