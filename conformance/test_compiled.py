"""ONNX's node tests on InductorExecutionProvider: one of each operator, as compiling takes seconds.

`make test` compiles those of SAMPLED, `make conformance` all of them.
"""

from __future__ import annotations

from typing import Any

import pytest

from conformance import nodes
from conformance.test_nodes import run

SAMPLED = ("Add", "AveragePool", "Gather", "LayerNormalization")  # of `make test`


def one_of_each() -> list[Any]:
    """The first test of each operator that torch runs, and that is not a gap of its."""
    first: dict[str, str] = {}
    gaps = nodes.gaps("TorchExecutionProvider")
    for name, case in nodes.load().items():
        if len(case.model.graph.node) == 1 and name not in gaps:
            first.setdefault(case.model.graph.node[0].op_type, name)
    return [
        pytest.param(name, marks=() if operator in SAMPLED else pytest.mark.conformance)
        for operator, name in first.items()
    ]


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about its own insides
@pytest.mark.parametrize("name", one_of_each())
def test_node_compiled(name: str) -> None:
    run("InductorExecutionProvider", name)
