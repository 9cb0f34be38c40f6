"""Engines: run the graphs of a captured module on torch tensors.

engine.lower(model)     rewrite a joint graph, in place, into the engine's fastest forms
engine.open(model)      -> a function: tensors in the order of its inputs -> its outputs
                           (is_forward: the model is the forward graph of a pair)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import onnx_ir as ir
import torch

from onward.graph.operators import VIEWS
from onward.passes.composites import inline_calls
from onward.passes.pipelines import TRAINING
from onward.programs.recompute import CHEAP
from onward.providers.options import SessionOptions
from onward.providers.ort.address_session import AddressSession, Place
from onward.providers.ort.bound_session import stop_spinning_after_runs
from onward.providers.ort.processor_probe import processor_probe
from onward.providers.ort.processors import find_processor
from onward.providers.ort.training.lowering import lower_gradient_graph
from onward.providers.torch.dtypes import DTYPES
from onward.providers.torch.fused_attention import fuse_attention
from onward.providers.torch.inductor import make_inductor
from onward.providers.torch.provider import TorchProvider, make_torch
from onward.providers.torch.split_cross_entropy import split_cross_entropy

Tensor = torch.Tensor
Run = Callable[[Sequence[Tensor]], list[Tensor]]

_NUMBERS = {dtype: number for number, dtype in reversed(DTYPES.items())}  # the first of each
_from_dlpack = torch.utils.dlpack.from_dlpack


class Engine(Protocol):
    """Runs graphs on torch tensors."""

    @property
    def name(self) -> str: ...

    @property
    def feeds_noise(self) -> bool:
        """Whether random numbers are an input (`graphs.NOISE`), or drawn in the graph."""
        ...

    @property
    def recomputed(self) -> Collection[str]:
        """The operators whose results the backward computes again: they cost it nothing."""
        ...

    def unsupported(self, model: ir.Model) -> list[str]:
        """The operators of a graph that the engine lacks."""
        ...

    def lower(self, model: ir.Model) -> ir.Model: ...

    def open(self, model: ir.Model, *, is_forward: bool = False) -> Run: ...


class OnnxRuntimeEngine:
    """Stock onnxruntime on a CPU; tensors are passed by address and by DLPack."""

    name, feeds_noise = "onnxruntime", True
    recomputed = VIEWS  # onnxruntime would copy a view that is an output

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads
        self._processor = find_processor(processor_probe())

    def unsupported(self, model: ir.Model) -> list[str]:
        return []

    def lower(self, model: ir.Model) -> ir.Model:
        return lower_gradient_graph(model, self._processor)

    def open(self, model: ir.Model, *, is_forward: bool = False) -> Run:
        options = stop_spinning_after_runs(
            SessionOptions(
                log_severity_level=4,
                intra_op_num_threads=self._threads or torch.get_num_threads(),
                enable_mem_pattern=len(model.graph) < 100,
            )
        )
        session = AddressSession(ir.to_proto(model).SerializeToString(), options)
        bools = [i for i, v in enumerate(model.graph.outputs) if v.dtype == ir.DataType.BOOL]

        def run(tensors: Sequence[Tensor]) -> list[Tensor]:
            held = [tensor if tensor.is_contiguous() else tensor.contiguous() for tensor in tensors]
            found = session.run([place_of(tensor) for tensor in held], _from_dlpack)
            for i in bools:
                found[i] = found[i].view(torch.bool)
            return found

        return run


def place_of(tensor: Tensor) -> Place:
    """Where a contiguous tensor on a CPU is in memory."""
    return Place(_NUMBERS[tensor.dtype], tuple(tensor.shape), tensor.data_ptr())


class TorchEngine:
    """torch, operator by operator or compiled by Inductor; on the device of the module."""

    feeds_noise = False

    def __init__(self, provider: TorchProvider, name: str) -> None:
        self.name, self._provider = name, provider
        self.recomputed = VIEWS if provider.compiler is None else CHEAP  # Inductor fuses them

    def unsupported(self, model: ir.Model) -> list[str]:
        opsets = model.graph.opset_imports
        nodes = [node for node in model.graph if not self._provider.supports(node, opsets)]
        return list(dict.fromkeys(f"{node.domain or 'ai.onnx'}::{node.op_type}" for node in nodes))

    def lower(self, model: ir.Model) -> ir.Model:
        opsets = model.graph.opset_imports
        inline_calls(model, lambda call: self._provider.supports(call, opsets))
        lowered = TRAINING(model)
        # before the split: else the backward would compute attention's forward again
        fuse_attention(lowered, self._provider.device)
        if self._provider.compiler is not None:
            split_cross_entropy(lowered)  # before it, too: for the choice of saved values
        return lowered

    def open(self, model: ir.Model, *, is_forward: bool = False) -> Run:
        module = self._provider.lower(model.clone())
        # A forward graph begins with a cast of each weight: joined, they start as one kernel. The
        # casts of gradients would have to wait for each other, and memory with them.
        compiler = self._provider.step_compiler if is_forward else self._provider.compiler
        call: Callable[..., Any] = module.forward if compiler is None else compiler(module.forward)

        device = self._provider.device.type

        def run(tensors: Sequence[Tensor]) -> list[Tensor]:
            with torch.no_grad(), torch.autocast(device, enabled=False):
                return list(call(*tensors))

        return run


def engine_names(provider: str, device: torch.device) -> list[str]:
    """The engines to try for a setting of `ModuleOptions.provider`, in this order."""
    if provider not in ("auto", "fastest"):
        return [provider]
    # onnxruntime lacks kernels for some types, such as bfloat16
    return ["onnxruntime", "torch"] if device.type == "cpu" else ["inductor"]


def raced_providers(device: torch.device) -> list[str]:
    """The providers that "fastest" measures; what compiles for long comes last."""
    return ["auto", "inductor"] if device.type == "cpu" else ["auto"]


def make_engine(name: str, device: torch.device, threads: int | None = None) -> Engine:
    """The engine of this name."""
    if name == "onnxruntime":
        return OnnxRuntimeEngine(threads)
    make = make_inductor if name == "inductor" else make_torch
    return TorchEngine(make({"device": str(device)}, SessionOptions()), name)
