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
    gaps = nodes.gaps("TorchExecutionProvider")
    passing = {
        operator: [name for name in names if name not in gaps and "_expanded" not in name]
        for operator, names in nodes.by_operator().items()
    }
    return [
        pytest.param(names[0], marks=() if operator in SAMPLED else pytest.mark.conformance)
        for operator, names in passing.items()
        if names
    ]


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about its own insides
@pytest.mark.parametrize("name", one_of_each())
def test_node_compiled(name: str) -> None:
    run("InductorExecutionProvider", name)
