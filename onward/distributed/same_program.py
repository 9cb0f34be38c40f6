"""What the processes of a run must have in common before they train."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.distributed.communicator import Communicator
from onward.errors import DistributedError, OnwardError
from onward.message_text import first_line
from onward.programs.program import Program

_SAMPLE = 4096  # elements of a tensor that are compared
_TENSORS = (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS)
_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def check_same_program(group: Communicator, program: Program) -> None:
    """Refuse processes that would train different models, or with different settings."""
    own, sums = _digest(program), _frozen_sums(program.evaluate)
    for rank, (other, other_sums) in enumerate(group.gather_objects((own, sums))):
        if other != own:
            raise DistributedError(
                f"process {group.rank} and process {rank} train different models, or with "
                "different settings\ngive every process the same model, loss, optimizer and options"
            )
        for name in sums.keys() & other_sums.keys():
            # folded constants may differ in their last bits between kinds of processors
            if not np.allclose(sums[name], other_sums[name], rtol=1e-3, atol=1e-6, equal_nan=True):
                raise DistributedError(
                    f"process {group.rank} and process {rank} have other numbers in the frozen "
                    f"weight {name!r}\ngive every process the same model file"
                )


def check_same_engine(group: Communicator, engine: object, provider: str) -> None:
    """Refuse engines that would call the collectives in different orders."""
    own = type(engine).__name__
    for rank, (kind, other) in enumerate(group.gather_objects((own, provider))):
        if kind != own:
            raise DistributedError(
                f"process {group.rank} trains with {provider}, but process {rank} with {other}\n"
                "give every process the same providers"
            )


def _frozen_sums(model: ir.Model) -> dict[str, tuple[float, float]]:
    """Sums over a sample of each tensor of floats in a graph: of the values, of their sizes."""
    found = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is not None and tensor.dtype.is_floating_point() and tensor.size:
            flat = tensor.numpy().reshape(-1)
            sample = flat[:: max(1, flat.size // _SAMPLE)].astype(np.float64)
            size = float(np.abs(sample).sum())
            found[name] = (float(sample.sum()) + size, size)  # no sum near 0 by chance
    return found


def _digest(program: Program) -> str:
    """What differs where models, losses or settings do; the seed may, and weights."""
    layout = program.layout
    settings = replace(layout.settings, seed=0)
    nodes = sorted(map(_describe, ir.traversal.RecursiveGraphIterator(program.evaluate.graph)))
    text = repr((layout.parameters, layout.updates, layout.state, settings, nodes))
    return hashlib.sha256(text.encode()).hexdigest()


def _describe(node: ir.Node) -> str:
    """An operator and its attributes, without names: they may be numbered differently."""
    attributes = sorted(
        (name, repr(each.value))
        for name, each in node.attributes.items()
        if each.type not in _TENSORS + _GRAPHS and not each.is_ref()
    )
    return repr((node.domain, node.op_type, attributes))


@contextmanager
def failing_together(group: Communicator) -> Iterator[None]:
    """If the work within it fails in one process, all raise an error that names the process."""
    error: OnwardError | None = None
    try:
        yield
    except OnwardError as caught:
        error = caught
    texts: list[Any] = group.gather_objects(None if error is None else first_line(error))
    if error is not None:
        raise error
    for rank, text in enumerate(texts):
        if text is not None:
            raise DistributedError(f"process {rank} ended the run: {text}\nsee its own output")
