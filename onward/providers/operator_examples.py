"""One example node for each ONNX operator, to find out whether an engine runs the operator.

Most are derived from the operator's schema: every required input is a 4 x 4 tensor, float where
the schema allows it. The others are in a table, in ONNX's text format: inputs; constants; node.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import onnx
import onnx.parser
import onnx_ir as ir

from onward.graph.shapes.infer import infer_shapes

_TABLE = """
AffineGrid: float[1,2,3] x; int64[4] s = {1,1,4,4}; y = AffineGrid(x, s)
Attention: float[1,2,4,8] q, float[1,2,4,8] k, float[1,2,4,8] v;; y = Attention(q, k, v)
AveragePool: float[1,4,8,8] x;; y = AveragePool<kernel_shape=[2,2]>(x)
BatchNormalization: float[1,4,8,8] x; float[4] a = {1,1,1,1}; y = BatchNormalization(x, a, a, a, a)
Bernoulli: float[4] x;; y = Bernoulli<seed=1.0>(x)
BitCast: int32[4] x;; y = BitCast<to=1>(x)
BitShift: uint8[4] x, uint8[4] n;; y = BitShift<direction="LEFT">(x, n)
Cast: int32[4] x;; y = Cast<to=1>(x)
CastLike: int32[4] x, float[1] t;; y = CastLike(x, t)
CenterCropPad: float[8,8] x; int64[2] s = {4,4}; y = CenterCropPad(x, s)
Col2Im: float[1,5,5] x; int64[2] s = {5,5}, int64[2] b = {1,5}; y = Col2Im(x, s, b)
Compress: float[4] x, bool[4] c;; y = Compress(x, c)
Concat: float[4] a, float[4] b;; y = Concat<axis=0>(a, b)
ConcatFromSequence: seq(float[4]) s;; y = ConcatFromSequence<axis=0>(s)
Constant: ;; y = Constant<value_float=1.0>()
ConstantOfShape: ; int64[2] s = {2,2}; y = ConstantOfShape(s)
Conv: float[1,4,8,8] x, float[6,4,3,3] w;; y = Conv(x, w)
ConvInteger: uint8[1,1,4,4] x, uint8[1,1,2,2] w;; y = ConvInteger(x, w)
ConvTranspose: float[1,4,8,8] x, float[4,6,3,3] w;; y = ConvTranspose(x, w)
CumProd: float[4] x; int64 a = {0}; y = CumProd(x, a)
CumSum: float[4] x; int64 a = {0}; y = CumSum(x, a)
DFT: float[1,8,1] x; int64 a = {1}; y = DFT(x, , a)
DeformConv: float[1,1,3,3] x, float[1,1,2,2] w, float[1,8,2,2] o;; y = DeformConv(x, w, o)
DepthToSpace: float[1,4,2,2] x;; y = DepthToSpace<blocksize=2>(x)
DequantizeLinear: uint8[4] x; float s = {0.5}, uint8 z = {1}; y = DequantizeLinear(x, s, z)
DynamicQuantizeLinear: float[4] x;; y, s, z = DynamicQuantizeLinear(x)
Einsum: float[4,4] a, float[4,4] b;; y = Einsum<equation="ij,jk->ik">(a, b)
Expand: float[1,4] x; int64[2] s = {4,4}; y = Expand(x, s)
GRU: float[3,1,4] x, float[1,12,4] w, float[1,12,4] r;; y = GRU<hidden_size=4>(x, w, r)
Gather: float[4,4] x, int64[2] i;; y = Gather(x, i)
GatherElements: float[4,4] x, int64[4,4] i;; y = GatherElements(x, i)
GatherND: float[4,4] x, int64[2,1] i;; y = GatherND(x, i)
GlobalAveragePool: float[1,4,8,8] x;; y = GlobalAveragePool(x)
GlobalLpPool: float[1,4,8,8] x;; y = GlobalLpPool(x)
GlobalMaxPool: float[1,4,8,8] x;; y = GlobalMaxPool(x)
GridSample: float[1,1,4,4] x, float[1,2,2,2] g;; y = GridSample(x, g)
GroupNormalization: float[1,4,8,8] x, float[4] a, float[4] b;; y = GroupNormalization<num_groups=2>(x, a, b)
If: bool c, float[4] x;; y = If(c) <then_branch = t () => (float[4] p) { p = Neg(x) }, else_branch = e () => (float[4] q) { q = Abs(x) }>
ImageDecoder: uint8[64] x;; y = ImageDecoder(x)
InstanceNormalization: float[1,4,8,8] x, float[4] a, float[4] b;; y = InstanceNormalization(x, a, b)
LRN: float[1,4,8,8] x;; y = LRN<size=3>(x)
LSTM: float[3,1,4] x, float[1,16,4] w, float[1,16,4] r;; y = LSTM<hidden_size=4>(x, w, r)
LayerNormalization: float[4,4] x, float[4] a, float[4] b;; y = LayerNormalization(x, a, b)
LinearAttention: float[1,4,8] q, float[1,4,8] k, float[1,4,8] v;; y, s = LinearAttention<q_num_heads=2, kv_num_heads=2>(q, k, v)
Loop: float[4] x; int64 n = {3}, bool c = {1}; y = Loop(n, c, x) <body = b (int64 i, bool k, float[4] p) => (bool m, float[4] q) { m = Identity(k) q = Neg(p) }>
LpPool: float[1,4,8,8] x;; y = LpPool<kernel_shape=[2,2]>(x)
MatMulInteger: uint8[4,4] a, uint8[4,4] b;; y = MatMulInteger(a, b)
MaxPool: float[1,4,8,8] x;; y = MaxPool<kernel_shape=[2,2]>(x)
MaxRoiPool: float[1,4,8,8] x, float[2,5] r;; y = MaxRoiPool<pooled_shape=[2,2]>(x, r)
MaxUnpool: float[1,1,2,2] x, int64[1,1,2,2] i;; y = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(x, i)
Mod: float[4] a, float[4] b;; y = Mod<fmod=1>(a, b)
MeanVarianceNormalization: float[1,4,8,8] x;; y = MeanVarianceNormalization(x)
MelWeightMatrix: ; int64 n = {4}, int64 d = {8}, int64 r = {8192}, float a = {0}, float b = {4096}; y = MelWeightMatrix(n, d, r, a, b)
NegativeLogLikelihoodLoss: float[4,4] x, int64[4] t;; y = NegativeLogLikelihoodLoss(x, t)
NonMaxSuppression: float[1,6,4] b, float[1,1,6] s; int64[1] m = {3}; y = NonMaxSuppression(b, s, m)
OneHot: int64[4] i; int64 d = {3}, float[2] v = {0,1}; y = OneHot(i, d, v)
Optional: float[4] x;; y = Optional(x)
OptionalGetElement: optional(float[4]) x;; y = OptionalGetElement(x)
OptionalHasElement: optional(float[4]) x;; y = OptionalHasElement(x)
Pad: float[4,4] x; int64[4] p = {0,1,0,1}; y = Pad(x, p)
QLinearConv: uint8[1,1,4,4] x, uint8[1,1,1,1] w; float s = {0.5}, uint8 z = {1}; y = QLinearConv(x, s, z, w, s, z, s, z)
QLinearMatMul: uint8[4,4] a, uint8[4,4] b; float s = {0.5}, uint8 z = {1}; y = QLinearMatMul(a, s, z, b, s, z, s, z)
QuantizeLinear: float[4] x; float s = {0.5}, uint8 z = {1}; y = QuantizeLinear(x, s, z)
RMSNormalization: float[4,4] x, float[4] a;; y = RMSNormalization(x, a)
RNN: float[3,1,4] x, float[1,4,4] w, float[1,4,4] r;; y = RNN<hidden_size=4>(x, w, r)
RandomNormal: ;; y = RandomNormal<shape=[4]>()
RandomUniform: ;; y = RandomUniform<shape=[4]>()
Range: float a, float b, float d;; y = Range(a, b, d)
RegexFullMatch: string[4] x;; y = RegexFullMatch<pattern="a+">(x)
Reshape: float[4,4] x; int64[2] s = {2,8}; y = Reshape(x, s)
Resize: float[1,1,4,4] x; float[4] s = {1,1,2,2}; y = Resize<mode="linear">(x, , s)
ReverseSequence: float[4,4] x, int64[4] n;; y = ReverseSequence(x, n)
RoiAlign: float[1,4,8,8] x, float[2,4] r, int64[2] b;; y = RoiAlign<output_height=2, output_width=2>(x, r, b)
RotaryEmbedding: float[1,2,4,8] x, float[16,4] c, float[16,4] s, int64[1,4] p;; y = RotaryEmbedding(x, c, s, p)
STFT: float[1,16,1] x, float[8] w; int64 n = {4}; y = STFT(x, n, w)
Scan: float[4] s, float[3,4] x;; y, z = Scan(s, x) <num_scan_inputs=1, body = b (float[4] p, float[4] q) => (float[4] m, float[4] n) { m = Add(p, q) n = Neg(m) }>
ScatterElements: float[4,4] x, int64[4,4] i, float[4,4] u;; y = ScatterElements(x, i, u)
ScatterND: float[4,4] x, int64[2,1] i, float[2,4] u;; y = ScatterND(x, i, u)
SequenceAt: seq(float[4]) s, int64 i;; y = SequenceAt(s, i)
SequenceErase: seq(float[4]) s, int64 i;; y = SequenceErase(s, i)
SequenceInsert: seq(float[4]) s, float[4] x;; y = SequenceInsert(s, x)
SequenceLength: seq(float[4]) s;; y = SequenceLength(s)
SequenceMap: seq(float[4]) s;; y = SequenceMap(s) <body = b (float[4] p) => (float[4] q) { q = Neg(p) }>
Slice: float[4,4] x; int64[1] a = {0}, int64[1] b = {2}; y = Slice(x, a, b)
SoftmaxCrossEntropyLoss: float[4,4] x, int64[4] t;; y = SoftmaxCrossEntropyLoss(x, t)
SpaceToDepth: float[1,1,4,4] x;; y = SpaceToDepth<blocksize=2>(x)
Split: float[4,4] x;; y, z = Split<num_outputs=2>(x)
SplitToSequence: float[4,4] x; int64 n = {2}; y = SplitToSequence(x, n)
Squeeze: float[1,4] x; int64[1] a = {0}; y = Squeeze(x, a)
StringNormalizer: string[4] x;; y = StringNormalizer<is_case_sensitive=1, stopwords=["a"]>(x)
TensorScatter: float[1,2,8,4] x, float[1,2,2,4] u, int64[1] i;; y = TensorScatter(x, u, i)
TfIdfVectorizer: int64[4] x;; y = TfIdfVectorizer<mode="TF", min_gram_length=1, max_gram_length=1, max_skip_count=0, ngram_counts=[0], ngram_indexes=[0,1], pool_int64s=[2,3]>(x)
Tile: float[4,4] x; int64[2] r = {1,2}; y = Tile(x, r)
TopK: float[4] x; int64[1] k = {2}; y, i = TopK(x, k)
Unsqueeze: float[4] x; int64[1] a = {0}; y = Unsqueeze(x, a)
BlackmanWindow: ; int64 n = {8}; y = BlackmanWindow(n)
HammingWindow: ; int64 n = {8}; y = HammingWindow(n)
HannWindow: ; int64 n = {8}; y = HannWindow(n)
"""  # noqa: E501
_BY_NAME = dict(line.split(": ", 1) for line in _TABLE.strip().splitlines())


@functools.cache
def example(domain: str, name: str) -> ir.Node:
    """The example node of an operator at the newest opset, in its own graph."""
    text = _BY_NAME.get(name) if domain == "" else None
    schema = onnx.defs.get_schema(name, newest_opsets()[domain], domain)
    proto = _parse(text) if text is not None else _derive(schema)
    node = infer_shapes(ir.from_proto(proto)).graph[-1]
    for value in node.outputs:  # if ONNX does not infer a new operator: the type of its input
        value.type = value.type or next(v.type for v in node.inputs if v is not None)
    return node


@functools.cache
def newest_opsets() -> dict[str, int]:
    """The newest version of each domain that this onnx defines."""
    newest: dict[str, int] = {}
    for schema in onnx.defs.get_all_schemas():
        newest[schema.domain] = max(newest.get(schema.domain, 1), schema.since_version)
    return newest | {"": onnx.defs.onnx_opset_version()}


def _parse(text: str) -> onnx.ModelProto:
    inputs, constants, node = (part.strip() for part in text.split(";", 2))
    outputs = node.split(" = ", 1)[0]
    constants = f"<{constants}>" if constants else ""
    opset = newest_opsets()[""]
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]>'
        f"g ({inputs}) => ({outputs}) {constants} {{ {node} }}"
    )


def _derive(schema: onnx.defs.OpSchema) -> onnx.ModelProto:
    """A model of one node whose required inputs are 4 x 4, with all required outputs."""
    types = {c.type_param_str: _choose(c.allowed_type_strs) for c in schema.type_constraints}
    single = onnx.defs.OpSchema.FormalParameterOption.Optional
    inputs = [
        onnx.helper.make_value_info(f"x{place}", _type(types.get(p.type_str, p.type_str)))
        for place, p in enumerate(schema.inputs)
        if p.option != single
    ]
    outputs = [f"y{place}" for place in range(max(1, schema.min_output))]
    names = [value.name for value in inputs]
    node = onnx.helper.make_node(schema.name, names, outputs, "n", domain=schema.domain)
    results = [
        onnx.helper.make_value_info(name, _type(types.get(p.type_str, p.type_str), shaped=False))
        for name, p in zip(outputs, schema.outputs)
    ]
    graph = onnx.helper.make_graph([node], "g", inputs, results)
    imports = [onnx.helper.make_opsetid(d, v) for d, v in newest_opsets().items()]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)


def _choose(allowed: Sequence[str]) -> str:
    """The most common type that the schema allows."""
    preferred = ("tensor(float)", "tensor(int64)", "tensor(bool)", "tensor(uint8)")
    allowed = sorted(allowed)
    return next((name for name in preferred if name in allowed), allowed[0])


def _type(text: str, shaped: bool = True) -> onnx.TypeProto:
    """A type from ONNX's spelling of it."""
    outer, _, inner = text.removesuffix(")").partition("(")
    if outer == "seq":
        return onnx.helper.make_sequence_type_proto(_type(inner, shaped))
    if outer == "optional":
        return onnx.helper.make_optional_type_proto(_type(inner, shaped))
    word = {"float": "FLOAT", "double": "DOUBLE"}.get(inner, inner.upper())
    number = onnx.TensorProto.DataType.Value(word)
    return onnx.helper.make_tensor_type_proto(number, [4, 4] if shaped else None)
