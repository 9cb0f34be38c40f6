"""Traits of ONNX's operators, in one table, asked through predicates.

Names are those of the default domain unless a predicate says otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir


def named(names: str) -> frozenset[str]:
    """A set of operators, written as text."""
    return frozenset(names.split())


# Elementwise operators of two inputs that broadcast against each other.
BROADCASTING = named(
    "Add And BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Mod "
    "Mul Or Pow Sub Xor"
)
# Each element of the result depends on one element of each input, broadcast.
ELEMENTWISE = BROADCASTING | named(
    "Abs Acos Acosh Asin Asinh Atan Atanh BitShift BitwiseNot Cast Ceil Celu Clip Cos Cosh Elu Erf "
    "Exp Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Max Mean Min Mish Neg "
    "Not PRelu Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sum "
    "Swish Tan Tanh ThresholdedRelu Where"
)
# The elements of the first input, in the same order, under another shape: the same memory.
RESHAPING = named("Flatten Reshape Squeeze Unsqueeze")
VIEWS = RESHAPING | {"Identity"}
REDUCTIONS = named(
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare"
)
# Operators that read no more of their input than its shape.
SHAPE_ONLY = named("Shape Size")
# Operators that draw at random in every run ...
RANDOM = named(
    "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike"
)
# ... and those that do so in training mode: the place of the input that says it.
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
    return node.op_type in RANDOM or _drops(node, _RANDOM_IN_TRAINING)


def is_random_contrib(node: ir.Node) -> bool:
    """The same for an operator of com.microsoft."""
    if node.domain != "com.microsoft":
        return False
    return node.op_type in _CONTRIB_RANDOM or _drops(node, _CONTRIB_RANDOM_IN_TRAINING)


def _drops(node: ir.Node, modes: dict[str, int]) -> bool:
    """Whether a node of these operators is in training mode, or may be."""
    place = modes.get(node.op_type)
    mode = None if place is None or place >= len(node.inputs) else node.inputs[place]
    if mode is None:
        return False
    if mode.const_value is None or mode.is_graph_input():  # it is fed, or computed
        return True
    return bool(mode.const_value.numpy().any())
