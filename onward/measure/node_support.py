"""Which provider runs which node of a model: each one alone, and as a session divides it.

The nodes are those of the prepared model (functions inlined, opset upgraded), before it is
optimised. An engine that can check a whole model gets it, without weights, before it is asked node
by node.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import onnx
import onnx_ir as ir

from onward.errors import InvalidModel, OnwardError
from onward.graph.costs.node_costs import operator
from onward.passes.pipelines import PREPARE
from onward.providers.choose import (
    INDUCTOR,
    TORCH,
    Asked,
    DeferredProvider,
    ProviderChoice,
    available,
    choose,
)
from onward.providers.options import SessionOptions
from onward.providers.ort import session as ort
from onward.providers.ort.defects import defect
from onward.providers.ort.provider import serialize
from onward.providers.provider import WholeModelProvider
from onward.sessions.partitioned_plan import first_engine, keep_calls

_MAX_WHOLE = 256 << 20  # bytes; engines allocate memory for inputs, and here weights are


@dataclass(frozen=True)
class NodePlace:
    """A node and the provider that runs it in a session; None: no provider does."""

    name: str
    operator: str
    provider: str | None
    why: str = ""  # it is not on the first provider


@dataclass(frozen=True)
class Support:
    """How many nodes each provider runs, and how a session divides a model."""

    nodes: int
    takes: dict[str, int]  # number of nodes that each provider runs
    refuses: dict[str, dict[str, int]]  # operators that it does not run, and their nodes
    division: list[NodePlace] = field(default_factory=list)

    @property
    def shares(self) -> dict[str | None, int]:
        """The number of nodes of each provider in the division."""
        return dict(Counter(place.provider for place in self.division))


def find_support(model: ir.Model, providers: Asked = None) -> Support:
    """Ask each provider of this machine, and divide the model as a session would."""
    options = SessionOptions()
    choice = choose(providers, None, options)
    try:
        model = keep_calls(PREPARE(model.clone()), choice.engines(options))
    except Exception as error:  # a broken model shows itself in many ways
        first = (str(error).splitlines() or [""])[0][:200]
        raise InvalidModel(
            f"the model could not be prepared: {type(error).__name__}: {first}"
        ) from error
    bare = _without_weights(model)
    refused: dict[str, set[ir.Node]] = {}
    for name in available():
        twin = refused.get(TORCH) if name == INDUCTOR else None  # they share their kernels
        refused[name] = _refused(model, name, options, bare) if twin is None else twin
    return Support(
        nodes=len(model.graph),
        takes={name: len(model.graph) - len(nodes) for name, nodes in refused.items()},
        refuses={
            name: dict(Counter(map(operator, nodes)).most_common())
            for name, nodes in refused.items()
        },
        division=_divide(model, choice, options, refused),
    )


def provider_facts(model: ir.Model, providers: Asked, warnings: list[str]) -> dict[str, Any] | None:
    """Which provider runs which nodes; None, with a warning, if that cannot be found out."""
    try:
        support = find_support(model, providers)
    except OnwardError as error:
        warnings.append(str(error).replace("\n", "; "))
        return None
    shares = {name or "unsupported": count for name, count in support.shares.items()}
    return {**asdict(support), "shares": shares}


def _refused(
    model: ir.Model, name: str, options: SessionOptions, bare: onnx.ModelProto | None
) -> set[ir.Node]:
    """The nodes that a provider does not run by itself."""
    (engine,) = choose([name], None, SessionOptions(disable_fallback=True)).engines(options)
    if bare is not None and _takes_whole(engine, bare):
        return set()
    opsets = model.opset_imports
    return {node for node in model.graph if not engine.supports(node, opsets)}


def _takes_whole(engine: DeferredProvider, bare: onnx.ModelProto) -> bool:
    """Whether the engine opens the whole model, so that no node needs to be asked."""
    quiet = SessionOptions(log_severity_level=4, graph_optimization_level=0)
    try:
        if engine.is_ort:
            ort.create(bare.SerializeToString(), quiet, [(name, {}) for name in engine.names])
            return True
        provider = engine.provider
        shown = isinstance(provider, WholeModelProvider) and _input_bytes(bare) < _MAX_WHOLE
        return shown and provider.takes(ir.from_proto(bare))  # type: ignore[attr-defined]
    except Exception:  # then the nodes are asked one by one
        return False


def _input_bytes(bare: onnx.ModelProto) -> int:
    """The memory of the inputs whose sizes are known."""
    total = 0
    for value in bare.graph.input:
        kind = value.type.tensor_type
        sizes = [dim.dim_value for dim in kind.shape.dim]
        width = ir.DataType(kind.elem_type).itemsize if kind.elem_type else 0
        total += int(math.prod(sizes) * width)
    return total


def _without_weights(model: ir.Model) -> onnx.ModelProto | None:
    """The model with its larger weights as inputs, so that no data is read."""
    try:
        proto = onnx.load_model_from_string(serialize(model)[0])
    except Exception:  # a model that only its own providers can read
        return None
    inputs = {value.name for value in proto.graph.input}
    kept = []
    for tensor in proto.graph.initializer:
        if not tensor.external_data:
            kept.append(tensor)
        elif tensor.name not in inputs:
            kind = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
            proto.graph.input.append(onnx.helper.make_value_info(tensor.name, kind))
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    return proto


def _divide(
    model: ir.Model,
    choice: ProviderChoice,
    options: SessionOptions,
    refused: dict[str, set[ir.Node]],
) -> list[NodePlace]:
    engines = choice.engines(options)
    first = engines[0]
    if first.is_ort and not refused.get(first.names[0]):
        whole = not (choice.may_move and any(defect(node) for node in model.graph))
        if whole:
            return [_place(node, first.names[0], "") for node in model.graph]
    opsets = model.opset_imports
    return [
        _explain(node, first_engine(node, opsets, engines, choice), engines) for node in model.graph
    ]


def _explain(node: ir.Node, number: int | None, engines: Sequence[DeferredProvider]) -> NodePlace:
    if number is None:
        asked = ", ".join(engine.names[0] for engine in engines)
        return _place(node, None, f"none of {asked} runs it")
    if number == 0:
        return _place(node, engines[0].names[0], "")
    wrong = defect(node) if engines[0].is_ort else None
    why = f"onnxruntime gets it wrong: {wrong}" if wrong else f"{engines[0].names[0]} refuses it"
    return _place(node, engines[number].names[0], why)


def _place(node: ir.Node, provider: str | None, why: str) -> NodePlace:
    return NodePlace(node.name or "", operator(node), provider, why)
