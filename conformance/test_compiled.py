"""ONNX's node tests on InductorExecutionProvider: one of each operator, as compiling takes seconds.

`make test` compiles the first operator of each module of kernels, `make conformance` all of them.
"""

from __future__ import annotations

from typing import Any

import pytest

from conformance import nodes
from conformance.test_nodes import run
from onward.passes.upgrade import newest_opset
from onward.providers.torch.table import KERNELS


def one_of_each() -> list[Any]:
    """The first test of each operator that torch runs, and that is not a gap of its."""
    first: dict[str, str] = {}
    gaps = nodes.gaps("TorchExecutionProvider")
    for name, case in nodes.load().items():
        if len(case.model.graph.node) == 1 and name not in gaps:
            first.setdefault(case.model.graph.node[0].op_type, name)
    sample = sampled(first)
    return [
        name if operator in sample else pytest.param(name, marks=pytest.mark.conformance)
        for operator, name in first.items()
    ]


def sampled(operators: dict[str, str]) -> set[str]:
    """The first operator of each module of kernels, and those that are written as others."""
    modules: dict[str, str] = {}
    for operator in operators:
        kernel = KERNELS.find("", operator, newest_opset())
        modules.setdefault("" if kernel is None else kernel.__module__, operator)
    return set(modules.values())


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about its own insides
@pytest.mark.parametrize("name", one_of_each())
def test_node_compiled(name: str) -> None:
    run("InductorExecutionProvider", name)
