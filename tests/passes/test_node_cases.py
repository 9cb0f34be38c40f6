"""A sample of ONNX's node tests: every level preserves their outputs.

All of them (1,863 that the reference evaluator passes) were run by hand; the sample takes the first
few of each operator family. Importing a family makes its cases, so that only these are made.
"""

from __future__ import annotations

import importlib
import warnings
from functools import cache
from typing import Any

import onnx_ir as ir
import pytest
from onnx import OptionalProto, SequenceProto, TensorProto, numpy_helper
from onnx.backend.test.case import node as families

from onward.passes.pipelines import PREPARE, Level, inference
from tests.passes.running import assert_same, run_reference

FAMILIES = (
    "affinegrid attention averagepool batch_normalization bitshift cast castlike celu "
    "center_crop_pad clip concat convtranspose cumsum dequantizelinear dft dropout einsum "
    "expand flatten gathernd gelu gemm gridsample groupnormalization hardswish if_ "
    "layernormalization loop lstm maxpool mish nonzero onehot optionalgetelement pad rangeop "
    "reduce_log_sum resize rmsnormalization rotaryembedding scatterelements sequenceinsert "
    "shape slice softmax split squeeze swish topk transpose unique where"
)


@cache
def cases(family: str) -> list[Any]:
    """The first two and the last case of a family."""
    known = {case.name for case in families._NodeTestCases}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(f"onnx.backend.test.case.node.{family}")
    made = [case for case in families._NodeTestCases if case.name not in known]
    if not made:  # somebody has imported it before: its cases are named after it
        stem = f"test_{family.rstrip('_')}"
        made = [case for case in families._NodeTestCases if case.name.startswith(stem)]
    return [*made[:2], *made[2:][-1:]]


def plain(value: Any) -> Any:
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, OptionalProto):
        return numpy_helper.to_optional(value)
    return value


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("family", FAMILIES.split())
def test_onnx_cases_keep_their_outputs(family: str, level: Level) -> None:
    for case in cases(family):
        for inputs, _ in case.data_sets:
            names = [value.name for value in case.model.graph.input]
            feeds = dict(zip(names, map(plain, inputs)))
            wanted = run_reference(case.model, feeds)
            model = inference(level)(PREPARE(ir.from_proto(case.model)))
            assert_same(wanted, run_reference(model, feeds), rtol=1e-3)
