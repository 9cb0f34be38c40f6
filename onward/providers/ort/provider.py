"""OrtProvider: find out which nodes stock onnxruntime supports, and compile parts of models."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import LimitExceeded, ProviderError
from onward.graph.dtypes import ELEMENT_TYPES
from onward.graph.external import embedded
from onward.graph.protos import to_proto
from onward.passes.downgrade import fits_opset, lower_opset
from onward.passes.ort_workarounds import apply_ort_workarounds
from onward.providers.options import SessionOptions
from onward.providers.ort import session
from onward.providers.ort.ort_values import to_numpy, to_ort
from onward.providers.single_nodes import node_signature, single_node_model
from onward.providers.trace_events import Event

NEWEST_OPSET = 26  # the newest that the stock wheel loads
NEWEST_IR = 12
_PACKED = {each.number for each in ELEMENT_TYPES if each.is_packed or each.onnx == "FLOAT8E8M0"}
_WEIGHTS_FILE = "session.optimized_model_external_initializers_file_name"
_EMBEDDED_AT_MOST = 1024  # bytes; larger weights are passed by pointer


class OrtProvider:
    """One or more execution providers of onnxruntime in one session."""

    def __init__(self, providers: session.ProviderList, options: SessionOptions) -> None:
        self._providers, self._options = providers, options
        self._probed: dict[tuple[Any, ...], bool] = {}
        self._numbered = itertools.count()

    @property
    def name(self) -> str:
        return self._providers[0][0]

    def supports(self, node: ir.Node, opsets: dict[str, int]) -> bool:
        """Whether onnxruntime loads a model of only this node."""
        key = node_signature(node)
        if (
            key is None
            or _has_packed(node)
            or not fits_opset(node, opsets.get("", 1), NEWEST_OPSET)
        ):
            return False
        if key not in self._probed:
            self._probed[key] = self._loads(node, opsets)
        return self._probed[key]

    def _loads(self, node: ir.Node, opsets: dict[str, int]) -> bool:
        quiet = SessionOptions(log_severity_level=4, graph_optimization_level=0)
        quiet.custom_op_libraries = self._options.custom_op_libraries
        try:
            proto, weights = serialize(single_node_model(node, opsets))
            session.create(proto, quiet, self._providers, weights)
        except Exception:
            return False
        return True

    def compile(self, model: ir.Model) -> OrtExecutable:
        proto, weights = serialize(model)
        options = self._part_options()
        try:
            native = session.create(proto, options, self._providers, weights)
        except LimitExceeded:
            raise
        except Exception as error:
            raise ProviderError(f"onnxruntime cannot run its part of the model: {error}") from error
        return OrtExecutable(native, weights, options.memory_limit)

    def _part_options(self) -> SessionOptions:
        """The session's options, with the part's number in the names of files to write."""
        options = copy.copy(self._options)
        options.native = None  # the user's native options are for a whole model
        own = f"{self.name}-{next(self._numbered)}"
        options.profile_file_prefix += f"_{own}"
        if options.optimized_model_filepath:
            path = Path(options.optimized_model_filepath)
            options.optimized_model_filepath = str(path.with_suffix(f".{own}{path.suffix}"))
        if _WEIGHTS_FILE in options.config_entries:
            weights = f"{own}-{options.config_entries[_WEIGHTS_FILE]}"
            options.config_entries = {**options.config_entries, _WEIGHTS_FILE: weights}
        return options


class OrtExecutable:
    """A part of a model in onnxruntime; tensors are passed by pointer where possible."""

    def __init__(self, native: Any, weights: dict[str, Any], memory_limit: int | None) -> None:
        self._native, self._weights, self._limit = native, weights, memory_limit
        self._names = [arg.name for arg in native.get_inputs()]
        args = [*native.get_inputs(), *native.get_outputs()]
        self.takes_numpy = any("seq" in a.type or "opt" in a.type or "str" in a.type for a in args)

    def run(self, tensors: Sequence[Any], run_options: Any = None) -> Sequence[Any]:
        options = session.native_run_options(run_options)
        try:
            pairs = zip(self._names, tensors, strict=True)
            if self.takes_numpy:
                feeds = {name: tensor for name, tensor in pairs if tensor is not None}
                return self._native.run(None, feeds, options)  # type: ignore[no-any-return]
            feeds = {name: to_ort(tensor) for name, tensor in pairs}
            return self._native.run_with_ort_values(None, feeds, options)  # type: ignore[no-any-return]
        except Exception as error:
            raise session.typed_error(error, self._limit) from error

    def to_numpy(self, tensor: Any, dtype: np.dtype[Any] | None) -> Any:
        return to_numpy(tensor)

    def node_events(self, started: int) -> list[Event]:
        """The events of onnxruntime's trace of this part, whose file is deleted."""
        path = Path(self._native.end_profiling())
        events: list[Event] = json.loads(path.read_text())
        path.unlink()
        offset = (self._native.get_profiling_start_time_ns() - started) / 1e3
        for event in events:
            event["ts"] += offset
            if event["name"] == "model_run":  # the part's, not the model's
                event["name"] = "part_run"
        return events


def serialize(model: ir.Model) -> tuple[bytes, dict[str, np.ndarray[Any, Any]]]:
    """A model as bytes that onnxruntime loads, and its larger weights separately.

    Weights are copied only if they are not contiguous, such as a transposed view.
    """
    apply_ort_workarounds(model)
    model = lower_opset(model, NEWEST_OPSET)
    outside: dict[str, np.ndarray[Any, Any]] = {}
    kept: list[tuple[ir.Value, ir.TensorProtocol]] = []
    with embedded(model):
        try:
            for name, value in model.graph.initializers.items():
                tensor = value.const_value
                if tensor is not None and _is_passed_by_pointer(tensor):
                    # onnxruntime refuses an OrtValue that owns its memory, which it makes of a
                    # transposed view
                    outside[name] = np.ascontiguousarray(tensor.numpy())
                    kept.append((value, tensor))
                    value.const_value = _reference(tensor, name)
            proto = to_proto(model)
        finally:  # restore the model's own tensors
            for value, tensor in kept:
                value.const_value = tensor
    proto.ir_version = min(proto.ir_version, NEWEST_IR)
    return proto.SerializeToString(), outside


def _is_passed_by_pointer(tensor: ir.TensorProtocol) -> bool:
    return tensor.nbytes > _EMBEDDED_AT_MOST and _shareable(tensor.dtype)


def _reference(tensor: ir.TensorProtocol, name: str) -> ir.ExternalTensor:
    """A placeholder for a weight in the bytes; onnxruntime gets the weight separately."""
    shape = ir.Shape(tensor.shape.numpy())
    return ir.ExternalTensor("onward", 0, tensor.nbytes, tensor.dtype, shape=shape, name=name)


def _shareable(dtype: ir.DataType) -> bool:
    """Whether onnxruntime takes numpy arrays of this type by pointer."""
    if dtype in _PACKED or dtype in (ir.DataType.STRING, ir.DataType.BFLOAT16):
        return False
    return "FLOAT8" not in dtype.name


def _has_packed(node: ir.Node) -> bool:
    """Whether a node reads or makes a sub-byte tensor, other than a weight."""
    values = (v for v in (*node.inputs, *node.outputs) if v is not None and v.const_value is None)
    return any(v.dtype in _PACKED for v in values)
