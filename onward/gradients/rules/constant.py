"""Operators without a gradient, and the reasons."""

from __future__ import annotations

from onward.gradients.rule import GradientTable
from onward.graph.operators import BOOLEAN, RANDOM
from onward.passes.random_functions import (
    DOMAIN,
    DROPOUT_MASK,
    RANDOM_KEY,
    STOCHASTIC_ROUND,
    UNIFORM,
)
from onward.passes.value_facts import operators

gradient = GradientTable()

gradient.none(
    "piecewise constant",
    *operators("Ceil Floor Hardmax MelWeightMatrix Round Sign TfIdfVectorizer"),
)
gradient.none(
    "integer",
    *operators(
        "ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor ConvInteger "
        "MatMulInteger NonMaxSuppression NonZero QLinearConv QLinearMatMul"
    ),
)
gradient.none(
    "boolean",
    *sorted(BOOLEAN),
)
gradient.none("bits, not numbers", *operators("BitCast ImageDecoder"))
gradient.none(
    "made from sizes and attributes",
    *operators(
        "BlackmanWindow Constant ConstantOfShape EyeLike HammingWindow HannWindow Shape Size"
    ),
)
gradient.none("random", *sorted(RANDOM))
gradient.none("random", RANDOM_KEY, UNIFORM, DROPOUT_MASK, STOCHASTIC_ROUND, domain=DOMAIN)
gradient.none("text", *operators("RegexFullMatch StringConcat StringNormalizer StringSplit"))
