"""OpenVINOExecutable: runs a part of a model with pooled requests, and copies the results."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import openvino

from onward.errors import NodeFailed, ProviderError
from onward.providers.cancellation import terminated_error
from onward.providers.options import RunOptions
from onward.providers.trace_events import Event

Array = np.ndarray[Any, Any]
NodeTime = tuple[str, str, float]  # name, operator, seconds

_COPIED_AT_MOST = 65536  # bytes; copying a smaller feed takes less time than binding it
_NOISE = re.compile(r"^(Exception from |Check '.*' failed at |FrontEnd API failed)")
_FAILED_NODE = re.compile(r"\[CPU\] (\w+) node with name '([^']*)'")


class OpenVINOExecutable:
    """A part of a model in OpenVINO. Each run takes a request from a pool."""

    takes_numpy = True

    def __init__(
        self, native: Any, graph: ir.Graph, weights: Sequence[Array], profiled: bool = False
    ) -> None:
        self._native, self._weights = (
            native,
            weights,
        )  # OpenVINO may read constants from the weights' memory
        self._ports = _ports(native, graph)
        self._wide = [value.dtype == ir.DataType.INT64 for value in graph.inputs]
        self._names = [str(value.name) for value in graph.inputs]
        self._count = len(graph.outputs)
        self._idle: list[_Request] = []
        self._profiled = profiled
        self._runs: list[tuple[int, int, list[NodeTime]]] = []  # start, thread, times

    def run(self, tensors: Sequence[Any], run_options: Any = None) -> Sequence[Any]:
        try:
            request = self._idle.pop()
        except IndexError:
            request = _Request(self._native)
        try:
            for place, (port, tensor) in enumerate(zip(self._ports, tensors, strict=True)):
                if port is not None:
                    if self._wide[place]:
                        _check_width(self._names[place], tensor)
                    request.feed(port, tensor)
            start = time.perf_counter_ns()
            request.run(run_options)
            if self._profiled:
                self._runs.append((start, threading.get_ident(), request.times()))
            return [request.result(number) for number in range(self._count)]
        except RuntimeError as error:
            if isinstance(error, ProviderError):
                raise
            if run_options is not None and run_options.terminate:
                raise terminated_error() from error
            raise typed_error(error) from error
        finally:
            self._idle.append(request)

    def to_numpy(self, tensor: Any, dtype: np.dtype[Any] | None) -> Any:
        return tensor

    def node_times(self) -> list[NodeTime]:
        """The time of each node of OpenVINO's graph in the latest run, if it is profiled."""
        return list(self._runs[-1][2]) if self._runs else []

    def node_events(self, started: int) -> list[Event]:
        """Every node of every run, one after the other; `ts` counts from `started`."""
        offset = time.time_ns() - time.perf_counter_ns()
        events = []
        for start, thread, times in self._runs:
            at = (start + offset - started) / 1e3
            for name, operator, seconds in times:
                events.append(_event(name, operator, thread, at, seconds * 1e6))
                at += seconds * 1e6
        return events


