"""TorchExecutionProvider: runs the lowered graph in torch, operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onward.errors import OptionError, ProviderError
from onward.graph.scopes import bodies
from onward.message_text import first_line
from onward.passes.composites import is_call
from onward.providers.cancellation import terminated_error, termination_check
from onward.providers.options import SessionOptions
from onward.providers.torch.composite_calls import kernel_accepts
from onward.providers.torch.dtypes import DTYPES
from onward.providers.torch.fused_attention import fuse_attention, has_fused_attention
from onward.providers.torch.fused_cross_entropy import fuse_cross_entropy
from onward.providers.torch.fused_linear import fuse_linear
from onward.providers.torch.lower import Lowered, lower
from onward.providers.torch.table import HOST, KERNELS
from onward.providers.torch.tensors import to_normal_tensor, to_numpy, to_torch
from onward.providers.trace_events import Event, NodeTimer, TypeAndShape, type_word


def make_torch(given: Mapping[str, Any], options: SessionOptions) -> TorchProvider:
    """TorchExecutionProvider from a session's options.

    `device` is "cpu", "cuda", "cuda:1", ... or "auto": the GPU where there is one.
    """
    device = configure_torch(given, options)
    return TorchProvider("TorchExecutionProvider", device, profiled=options.enable_profiling)


def configure_torch(given: Mapping[str, Any], options: SessionOptions) -> torch.device:
    """Set torch's process-wide settings from a session's options, and return the device."""
    device = _device(str(given.get("device", "auto")))
    if options.intra_op_num_threads:
        torch.set_num_threads(options.intra_op_num_threads)
    if options.memory_limit is not None and device.type == "cuda":  # on a CPU, sessions enforce it
        _limit_memory(device, options.memory_limit)
    if options.use_deterministic_compute:
        torch.use_deterministic_algorithms(True)
    return device


def _device(text: str) -> torch.device:
    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(text)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise OptionError(f"torch has no device {text!r} here: {first_line(error)}") from error
    return device


def devices() -> list[str]:
    """The devices that torch has here, the fastest first."""
    return ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]


def _limit_memory(device: torch.device, limit: int) -> None:
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)


class TorchProvider:
    """Runs graphs in torch, operator by operator or compiled by `compiled`.

    With `captured`, a compiled graph runs as a CUDA graph: a run overwrites earlier results. The
    functions of training are compiled by `step_compiler` and recorded if `captures_steps`;
    `ordered_compiler` does not move nodes away from where they need the least memory.
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        compiled: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
        *,
        profiled: bool = False,
        captured: bool = False,
        step_compiler: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
        ordered_compiler: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
        captures_steps: bool = False,
    ) -> None:
        self.name, self._device, self._compiled = name, device, compiled
        self._profiled = profiled
        self.captured = captured
        self.step_compiler, self.captures_steps = step_compiler, captures_steps
        self.ordered_compiler = ordered_compiler or step_compiler

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def capability(self) -> tuple[int, int] | None:
        """The CUDA capability of the device; None: it is not a GPU with CUDA."""
        on_gpu = self._device.type == "cuda"
        return torch.cuda.get_device_capability(self._device) if on_gpu else None

    @property
    def fuses_cross_entropy(self) -> bool:
        """Whether a linear layer and its cross entropy are one operator, which needs Triton."""
        return self._device.type == "cuda"

    @property
    def compiler(self) -> Callable[[Callable[..., Any]], Callable[..., Any]] | None:
        """The function that compiles functions; None: they run eagerly."""
        return self._compiled

    def supports(self, node: ir.Node, opsets: dict[str, int]) -> bool:
        if is_call(node) and "Attention" in node.op_type:
            return has_fused_attention(node, self._device)
        opset = opsets.get(node.domain, 1)
        function = KERNELS.find(node.domain, node.op_type, opset)
        if function is None or not kernel_accepts(function, node):
            return False
        values = [value for value in (*node.inputs, *node.outputs) if value is not None]
        if not all(value.dtype is None or int(value.dtype) in DTYPES for value in values):
            return False
        return all(self.supports(inner, opsets) for body in bodies(node) for inner in body)

    def compile(self, model: ir.Model) -> TorchExecutable:
        notes = None
        if self._profiled:
            wait = torch.cuda.synchronize if self._device.type == "cuda" else None
            notes = NodeTimer(self.name, _type_and_shape, wait)
        module = self.lower(model, notes)
        call = self._compiled(module) if self._compiled else module.forward
        weights = {storage_of(tensor) for tensor in module.buffers()}
        stoppable = None if self._compiled else module
        return TorchExecutable(
            *(call, self._device, weights, stoppable, notes), reuses_outputs=self.captured
        )

    def lower(self, model: ir.Model, notes: NodeTimer | None = None) -> Lowered:
        """A model as a torch module on this device."""
        fuse_attention(model, self._device)
        if self.fuses_cross_entropy:
            fuse_cross_entropy(model)
        if self._device.type == "cuda":
            fuse_linear(model)
        return lower(model.graph, KERNELS, HOST, self._device, notes)


