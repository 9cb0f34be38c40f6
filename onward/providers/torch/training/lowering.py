"""Lower the graphs of a program to torch functions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir
import torch

from onward.gradients.split import GraphPiece, split
from onward.graph.node_args import describe
from onward.graph.operators import VIEWS
from onward.graph.scopes import origin, standard
from onward.graph.signature import NodeArg
from onward.message_text import list_names
from onward.passes.composites import inline_calls
from onward.passes.memory_functions import runs_in_order
from onward.passes.pipelines import TRAINING
from onward.programs.program import LOSS, Layout, Program
from onward.providers.torch.fused_norm_gradient import fuse_norm_gradients
from onward.providers.torch.fused_relu_gradient import fuse_relu_gradients
from onward.providers.torch.kernels.host_copies import HostCopy
from onward.providers.torch.lower import Lowered
from onward.providers.torch.provider import TorchProvider
from onward.providers.torch.training.compiled_offload import write_host_copies
from onward.providers.torch.training.compiled_order import write_barriers
from onward.providers.torch.training.held_scalars import hold_scalars
from onward.providers.torch.training.repeated_masks import repeat_masks

log = logging.getLogger("onward")


class TorchGraph:
    """A graph of a program that torch can lower."""

    def __init__(
        self, model: ir.Model, provider: TorchProvider, host_copies: Sequence[HostCopy] = ()
    ) -> None:
        self.model, self._provider = model, provider
        self._host_copies = host_copies  # kept here: operators find them by number
        self.arguments: list[NodeArg] = [describe(value) for value in model.graph.inputs]
        self.results: list[NodeArg] = [describe(value) for value in model.graph.outputs]
        self.inputs = [argument.name for argument in self.arguments]
        self.outputs = [result.name for result in self.results]

    @property
    def unsupported(self) -> list[str]:
        """The operators that torch lacks, or lacks for the types that they have here."""
        opsets = self.model.graph.opset_imports
        nodes = [node for node in self.model.graph if not self._provider.supports(node, opsets)]
        return list(dict.fromkeys(f"{node.domain or 'ai.onnx'}::{node.op_type}" for node in nodes))

    @cached_property
    def module(self) -> Lowered:
        """The graph as a torch module: its inputs in order, its outputs in order."""
        model, provider = self.model.clone(), self._provider  # lowering changes the model
        # one custom operator costs a host more than what Inductor makes of the composite, but the
        # host of a recorded step has nothing to do
        if provider.device.type == "cuda" and provider.step_compiler is not None:
            fuse_norm_gradients(model)
        if provider.step_compiler is None:  # a compiler fuses the two operators by itself
            fuse_relu_gradients(model)
        return provider.lower(model)

    @cached_property
    def views(self) -> set[str]:
        """Outputs that are an input, or a view of one."""
        return {str(v.name) for v in self.model.graph.outputs if _is_view_of_input(v)}


@dataclass(frozen=True)
class TorchGraphs:
    """The graphs of a program as torch runs them."""

    layout: Layout
    train: TorchGraph
    evaluate: TorchGraph
    predict: TorchGraph
    updates: tuple[TorchGraph, ...]
    provider: TorchProvider
    in_order: bool  # whether nodes must run in the graph's order: it takes the least memory

    @cached_property
    def forward_backward(self) -> tuple[TorchGraph, TorchGraph, Sequence[str]]:
        """Forward, backward, and the values that cross from one to the other."""
        layout = self.layout
        results = [LOSS, *layout.outputs, *layout.state.values()]
        gradients = [parameter.gradient for parameter in layout.parameters]
        pieces: list[GraphPiece] = split(self.train.model, [results, gradients])
        forward, backward = (TorchGraph(each.model, self.provider) for each in pieces)
        return forward, backward, pieces[1].takes


def lower_program(program: Program, provider: TorchProvider) -> TorchGraphs | None:
    """Prepare the graphs of a program for torch; None where it lacks an operator."""

    def prepare(model: ir.Model) -> TorchGraph:
        prepared = prepare_graph(model, provider)
        copies: list[HostCopy] = []
        if provider.step_compiler is not None:
            write_barriers(repeat_masks(prepared), program.layout.fed)
            if _has_other_memory(provider.device):
                copies = write_host_copies(prepared)
        return TorchGraph(prepared, provider, copies)

    def prepare_update(model: ir.Model) -> TorchGraph:
        prepared = prepare(model)
        if provider.step_compiler is not None and provider.device.type == "cpu":
            hold_scalars(prepared.model)
        return prepared

    graphs = TorchGraphs(
        layout=program.layout,
        train=prepare(program.train),
        evaluate=prepare(program.evaluate),
        predict=prepare(program.predict),
        updates=tuple(map(prepare_update, program.updates)),
        provider=provider,
        in_order=any(map(runs_in_order, program.train.graph)),
    )
    everything = [graphs.train, graphs.evaluate, graphs.predict, *graphs.updates]
    missing = dict.fromkeys(name for graph in everything for name in graph.unsupported)
    if missing:
        log.warning(
            "torch has no kernel for %s: parameters stay in host memory, and each step copies them",
            list_names(missing),
        )
    return None if missing else graphs


def prepare_graph(model: ir.Model, provider: TorchProvider) -> ir.Model:
    """A copy of a graph of a program in which torch has a kernel for every call."""
    copy = model.clone()
    opsets = copy.graph.opset_imports
    inline_calls(copy, lambda call: provider.supports(call, opsets))
    return TRAINING(copy)


def _has_other_memory(device: torch.device) -> bool:
    """Whether a device's memory is not the host's."""
    return device.type == "cuda"


def _is_view_of_input(value: ir.Value) -> bool:
    return origin(value, standard(VIEWS)).producer() is None