class _Request:
    """An inference request of OpenVINO, and the memory of its inputs."""

    def __init__(self, native: Any) -> None:
        self._native = native.create_infer_request()
        self._own: list[Array | None] = [None] * len(native.inputs)  # copies of small inputs
        self._fed: list[Any] = [None] * len(native.inputs)  # keeps alive what OpenVINO reads
        self._dtypes = [np.dtype(port.get_element_type().to_dtype()) for port in native.inputs]

    def feed(self, port: int, array: Array) -> None:
        """Copy a small feed into the request's memory; bind a larger one without a copy."""
        own = self._own[port]
        if own is not None and own.shape == array.shape:
            np.copyto(own, array)
            return
        shared = array.nbytes > _COPIED_AT_MOST and array.flags.c_contiguous
        if not (shared and array.flags.writeable):
            array = np.array(array, order="C")
            shared = False
        array = array.view(self._dtypes[port])  # numpy has two int64, and OpenVINO knows one
        tensor = openvino.Tensor(array, shared_memory=True)
        self._native.set_input_tensor(port, tensor)
        self._fed[port] = (tensor, array)
        self._own[port] = None if shared or array.nbytes > _COPIED_AT_MOST else array

    def run(self, run_options: Any) -> None:
        if not isinstance(run_options, RunOptions):
            self._native.infer(share_outputs=True)
            return
        follower = _Follower(self._native)
        run_options.followed_by(follower)
        self._native.start_async()
        if follower.terminate:  # set before the run could be cancelled
            self._native.cancel()
        try:
            self._native.wait()
        finally:
            follower.forget()

    def result(self, number: int) -> Array:
        """A copy of a result: the next run overwrites OpenVINO's."""
        result: Array = self._native.get_output_tensor(number).data.copy()
        return result

    def times(self) -> list[NodeTime]:
        status = openvino.ProfilingInfo.Status.EXECUTED
        return [
            (info.node_name, info.node_type, info.real_time.total_seconds())
            for info in self._native.get_profiling_info()
            if info.status == status
        ]


class _Follower:
    """Cancels one request's run when `terminate` is set on the run's options."""

    def __init__(self, native: Any) -> None:
        self._native, self._terminate = native, False
        self._lock = threading.Lock()

    @property
    def terminate(self) -> bool:
        return self._terminate

    @terminate.setter
    def terminate(self, value: bool) -> None:
        with self._lock:
            self._terminate = value
            if value and self._native is not None:
                self._native.cancel()

    def forget(self) -> None:
        """Do not cancel the request any more: another run may use it now."""
        with self._lock:
            self._native = None


def typed_error(error: Exception) -> ProviderError:
    """Onward's error for an exception of OpenVINO."""
    node = _FAILED_NODE.search(str(error))
    text = f"OpenVINO failed: {one_line(error)}"
    return NodeFailed(text, node[1]) if node is not None else ProviderError(text)


def one_line(error: Exception) -> str:
    """OpenVINO's message in one line, without locations in its source."""
    lines = [line.strip() for line in str(error).splitlines()]
    kept = [line for line in lines if line and not _NOISE.match(line)]
    return " ".join(kept or lines)[:300]


def _check_width(name: str, numbers: Array) -> None:
    if numbers.size and not (numbers.min() >= -(2**31) and numbers.max() < 2**31):
        worst = max(int(numbers.max()), int(numbers.min()), key=abs)
        raise ProviderError(
            f"OpenVINO computes int64 in 32 bits, and input {name!r} holds {worst:,}\n"
            "put CPUExecutionProvider before it"
        )


def _ports(native: Any, graph: ir.Graph) -> list[int | None]:
    """The number that each of the graph's inputs has in OpenVINO; None: nothing reads it.

    OpenVINO renames an input if a node passes it on unchanged (Dropout): the inputs without a
    match are in the same order on both sides.
    """
    names = [port.get_node().get_friendly_name() for port in native.inputs]
    values = list(graph.inputs)
    used = [value for value in values if value.uses() or value.is_graph_output()]
    unmatched = [number for number, name in enumerate(names) if name not in {v.name for v in used}]
    lost = [value for value in used if value.name not in names]
    if unmatched and len(unmatched) != len(lost):
        raise ProviderError("OpenVINO changed the inputs of its part of the model")
    renamed = dict(zip(lost, unmatched, strict=False)) if unmatched else {}
    known = {name: number for number, name in enumerate(names)}
    return [renamed.get(value, known.get(str(value.name))) for value in values]


def _event(name: str, operator: str, thread: int, at: float, took: float) -> Event:
    arguments = {
        "op_name": operator,
        "provider": "OpenVINOExecutionProvider",
        "outputs": [name],
        "output_type_shape": [],
    }
    kind = {"cat": "Node", "ph": "X", "pid": 0, "tid": thread}
    return {**kind, "name": f"{name}_kernel_time", "ts": at, "dur": took, "args": arguments}
