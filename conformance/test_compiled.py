"""ONNX's node tests on InductorExecutionProvider: compiling takes seconds, so one an operator."""

from __future__ import annotations

import pytest

from conformance import nodes
from conformance.test_nodes import run


def one_of_each() -> list[str]:
    """The first test of each operator that torch runs, and that is not a gap of its."""
    first: dict[str, str] = {}
    gaps = nodes.gaps("TorchExecutionProvider")
    for name, case in nodes.load().items():
        if len(case.model.graph.node) == 1 and name not in gaps:
            first.setdefault(case.model.graph.node[0].op_type, name)
    return list(first.values())


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about its own insides
@pytest.mark.parametrize("name", one_of_each())
def test_node_compiled(name: str) -> None:
    run("InductorExecutionProvider", name)
