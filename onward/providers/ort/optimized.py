"""A model as onnxruntime has optimised it, and what onnxruntime infers about its values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from onward.graph.protos import from_proto
from onward.graph.shapes.infer import infer_shapes
from onward.providers.options import GraphOptimizationLevel, SessionOptions
from onward.providers.ort import session
from onward.providers.trace_events import type_word

WEIGHTS = "weights.bin"  # beside the optimised model: what is larger than a shape
_LARGEST_SHAPE_DATA = 8192  # bytes
_RANK = "onward.rank."
_CPU: session.ProviderList = [("CPUExecutionProvider", {})]

_WORDS = {type_word(dtype): dtype for dtype in ir.DataType}  # "float": FLOAT, ...

Facts = dict[str, tuple[str, list[int | str | None] | None]]  # in onnxruntime's words


def writing(options: SessionOptions, path: Path) -> SessionOptions:
    """These options, and that onnxruntime writes the optimised model, weights apart."""
    options.optimized_model_filepath = str(path)
    prefix = "session.optimized_model_external_initializers"
    options.config_entries = {
        **options.config_entries,
        f"{prefix}_file_name": WEIGHTS,
        f"{prefix}_min_size_in_bytes": str(_LARGEST_SHAPE_DATA + 1),
    }
    return options


class Optimized:
    """An optimised graph without its larger weights: those are inputs here."""

    def __init__(self, path: Path, options: SessionOptions) -> None:
        self._options = options
        self._proto = onnx.load(path, load_external_data=False)
        self.weight_bytes = _weight_bytes(self._proto.graph)
        self.inputs = [value.name for value in self._proto.graph.input]
        _hide_weights(self._proto.graph)

    def as_planned(self) -> ir.Model:
        """The graph with the shapes that onnxruntime plans with: open sizes have their names."""
        level = GraphOptimizationLevel.ORT_DISABLE_ALL
        return _annotated(self._proto, _inferred(self._proto, level, self._options))

    def with_shapes(self, shapes: Mapping[str, Sequence[int]]) -> ir.Model:
        """The graph with inputs of these shapes; constants are folded to learn all others."""
        proto = onnx.ModelProto()
        proto.CopyFrom(self._proto)
        for value in proto.graph.input:
            if value.name in shapes:
                dims = value.type.tensor_type.shape
                del dims.dim[:]
                for size in shapes[value.name]:
                    dims.dim.add(dim_value=int(size))
        del proto.graph.value_info[:]
        for value in proto.graph.output:
            value.type.tensor_type.ClearField("shape")  # it was declared for any size
        level = GraphOptimizationLevel.ORT_ENABLE_BASIC
        return infer_shapes(_annotated(proto, _inferred(proto, level, self._options)))


def _inferred(proto: onnx.ModelProto, level: int, options: SessionOptions) -> Facts:
    """The type of every value: each is made an output, and onnxruntime says what it is."""
    quiet = SessionOptions(
        log_severity_level=4,
        graph_optimization_level=level,
        custom_op_libraries=options.custom_op_libraries,
    )
    every = onnx.ModelProto()
    every.CopyFrom(proto)
    known = {value.name for value in every.graph.output}
    declared = {value.name: value.type for value in every.graph.value_info}
    del every.graph.value_info[:]
    for node in every.graph.node:
        for name in node.output:
            if name and name not in known:
                every.graph.output.add(name=name, type=declared.get(name))
    try:
        args = session.create(every.SerializeToString(), quiet, _CPU).get_outputs()
        scalars = _scalars(every, [arg.name for arg in args if not arg.shape], quiet)
    except Exception:  # it will not open without its weights: ONNX's inference is left
        return {}
    return {
        arg.name: (arg.type, None if not arg.shape and arg.name not in scalars else arg.shape)
        for arg in args
    }


def _scalars(every: onnx.ModelProto, names: list[str], options: SessionOptions) -> set[str]:
    """Which of these have rank 0; onnxruntime says the same of values whose rank it knows not."""
    if not names:
        return set()
    for name in names:
        node = every.graph.node.add(op_type="Shape", input=[name], output=[_RANK + name])
        every.graph.output.add(name=node.output[0])
    args = session.create(every.SerializeToString(), options, _CPU).get_outputs()
    return {arg.name.removeprefix(_RANK) for arg in args if arg.shape == [0]}


def _annotated(proto: onnx.ModelProto, facts: Facts) -> ir.Model:
    model = from_proto(proto)
    for node in model.graph:
        for value in node.outputs:
            kind, shape = facts.get(str(value.name), ("", None))
            if kind.startswith("tensor("):
                value.type = ir.TensorType(_WORDS[kind[7:-1]])
                value.shape = None if shape is None else ir.Shape(shape)
    return model


def _hide_weights(graph: onnx.GraphProto) -> None:
    """Weights become inputs: nobody needs their numbers to know how large things are."""
    given = {value.name for value in graph.input}
    small = []
    for tensor in graph.initializer:
        if _size(tensor) <= _LARGEST_SHAPE_DATA and not tensor.external_data:
            small.append(tensor)
        elif tensor.name not in given:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    kept = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in small]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _weight_bytes(graph: onnx.GraphProto) -> int:
    """Bytes of all initializers, those of subgraphs included."""
    inner = (a.g for node in graph.node for a in node.attribute if a.HasField("g"))
    return sum(map(_size, graph.initializer)) + sum(map(_weight_bytes, inner))


def _size(tensor: onnx.TensorProto) -> int:
    return int(math.prod(tensor.dims) * ir.DataType(tensor.data_type).itemsize)