_LOST_GPU = (
    "usually an index out of range; this process cannot use the GPU any more: start it again, "
    "and open models that you do not trust with isolated=True"
)


class TorchExecutable:
    """A lowered graph on a device."""

    takes_numpy = False

    def __init__(
        self,
        call: Callable[..., Any],
        device: torch.device,
        weights: Set[int] = frozenset(),
        stoppable: Lowered | None = None,
        notes: NodeTimer | None = None,
        *,
        reuses_outputs: bool = False,
    ) -> None:
        self._call, self._device, self._weights = call, device, weights
        self._stoppable, self._notes = stoppable, notes
        self._reuses_outputs = reuses_outputs

    @torch.inference_mode()
    def run(self, tensors: Sequence[Any], run_options: Any = None) -> Sequence[Any]:
        try:
            feeds = [to_torch(tensor, self._device) for tensor in tensors]
            if run_options is not None and self._stoppable is not None:
                results = self._stoppable.checked(termination_check(run_options), *feeds)
            else:
                results = self._call(*feeds)
        except Exception as error:
            if run_options is not None and run_options.terminate:
                raise terminated_error() from error
            raise self._failure(error) from error
        taken = {*self._weights, *(storage_of(f) for f in feeds if isinstance(f, torch.Tensor))}
        return [in_own_memory(result, taken) for result in results]

    def _failure(self, error: Exception) -> ProviderError:
        if "CUDA error" in str(error):  # no node: the GPU computes later than the call
            return ProviderError(f"torch failed on the GPU: {first_line(error)}\n{_LOST_GPU}")
        node = None if self._stoppable is None else self._stoppable.failed_node(error)
        where = "" if node is None else f" (at {node[0]}, node {node[1]!r})"
        return ProviderError(f"torch failed: {error}{where}")

    def to_dlpack(self, tensor: Any) -> Any:
        return to_normal_tensor(tensor, copied=self._reuses_outputs)

    def to_numpy(self, tensor: Any, dtype: np.dtype[Any] | None) -> Any:
        try:
            return to_numpy(tensor, dtype)
        except RuntimeError as error:  # the GPU reports what failed when results are read
            raise self._failure(error) from error

    def node_events(self, started: int) -> list[Event]:
        return [] if self._notes is None else self._notes.events(started)


_TYPE_WORDS = {  # emulated types share a torch dtype: its own type, the first, wins
    DTYPES[int(kind)]: type_word(kind) for kind in reversed(ir.DataType) if int(kind) in DTYPES
}


def _type_and_shape(result: Any) -> TypeAndShape | None:
    """A result's type in onnxruntime's spelling, and its shape; Python numbers are int64."""
    if isinstance(result, torch.Tensor):
        return _TYPE_WORDS.get(result.dtype, "float"), tuple(result.shape)
    if isinstance(result, (bool, int, float)):
        return "int64", ()
    if isinstance(result, list) and not any(isinstance(item, torch.Tensor) for item in result):
        return "int64", tuple(np.shape(result))
    return None


def storage_of(tensor: torch.Tensor) -> int:
    """The address of a tensor's memory."""
    return tensor.untyped_storage().data_ptr()


def in_own_memory(result: Any, taken: set[int]) -> Any:
    """A result that shares no memory with a feed, a weight or another result."""
    if isinstance(result, list):
        return [in_own_memory(item, taken) for item in result]
    if not isinstance(result, torch.Tensor):
        return result
    if storage_of(result) in taken:
        return result.clone()
    taken.add(storage_of(result))
    return result
