"""Lower an ONNX graph to one flat Python function over torch tensors.

The function is written as source, so that nothing is looked up while it runs: one line a node,
subgraphs as nested functions (Python's closures are ONNX's outer scopes), values dropped after
their last use. Sizes read by Shape stay Python ints, so that Inductor sees symbols:

    def forward(self, v0):
        w = self._buffers
        v1 = host_shape(v0, start=0, end=1)  # plain numbers
        v2 = host_concat(v1, [4], axis=0)
        v3 = reshape(v0, as_list(v2), allowzero=0)
        v0 = v1 = v2 = None
        v4 = matmul(v3, w["w0"])
        v3 = None
        return (v4,)
"""

from __future__ import annotations

import functools
import inspect
import keyword
import linecache
import math
import re
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import onnx_ir as ir
import torch

from onward.errors import InvalidModel, UnsupportedModel
from onward.graph.operator_table import OpTable
from onward.graph.scopes import last_uses
from onward.graph.shapes.declared import scanned_shape
from onward.passes.composites import is_call
from onward.providers.torch.composite_calls import drop_unread_inputs
from onward.providers.torch.dtypes import DTYPES, torch_dtype
from onward.providers.torch.kernels.emulated_dtypes import without_emulation
from onward.providers.torch.python_numbers import (
    CONVERSIONS,
    RANKS,
    as_list,
    as_numbers,
    as_scalar,
    as_tensor,
    is_short,
    literal,
)
from onward.providers.torch.tensors import to_torch
from onward.providers.trace_events import NodeTimer

_CHECK = "check()"  # the line before a node, where a run may be stopped
_FILE = "<onward lowered graph"
_serial = count()


class Lowered(torch.nn.Module):
    """A lowered graph: its weights as buffers, its function as `forward`."""

    def __init__(
        self,
        lines: list[str],
        names: dict[str, Any],
        weights: dict[str, Any],
        nodes: dict[str, tuple[str, str]] | None = None,
    ) -> None:
        super().__init__()
        self._lines, self._names = lines, names
        self._nodes = nodes or {}  # a node's line -> its operator and name
        for name, tensor in weights.items():
            self.register_buffer(name, tensor, persistent=False)
        self.source = "\n".join(line for line in lines if line.strip() != _CHECK) + "\n"
        self.forward = self._function(self.source)

    @functools.cached_property
    def checked(self) -> Callable[..., Any]:
        """`forward`, its first argument a function that is called before every node."""
        return self._function(
            "\n".join(self._lines).replace("def forward(self", "def forward(self, check", 1) + "\n"
        )

    def failed_node(self, error: BaseException) -> tuple[str, str] | None:
        """The operator and name of the node that raised an error; None if no node did."""
        found = None
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename.startswith(_FILE) and frame.line:
                found = self._nodes.get(frame.line.strip(), found)
        return found

    def _function(self, source: str) -> Callable[..., Any]:
        file, names = f"{_FILE} {next(_serial)}>", dict(self._names)
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        weakref.finalize(self, linecache.cache.pop, file, None)
        exec(compile(source, file, "exec"), names)
        bound: Callable[..., Any] = names["forward"].__get__(self)
        return bound


def lower(
    graph: ir.Graph,
    kernels: OpTable,
    host: OpTable,
    device: torch.device | None = None,
    notes: NodeTimer | None = None,
) -> Lowered:
    """Lower a prepared graph (opset upgraded, functions inlined, default attributes filled in).

    Returns a module that takes the graph's inputs in order, as torch tensors, and returns the
    tuple of its outputs. With `notes`, the code records the time of every node. The graph is
    changed: calls of domain `onward` lose inputs that their kernels do not read.
    """
    drop_unread_inputs(graph, kernels)
    writer = _Writer(kernels, host, graph.opset_imports, device or torch.device("cpu"), notes)
    writer.function("forward", graph, method=True)
    return Lowered(writer.lines, writer.names, writer.weights, writer.nodes)


