"""Lower an ONNX graph to one flat Python function over torch tensors.

The function is written as source, so that nothing is looked up while it runs: one line a node,
subgraphs as nested functions (Python's closures are ONNX's outer scopes), values dropped after
their last use. What comes from Shape stays a Python int, so that Inductor sees symbols:

    def forward(self, x):
        v0 = [x.shape[0], 4]                  # host: plain numbers
        v1 = reshape(x, v0, allowzero=0)
        return (v1,)
"""

from __future__ import annotations

import inspect
import keyword
import linecache
import math
import re
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onward.errors import UnsupportedModel
from onward.graph.table import OpTable
from onward.providers.torch.tensors import to_torch
from onward.providers.torch.types import torch_dtype

_HOST_TYPES = {ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL}
_LARGEST_LITERAL = 1024  # elements of a constant that may be written into the source
_serial = count()


class Lowered(torch.nn.Module):
    """A lowered graph: its weights as buffers, its function as `forward`."""

    def __init__(self, source: str, names: dict[str, Any], weights: dict[str, Any]) -> None:
        super().__init__()
        self.source = source
        for name, tensor in weights.items():
            self.register_buffer(name, tensor, persistent=False)
        file = f"<onward lowered graph {next(_serial)}>"
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        exec(compile(source, file, "exec"), names)
        self.forward = names["forward"].__get__(self)


def lower(
    graph: ir.Graph, kernels: OpTable, host: OpTable, device: torch.device | None = None
) -> Lowered:
    """Lower a prepared graph (opset upgraded, functions inlined, default attributes filled in).

    Returns a module that takes the graph's inputs in order, as torch tensors, and returns the
    tuple of its outputs.
    """
    writer = _Writer(kernels, host, graph.opset_imports, device or torch.device("cpu"))
    writer.function("forward", graph, method=True)
    return Lowered("\n".join(writer.lines) + "\n", writer.names, writer.weights)


