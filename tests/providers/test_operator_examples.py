"""An engine that runs an ONNX test of an operator also runs its example."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from conformance.nodes import load
from onward.providers.choose import available, choose
from onward.providers.operator_examples import example, newest_opsets
from onward.providers.options import SessionOptions

TESTS_ASKED = 6  # of one operator: enough to meet its usual types and attributes


def test_example_has_the_newest_opset() -> None:
    node = example("", "Conv")
    assert node.op_type == "Conv" and node.graph is not None
    assert node.graph.opset_imports[""] == newest_opsets()[""] >= 28
    assert example("", "Conv") is node


def test_example_derived_from_a_schema() -> None:
    node = example("", "Where")
    assert [value.dtype for value in node.inputs if value is not None] == [
        ir.DataType.BOOL,
        ir.DataType.FLOAT,
        ir.DataType.FLOAT,
    ]


def test_example_with_subgraphs() -> None:
    assert example("", "If").attributes["then_branch"].as_graph()[0].op_type == "Neg"


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in available() if not n.startswith("Inductor")])
def test_engine_that_runs_an_onnx_test_runs_the_example(name: str) -> None:
    options = SessionOptions(disable_fallback=True)
    (engine,) = choose([name], None, options).engines(options)
    runs: set[str] = set()
    asked: dict[str, int] = {}
    for case in load().values():
        model = ir.from_proto(case.model)
        for node in model.graph if "_expanded" not in case.name else ():
            asked[node.op_type] = asked.get(node.op_type, 0) + 1
            few = node.domain == "" and asked[node.op_type] <= TESTS_ASKED
            if few and engine.provider.supports(node, model.opset_imports):
                runs.add(node.op_type)
    newest = newest_opsets()
    refused = [op for op in runs if not engine.provider.supports(example("", op), newest)]
    assert len(runs) > 100 and not refused
