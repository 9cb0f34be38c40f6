"""Kernels of whole `onward` calls: which calls a kernel accepts, and which inputs it reads.

    @kernel("SwishGrad", domain=COMPOSITES)
    @accepts_if(lambda call: call.attributes.get_float("alpha") == 1)
    def swish_grad(x: Tensor, y: Unused, dy: Tensor, *, alpha: float, wrt: Ints) -> tuple[Tensor]:

A call that its kernel does not accept is inlined before torch sees it. Only the call's body reads
inputs that come after the kernel's parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import onnx_ir as ir

from onward.graph.operator_table import OpTable
from onward.graph.scopes import walk
from onward.passes.composites import is_call
from onward.passes.drop_unused import drop_nodes

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def accepts_if(accepts: Callable[[ir.Node], bool]) -> Callable[[Kernel], Kernel]:
    """Decorate a kernel that accepts only calls for which `accepts` is true."""

    def mark(function: Kernel) -> Kernel:
        function.accepts = accepts  # type: ignore[attr-defined]
        return function

    return mark


def kernel_accepts(function: Callable[..., Any], node: ir.Node) -> bool:
    """Whether a kernel accepts a node of its operator."""
    accepts: Callable[[ir.Node], bool] | None = getattr(function, "accepts", None)
    return accepts is None or accepts(node)


def positional(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a kernel that take a node's inputs."""
    parameters = inspect.signature(function).parameters.values()
    return [each for each in parameters if each.kind is not each.KEYWORD_ONLY]


def drop_unread_inputs(graph: ir.Graph, kernels: OpTable) -> None:
    """Remove inputs of calls that their kernels do not read, and nodes that are then unused.

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