class _Writer:
    """Writes one function's source, and its nested functions', line by line."""

    def __init__(
        self, kernels: OpTable, host: OpTable, opsets: dict[str, int], device: torch.device
    ) -> None:
        self.kernels, self.host, self.opsets, self.device = kernels, host, opsets, device
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "as_tensor": _as_tensor,
            "as_list": _as_list,
            "as_scalar": _as_scalar,
            "device": device,
            "inf": math.inf,
            "nan": math.nan,
        }
        self.weights: dict[str, torch.Tensor] = {}
        self._values: dict[ir.Value, str] = {}  # what each value is called in the source
        self._on_host: set[ir.Value] = set()  # values that are Python numbers
        self._tensors_of: dict[ir.Value, str] = {}  # host value -> its tensor's name
        self._numbered = count()
        self._indent = 0

    # -- functions -----------------------------------------------------------------------------

    def function(self, name: str, graph: ir.Graph, *, method: bool = False) -> None:
        """Write `graph` as a function; outer values are found by Python's own closures."""
        for value in graph.inputs:
            self._values[value] = self._fresh()
        arguments = ["self"] * method + [self._values[value] for value in graph.inputs]
        self._line(f"def {name}({', '.join(arguments)}):")
        self._indent += 1
        outer_tensors = dict(self._tensors_of)
        for value in graph.initializers.values():
            if value not in self._values:
                self._values[value] = self._weight(value.const_value)
        last_uses = _last_uses(graph)
        for node in graph:
            self._node(node)
            self._drop(last_uses.get(node, ()))
        outputs = [self._tensor(value) for value in graph.outputs]
        self._line(f"return ({''.join(f'{output}, ' for output in outputs)})")
        self._indent -= 1
        self._tensors_of = outer_tensors

    def _drop(self, values: Iterable[ir.Value]) -> None:
        names = [self._values[value] for value in values if value in self._values]
        names += [self._tensors_of.pop(value) for value in values if value in self._tensors_of]
        names = [name for name in names if name.isidentifier()]
        if names:
            self._line(f"del {', '.join(names)}")

    # -- nodes ---------------------------------------------------------------------------------

    def _node(self, node: ir.Node) -> None:
        opset = self.opsets.get(node.domain, 1)
        if self._stays_on_host(node, opset):
            function = self.host.find(node.domain, node.op_type, opset)
            self._on_host.update(node.outputs)
        else:
            function = self.kernels.find(node.domain, node.op_type, opset)
        if function is None:
            raise UnsupportedModel(
                f"no torch kernel for {node.domain or 'ai.onnx'}::{node.op_type} at opset {opset} "
                f"(node {node.name!r})\nlist another provider after TorchExecutionProvider"
            )
        signature = inspect.signature(function)
        on_host = node.outputs[0] in self._on_host
        arguments = self._arguments(node, signature, on_host)
        arguments += self._attributes(node, signature, on_host)
        call = f"{self._named(function)}({', '.join(arguments)})"
        targets = self._targets(node)
        if str(signature.return_annotation).startswith("tuple"):
            targets = f"{targets} *_" if targets.endswith(",") else f"{targets}, *_"
        self._line(f"{targets} = {call}")

    def _targets(self, node: ir.Node) -> str:
        names = []
        for output in node.outputs:
            self._values[output] = self._fresh() if output.name else "_"
            names.append(self._values[output])
        return ", ".join(names)

    def _stays_on_host(self, node: ir.Node, opset: int) -> bool:
        """Whether a node computes with shapes alone, so that plain numbers do."""
        if self.host.find(node.domain, node.op_type, opset) is None:
            return False
        (output, *more) = node.outputs
        rank = None if output.shape is None else output.shape.rank()
        if more or output.dtype not in _HOST_TYPES or rank is None or rank > 1:
            return False
        if node.op_type in ("Shape", "Size"):
            return True
        inputs = [value for value in node.inputs if value is not None]
        return any(value in self._on_host for value in inputs) and all(
            value in self._on_host or _literal(value) is not None for value in inputs
        )

    def _arguments(
        self, node: ir.Node, signature: inspect.Signature, on_host: bool
    ) -> list[str]:
        """The node's inputs, each as its kernel's annotation wants it."""
        parameters = [p for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]
        arguments = []
        for index, value in enumerate(node.inputs):
            parameter = parameters[min(index, len(parameters) - 1)]
            wanted = str(parameter.annotation).removesuffix(" | None")
            if value is None:
                arguments.append("None")
            elif wanted in ("Ints", "Int", "Floats", "Float"):
                arguments.append(self._numbers(value, wanted))
            elif on_host and node.op_type not in ("Shape", "Size"):
                arguments.append(self._plain(value))
            else:
                arguments.append(self._tensor(value))
        return arguments

    def _attributes(
        self, node: ir.Node, signature: inspect.Signature, on_host: bool
    ) -> list[str]:
        arguments = []
        for attribute in node.attributes.values():
            name = attribute.name + "_" * keyword.iskeyword(attribute.name)
            if on_host and attribute.type is ir.AttributeType.TENSOR:
                text = repr(attribute.as_tensor().numpy().item())
            else:
                text = self._attribute(attribute)
            arguments.append(f"{name}={text}")
        if "outputs" in signature.parameters:  # a kernel may ask how many outputs are wanted
            arguments.append(f"outputs={len(node.outputs)}")
        return arguments

    def _attribute(self, attribute: ir.Attr) -> str:
        if attribute.type is ir.AttributeType.GRAPH:
            name = f"{attribute.name}_{next(self._numbered)}"
            self.function(name, attribute.as_graph())
            return name
        if attribute.type is ir.AttributeType.TENSOR:
            return self._weight(attribute.as_tensor())
        value = attribute.value
        if isinstance(value, (int, float, str)):
            return repr(value)
        if isinstance(value, (list, tuple)) and all(isinstance(v, (int, float, str)) for v in value):
            return repr(list(value))
        return self._object(value)

    # -- values --------------------------------------------------------------------------------

    def _tensor(self, value: ir.Value) -> str:
        """A value as a tensor; what stayed on the host is turned into one, once."""
        if value not in self._on_host:
            return self._values[value]
        if value not in self._tensors_of:
            name = self._tensors_of[value] = self._fresh()
            dtype = self._object(torch_dtype(value.dtype or ir.DataType.INT64))
            self._line(f"{name} = as_tensor({self._values[value]}, {dtype}, device)")
        return self._tensors_of[value]

    def _numbers(self, value: ir.Value, wanted: str) -> str:
        """A value as Python numbers: from the host, from a constant, or read off a tensor."""
        literal = _literal(value, floats=wanted in ("Floats", "Float"))
        if literal is not None:
            return repr(_CONVERT[wanted](literal))
        return f"{_CONVERT[wanted].__name__[1:]}({self._values[value]})"

    def _plain(self, value: ir.Value) -> str:
        """What a host function takes: a number, or a list of them, as the value's rank has it."""
        return self._values[value] if value in self._on_host else repr(_literal(value))

    def _weight(self, tensor: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = to_torch(tensor.numpy(), self.device)
        return f"self.{name}"

    def _named(self, function: Callable[..., Any]) -> str:
        name = re.sub(r"\W", "_", function.__name__)
        while self.names.setdefault(name, function) is not function:
            name += "_"
        return name

    def _object(self, thing: Any) -> str:
        name = f"o{next(self._numbered)}"
        self.names[name] = thing
        return name

    def _fresh(self) -> str:
        return f"v{next(self._numbered)}"

    def _line(self, text: str) -> None:
        self.lines.append("    " * self._indent + text)


def _literal(value: ir.Value, *, floats: bool = False) -> Any:
    """A small constant of rank 0 or 1 as Python numbers, else None."""
    tensor = value.const_value
    if tensor is None or value.is_graph_input():
        return None
    if tensor.size > _LARGEST_LITERAL or len(tensor.shape) > 1:
        return None
    if tensor.dtype not in _HOST_TYPES and not (floats and tensor.dtype.is_floating_point()):
        return None
    return tensor.numpy().astype(np.float64 if floats else None, copy=False).tolist()


def _as_tensor(numbers: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype, device=device)


def _as_list(value: Any) -> list[Any]:
    """Python numbers from a tensor, a number or a list of them, as a list."""
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _as_scalar(value: Any) -> Any:
    (number,) = _as_list(value)
    return number


_CONVERT = {"Ints": _as_list, "Floats": _as_list, "Int": _as_scalar, "Float": _as_scalar}


def _last_uses(graph: ir.Graph) -> dict[ir.Node, list[ir.Value]]:
    """For each node, the values of this graph that nobody reads after it."""
    kept = set(graph.outputs)
    last: dict[ir.Value, ir.Node] = {}
    for node in graph:
        for used in _reads(node):
            last[used] = node
        for output in node.outputs:
            last.setdefault(output, node)
    ours = {value for node in graph for value in node.outputs} | set(graph.inputs)
    drops: dict[ir.Node, list[ir.Value]] = {}
    for value, node in last.items():
        if value in ours and value not in kept and value.name:
            drops.setdefault(node, []).append(value)
    return drops


def _reads(node: ir.Node) -> list[ir.Value]:
    """The values a node reads, those that its subgraphs capture included."""
    reads = [value for value in node.inputs if value is not None]
    for attribute in node.attributes.values():
        if attribute.type is ir.AttributeType.GRAPH:
            body = attribute.as_graph()
            reads.extend(value for inner in body for value in _reads(inner))
            reads.extend(body.outputs)
    return reads
