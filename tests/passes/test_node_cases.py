"""A sample of ONNX's node tests: every level preserves their outputs.

All of them (1,863 that the reference evaluator passes) were run by hand; the sample takes the first
two and the last of some operators, with those that write the operator as others.
"""

from __future__ import annotations

import onnx_ir as ir
import pytest

from conformance import nodes
from onward.passes.pipelines import PREPARE, Level, inference
from tests.passes.running import assert_same, run_reference

OPERATORS = (
    "AffineGrid Attention AveragePool BatchNormalization BitShift Cast CastLike Celu CenterCropPad "
    "Clip Concat ConvTranspose CumSum DFT DequantizeLinear Dropout Einsum Expand Flatten GatherND "
    "Gelu Gemm GridSample GroupNormalization HardSwish If LSTM LayerNormalization Loop MaxPool "
    "Mish NonZero OneHot OptionalGetElement Pad RMSNormalization Range ReduceLogSum Resize "
    "RotaryEmbedding ScatterElements SequenceInsert Shape Slice Softmax Split Squeeze Swish TopK "
    "Transpose Unique Where"
)


@pytest.mark.sampled("operator")
@pytest.mark.sampled("level")
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("level", list(Level)[::-1])
@pytest.mark.parametrize("operator", OPERATORS.split())
def test_onnx_cases_keep_their_outputs(operator: str, level: Level) -> None:
    names = nodes.by_operator()[operator]
    for name in (*names[:2], *names[2:][-1:]):
        case = nodes.load()[name]
        for inputs, _ in case.data_sets:
            arguments = [value.name for value in case.model.graph.input]
            feeds = dict(zip(arguments, map(nodes.read, inputs)))
            wanted = run_reference(case.model, feeds)
            model = inference(level)(PREPARE(ir.from_proto(case.model)))
            assert_same(wanted, run_reference(model, feeds), rtol=1e-3)
