"""The table of operator traits: sets of ONNX operators that share a property, and predicates.

Names are those of the default domain unless a predicate says otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir


def named(names: str) -> frozenset[str]:
    """A set of operators, written as text."""
    return frozenset(names.split())


# -- elementwise -------------------------------------------------------------------------------

COMPARISONS = named("Equal Greater GreaterOrEqual Less LessOrEqual")
# Elementwise operators of two inputs that broadcast against each other.
BROADCASTING = COMPARISONS | named(
    "Add And BitwiseAnd BitwiseOr BitwiseXor Div Mod Mul Or Pow Sub Xor"
)
# ... and of any number of inputs.
VARIADIC = named("Max Mean Min Sum")
# The result is true or false.
BOOLEAN = COMPARISONS | named("And IsInf IsNaN Not Or Xor")
# Elementwise operators whose result has the shape of the first input.
UNARY = named(
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast Ceil Celu Clip Cos Cosh Elu Erf Exp "
    "Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not PRelu "
    "Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh "
    "ThresholdedRelu"
)
# Each element of the result depends on one element of each input, broadcast.
ELEMENTWISE = BROADCASTING | VARIADIC | UNARY | named("BitShift Where")
# Engines compute these so that the result may be written over an input of its shape; of VARIADIC
# ones, only with two inputs: a third is read after the first two were written.
IN_PLACE = named("Add Clip Div Identity Max Min Mul Sub Where")

# -- shapes ------------------------------------------------------------------------------------

# The first output has the shape of the first input.
SAME_SHAPE = UNARY | named(
    "BatchNormalization Bernoulli CumProd CumSum DequantizeLinear Dropout EyeLike "
    "GroupNormalization Hardmax InstanceNormalization LRN LayerNormalization LogSoftmax "
    "LpNormalization MeanVarianceNormalization QuantizeLinear RMSNormalization RandomNormalLike "
    "RandomUniformLike ReverseSequence ScatterElements ScatterND Softmax Trilu"
)
# The elements of the first input, in the same order, under another shape: the same memory.
RESHAPING = named("Flatten Reshape Squeeze Unsqueeze")
VIEWS = RESHAPING | {"Identity"}
# The first output has as many elements as the first input ...
SAME_COUNT = SAME_SHAPE | RESHAPING | named("DepthToSpace SpaceToDepth Transpose")
# ... or as many axes.
SAME_RANK = SAME_SHAPE | named("AveragePool LpPool MaxPool Pad")
REDUCTIONS = named(
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare"
)
# Operators that read no more of their input than its shape.
SHAPE_ONLY = named("Shape Size")

# -- what moves, sums and repeats --------------------------------------------------------------

# Elements picked out of the first input: no more of it is read than is written.
SELECTING = named("Gather GatherElements GatherND Slice")
# Every element of the result is one of the first input's; other inputs say from where.
REARRANGING = (
    VIEWS
    | SELECTING
    | named("Compress DepthToSpace Expand ReverseSequence SpaceToDepth Split Tile Transpose")
)
# Sums of products of the input and a weight.
PRODUCTS = named("Conv ConvTranspose DeformConv Einsum Gemm MatMul")
RECURRENT = named("GRU LSTM RNN")
LOOPS = named("Loop Scan")
CONTROL_FLOW = LOOPS | {"If"}  # operators with subgraphs

# -- randomness --------------------------------------------------------------------------------

# Operators that draw at random in every run ...
RANDOM = named(
    "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike"
)
# ... and those that draw in training mode: the index of the input that turns it on.
_RANDOM_IN_TRAINING = {"Dropout": 2}
MAY_DRAW = RANDOM | _RANDOM_IN_TRAINING.keys()

# The same, of com.microsoft.
_CONTRIB_RANDOM = named("Sampling")
_CONTRIB_RANDOM_IN_TRAINING = {"BiasDropout": 4, "BitmaskBiasDropout": 4, "BitmaskDropout": 2}


def is_random(node: ir.Node) -> bool:
    """Whether a node's outputs differ from run to run: it draws, and nothing turns that off.

    Dropout drops where its training mode is true, or not known before the run.
    """
    if node.domain != "":
        return False
    return node.op_type in RANDOM or _may_train(node, _RANDOM_IN_TRAINING)


def is_random_contrib(node: ir.Node) -> bool:
    """The same for operators of com.microsoft, which no pass rewrites."""
    if node.domain != "com.microsoft":
        return False
    return node.op_type in _CONTRIB_RANDOM or _may_train(node, _CONTRIB_RANDOM_IN_TRAINING)


def _may_train(node: ir.Node, modes: dict[str, int]) -> bool:
    """Whether a node of these operators is in training mode, or may be."""
    index = modes.get(node.op_type)
    mode = None if index is None or index >= len(node.inputs) else node.inputs[index]
    if mode is None:
        return False
    if mode.const_value is None or mode.is_graph_input():  # fed or computed
        return True
    return bool(mode.const_value.numpy().any())
