"""Calls of domain `onward` that torch has as one kernel: which it takes, and what it reads of them.

    @kernel("SwishGrad", domain=COMPOSITES)
    @taken_if(lambda call: call.attributes.get_float("alpha") == 1)
    def swish_grad(x: Tensor, y: Unused, dy: Tensor, *, alpha: float, wrt: Ints) -> tuple[Tensor]:

A call that its kernel does not take is inlined before torch sees it. The inputs that come after a
kernel's own parameters are the body's alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import onnx_ir as ir

from onward.graph.operator_table import OpTable
from onward.graph.scopes import walk
from onward.passes.composites import is_call
from onward.passes.prune import drop_nodes

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def taken_if(accepts: Callable[[ir.Node], bool]) -> Callable[[Kernel], Kernel]:
    """Let a kernel take only the calls of which this is true."""

    def mark(function: Kernel) -> Kernel:
        function.accepts = accepts  # type: ignore[attr-defined]
        return function

    return mark


def takes(function: Callable[..., Any], node: ir.Node) -> bool:
    """Whether a kernel takes a node, which is of its operator and of types that torch has."""
    accepts: Callable[[ir.Node], bool] | None = getattr(function, "accepts", None)
    return accepts is None or accepts(node)


def positional(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a kernel that take a node's inputs."""
    parameters = inspect.signature(function).parameters.values()
    return [each for each in parameters if each.kind is not each.KEYWORD_ONLY]


def release_unread(graph: ir.Graph, kernels: OpTable) -> None:
    """Let calls not read what their kernels do not, and drop the nodes that only made that.

    Values of the forward pass then leave memory before the backward.
    """
    calls = [node for node in walk(graph) if is_call(node)]
    for call in calls:
        function = kernels.find(call.domain, call.op_type, graph.opset_imports.get(call.domain, 1))
        if function is None:
            continue
        parameters = positional(function)
        if parameters and parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL:
            continue
        read = [str(each.annotation) != "Unused" for each in parameters]
        for index, value in enumerate(call.inputs):
            if value is not None and not (index < len(read) and read[index]):
                call.replace_input_with(index, None)
    if calls:
        drop_nodes(graph, graph.opset_imports.get("", 1))