class _Writer:
    """Writes the source of a function and its nested functions, line by line."""

    def __init__(
        self,
        kernels: OpTable,
        host: OpTable,
        opsets: dict[str, int],
        device: torch.device,
        notes: NodeTimer | None,
    ) -> None:
        self.kernels, self.host, self.opsets, self.device = kernels, host, opsets, device
        self.notes = notes
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "as_tensor": as_tensor,
            "as_list": as_list,
            "as_scalar": as_scalar,
            "as_numbers": as_numbers,
            "device": device,
            "inf": math.inf,
            "nan": math.nan,
        }
        if notes is not None:
            self.names.update(now=time.perf_counter_ns, note=notes.record)
        self.weights: dict[str, torch.Tensor] = {}
        self.nodes: dict[str, tuple[str, str]] = {}
        self._values: dict[ir.Value, str] = {}  # the name of each value in the source
        self._on_host: set[ir.Value] = set()  # values that are Python numbers
        self._tensors_of: dict[ir.Value, str] = {}  # host value -> its tensor's name
        self._numbered = count()
        self._indent = 0

    # -- functions -----------------------------------------------------------------------------

    def function(
        self, name: str, graph: ir.Graph, *, method: bool = False, body: bool = False
    ) -> None:
        """Write `graph` as a function; Python's closures find values of outer graphs.

        In a Loop's `body`, the iteration, the condition and the returned condition are Python
        numbers.
        """
        for value in graph.inputs:
            self._values[value] = self._fresh()
        arguments = ["self"] * method + [self._values[value] for value in graph.inputs]
        self._line(f"def {name}({', '.join(arguments)}):")
        self._indent += 1
        if method:  # to read a buffer as an attribute of the module costs a microsecond
            self._line("w = self._buffers")
        outer_tensors = dict(self._tensors_of)
        for value in graph.inputs[: 2 * body]:
            self._on_host.add(value)
            if value.shape is not None and value.shape.rank() == 1:
                self._line(f"{self._values[value]} = [{self._values[value]}]")
        drops = last_uses(graph)
        for node in graph:
            self._line(_CHECK)
            self._node(node)
            self._drop(drops.get(node, ()))
        if not len(graph):  # an empty loop must be stoppable, too
            self._line(_CHECK)
        outputs = [self._numbers(value, "Int") for value in graph.outputs[:body]]
        outputs += [self._tensor(value) for value in graph.outputs[body:]]
        self._line(f"return ({', '.join(outputs)},)" if outputs else "return ()")
        self._indent -= 1
        self._tensors_of = outer_tensors

    def _drop(self, values: Iterable[ir.Value]) -> None:
        names = [self._values[value] for value in values]
        names += [self._tensors_of.pop(value) for value in values if value in self._tensors_of]
        if names:  # dynamo cannot `del` what a nested function captures
            self._line(" = ".join([*names, "None"]))

    # -- nodes ---------------------------------------------------------------------------------

    def _node(self, node: ir.Node) -> None:
        opset = self.opsets.get(node.domain, 1)
        function, prefix = self._host_function(node, opset), "host_"
        if function is not None:
            self._on_host.update(node.outputs)
        else:
            function, prefix = self.kernels.find(node.domain, node.op_type, opset), ""
        if function is None:
            raise UnsupportedModel(
                f"no torch kernel for {node.domain or 'ai.onnx'}::{node.op_type} at opset {opset} "
                f"(node {node.name!r})\nlist another provider after TorchExecutionProvider"
            )
        function = without_emulation(function, map(_dtype, node.inputs))
        signature = inspect.signature(function)
        arguments = self._arguments(node, signature)
        arguments += self._attributes(node, signature)
        arguments += self._requested_keywords(node, signature)
        call = f"{self._named(function, prefix)}({', '.join(arguments)})"
        targets = self._targets(node)
        results = f"({', '.join(targets)},)"
        if str(signature.return_annotation).startswith("tuple"):
            targets.append("*_")
        if self.notes is not None:
            self._line("started = now()")
        line = f"{', '.join(targets)} = {call}"
        self.nodes[line] = (node.op_type, node.name or "")
        self._line(line)
        if self.notes is not None:
            number = self.notes.add_node(node.name, node.op_type, [v.name for v in node.outputs])
            self._line(f"note({number}, started, {results})")

    def _targets(self, node: ir.Node) -> list[str]:
        for output in node.outputs:
            self._values[output] = self._fresh() if output.name else "_"
        return [self._values[output] for output in node.outputs]

    def _host_function(self, node: ir.Node, opset: int) -> Callable[..., Any] | None:
        """The host function of a node that reads only shapes and constants; else None."""
        function = self.host.find(node.domain, node.op_type, opset)
        if function is None:
            return None
        signature = inspect.signature(function)
        rank = RANKS.get(str(signature.return_annotation), 1)
        if not all(is_short(output, rank, node.op_type) for output in node.outputs):
            return None
        known = (
            self._is_known(value, RANKS[wanted])
            for value, wanted in _annotated_inputs(node, signature)
            if value is not None and wanted in RANKS
        )
        return function if all(known) else None

    def _is_known(self, value: ir.Value, rank: int) -> bool:
        """Whether a value of at most this rank is on the host, or a constant."""
        if value in self._on_host:
            return value.shape is None or value.shape.rank() <= rank
        return literal(value, floats=True) is not None

    def _arguments(self, node: ir.Node, signature: inspect.Signature) -> list[str]:
        """The node's inputs, each in the form of its kernel's annotation."""
        arguments = []
        for value, wanted in _annotated_inputs(node, signature):
            if value is None:
                arguments.append("None")
            elif wanted in CONVERSIONS:
                arguments.append(self._numbers(value, wanted))
            elif wanted == "Tensor | Numbers" and value in self._on_host:
                arguments.append(self._name(value))
            elif wanted == "Tensor | Int" and self._is_number(value):
                arguments.append(self._numbers(value, "Int"))
            else:
                arguments.append(self._tensor(value))
        return arguments

    def _attributes(self, node: ir.Node, signature: inspect.Signature) -> list[str]:
        arguments = []
        for attribute in node.attributes.values():
            name = attribute.name + "_" * keyword.iskeyword(attribute.name)
            parameter = signature.parameters.get(name)
            wanted = "" if parameter is None else _annotation(parameter)
            arguments.append(f"{name}={self._attribute(attribute, wanted)}")
        return arguments

    def _requested_keywords(self, node: ir.Node, signature: inspect.Signature) -> list[str]:
        """The keyword arguments that a kernel requests in addition to its attributes."""
        answers = {
            "outputs": len(node.outputs),
            "wanted": [bool(value.name) for value in node.outputs],
            "device": "device",
            "input_type": _type_number(*node.inputs[:1]),
            "output_type": _type_number(*node.outputs[:1]),
            "output_types": [_type_number(value) for value in node.outputs],
            "output_shapes": [scanned_shape(value) for value in node.outputs],
        }
        return [f"{name}={answers[name]}" for name in signature.parameters if name in answers]

    def _attribute(self, attribute: ir.Attr, wanted: str) -> str:
        if attribute.type is ir.AttributeType.GRAPH:
            name = f"{attribute.name}_{next(self._numbered)}"
            self.function(name, attribute.as_graph(), body=wanted == "LoopBody")
            return name
        if attribute.type is ir.AttributeType.TENSOR:
            if wanted == "Float":
                return repr(attribute.as_tensor().numpy().item())
            return self._weight(attribute.as_tensor())
        value = attribute.value
        if _is_plain(value):
            return repr(value)
        if isinstance(value, (list, tuple)) and all(map(_is_plain, value)):
            return repr(list(value))
        return self._constant_name(value)

    # -- values --------------------------------------------------------------------------------

    def _tensor(self, value: ir.Value) -> str:
        """A value as a tensor; a host value is converted once."""
        if value not in self._on_host:
            return self._name(value)
        if value not in self._tensors_of:
            name = self._tensors_of[value] = self._fresh()
            dtype = self._constant_name(torch_dtype(value.dtype or ir.DataType.INT64))
            self._line(f"{name} = as_tensor({self._values[value]}, {dtype}, device)")
        return self._tensors_of[value]

    def _numbers(self, value: ir.Value, wanted: str) -> str:
        """A value as Python numbers: from the host, from a constant, or read from a tensor."""
        known = literal(value, floats=wanted not in ("Ints", "Int"))
        if known is not None:
            return repr(CONVERSIONS[wanted](known))
        name = self._name(value)
        if wanted in RANKS and value in self._on_host:
            return name
        return f"{CONVERSIONS[wanted].__name__}({name})"

    def _is_number(self, value: ir.Value) -> bool:
        """Whether a value is one Python number: of rank 0, from the host or a constant."""
        if value in self._on_host:
            return value.shape is None or value.shape.rank() == 0
        known = literal(value)
        return known is not None and not isinstance(known, list)

    def _name(self, value: ir.Value) -> str:
        if value not in self._values:  # an initializer's first use as a tensor
            if value.const_value is None:
                raise InvalidModel(f"no node, input or initializer gives value {value.name!r}")
            self._values[value] = self._weight(value.const_value)
        return self._values[value]

    def _weight(self, tensor: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = to_torch(tensor.numpy(), self.device)
        return f'w["{name}"]'

    def _named(self, function: Callable[..., Any], prefix: str) -> str:
        name = prefix + re.sub(r"\W", "_", function.__name__)
        while self.names.setdefault(name, function) is not function:
            name += "_"
        return name

    def _constant_name(self, thing: Any) -> str:
        name = f"o{next(self._numbered)}"
        self.names[name] = thing
        return name

    def _fresh(self) -> str:
        return f"v{next(self._numbered)}"

    def _line(self, text: str) -> None:
        self.lines.append("    " * self._indent + text)


def _is_plain(value: Any) -> bool:
    return isinstance(value, (int, float, str))


def _dtype(value: ir.Value | None) -> torch.dtype | None:
    return None if value is None or value.dtype is None else DTYPES.get(int(value.dtype))


def _type_number(value: ir.Value | None = None) -> int:
    """ONNX's number of a value's type, 0 if unknown."""
    return 0 if value is None or value.dtype is None else int(value.dtype)


def _annotation(parameter: inspect.Parameter) -> str:
    return str(parameter.annotation).removesuffix(" | None")


def _annotated_inputs(
    node: ir.Node, signature: inspect.Signature
) -> Iterator[tuple[ir.Value | None, str]]:
    """Each input with its parameter's annotation; the last parameter may take many inputs."""
    parameters = [p for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]
    variadic = not is_call(node) or parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL
    inputs = node.inputs if variadic else node.inputs[: len(parameters)]
    for index, value in enumerate(inputs):
        yield value, _annotation(parameters[min(index, len(parameters) - 1)])
