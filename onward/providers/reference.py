"""ReferenceExecutionProvider: ONNX's reference evaluator, in numpy; slow, for comparison."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from onward.errors import ProviderError
from onward.graph.external import embedded
from onward.graph.protos import to_proto
from onward.providers.cancellation import terminated_error, termination_check
from onward.providers.trace_events import Event, NodeTimer, TypeAndShape, type_word

_LACKING = {("ai.onnx.ml", name) for name in ("CastMap", "CategoryMapper", "ZipMap")}
_check: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


class ReferenceProvider:
    """Runs graphs in ONNX's reference evaluator."""

    name = "ReferenceExecutionProvider"

    def __init__(self, *, profiled: bool = False) -> None:
        self._profiled = profiled

    def supports(self, node: ir.Node, opsets: dict[str, int]) -> bool:
        """Whether ONNX defines the operator: the evaluator has it, or the body of its function."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (domain, node.op_type) in _LACKING:
            return False
        return onnx.defs.has(
            node.op_type, max_inclusive_version=opsets.get(domain, 1), domain=domain
        )

    def compile(self, model: ir.Model) -> ReferenceExecutable:
        try:
            with embedded(model):
                evaluator = Evaluator(to_proto(model))
        except NotImplementedError as error:
            raise ProviderError(f"ONNX's reference evaluator lacks an operator: {error}") from error
        return ReferenceExecutable(
            evaluator, self._time_nodes(evaluator) if self._profiled else None
        )

    def _time_nodes(self, evaluator: ReferenceEvaluator) -> NodeTimer:
        """Wrap the evaluator's nodes so that each run is timed (subgraphs count to their node)."""
        notes = NodeTimer(self.name, _type_and_shape)
        for node in evaluator.rt_nodes_:
            proto = node.onnx_node
            number = notes.add_node(proto.name, proto.op_type, list(proto.output))
            node.run = _timed(node.run, notes, number)
        return notes


class Evaluator(ReferenceEvaluator):
    """ONNX's evaluator, which can be terminated before each node, also inside subgraphs."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        for node in self.rt_nodes_:
            node.run = _checked(node.run)

    def run(self, *arguments: Any, **settings: Any) -> Any:
        return _checked(super().run)(*arguments, **settings)  # the body of a loop may have no nodes


def _checked(run: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*inputs: Any, **more: Any) -> Any:
        check = _check.get()
        if check is not None:
            check()
        return run(*inputs, **more)

    return checked


class ReferenceExecutable:
    """A part of a model in ONNX's reference evaluator."""

    takes_numpy = True

    def __init__(self, evaluator: ReferenceEvaluator, notes: NodeTimer | None = None) -> None:
        self._evaluator, self._notes = evaluator, notes

    def run(self, tensors: Sequence[Any], run_options: Any = None) -> Sequence[Any]:
        feeds = dict(zip(self._evaluator.input_names, tensors, strict=True))
        token = _check.set(None if run_options is None else termination_check(run_options))
        try:
            results = self._evaluator.run(None, feeds)
        except Exception as error:
            if run_options is not None and run_options.terminate:
                raise terminated_error() from error
            raise ProviderError(f"ONNX's reference evaluator failed: {error}") from error
        finally:
            _check.reset(token)
        return copy.deepcopy(list(results))  # results must not share memory with feeds or weights

    def to_numpy(self, tensor: Any, dtype: np.dtype[Any] | None) -> Any:
        return tensor

    def node_events(self, started: int) -> list[Event]:
        return [] if self._notes is None else self._notes.events(started)


def _timed(run: Callable[..., Any], notes: NodeTimer, number: int) -> Callable[..., Any]:
    def timed(*arguments: Any, **attributes: Any) -> Any:
        start = time.perf_counter_ns()
        results = run(*arguments, **attributes)
        notes.record(number, start, results)
        return results

    return timed


def _type_and_shape(result: Any) -> TypeAndShape | None:
    if not isinstance(result, np.ndarray) or result.dtype.kind in "OSU":
        return None
    return type_word(ir.DataType.from_numpy(result.dtype)), result.shape
