"""find_kept_values: what torch keeps in memory of a train graph, for its Memory option."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.operators import VIEWS
from onward.graph.scopes import origin, standard
from onward.passes.random_functions import DROPOUT_MASK, calls
from onward.programs.memory.engine_memory import EngineMemory
from onward.providers.provider import Provider
from onward.providers.torch.fused_cross_entropy import find_fused_scores
from onward.providers.torch.kernels.linear_cross_entropy import CHUNK
from onward.providers.torch.provider import TorchProvider
from onward.providers.torch.training.lowering import prepare_graph


def find_kept_values(train: ir.Model, provider: Provider) -> EngineMemory:
    """What a provider keeps: scores of a fused loss in chunks, no masks in compiled code.

    A transposed weight is a view: it takes no memory. It is not computed again, because its copy
    would hide a linear layer and its loss from the operator that fuses them.
    """
    assert isinstance(provider, TorchProvider)
    prepared = prepare_graph(train, provider)
    fixed = _views_of_inputs(train.graph)
    most_bytes = dict.fromkeys(fixed, 0)
    if provider.fuses_cross_entropy:
        for each in find_fused_scores(prepared):
            most_bytes[str(each.scores.name)] = CHUNK
            most_bytes.update({str(value.name): 0 for value in each.others})
            fixed.add(str(each.x.name))
    if provider.step_compiler is not None:
        masks = calls(prepared.graph, DROPOUT_MASK)
        most_bytes.update({str(call.outputs[0].name): 0 for call in masks})
    compiles = provider.step_compiler is not None
    return EngineMemory(most_bytes, frozenset(fixed), updates_rows=compiles)


def _views_of_inputs(graph: ir.Graph) -> set[str]:
    """Names of values that are parameters or feeds in another shape, or transposed."""
    is_view = standard(VIEWS | {"Transpose"})
    made = (value for node in graph if is_view(node) for value in node.outputs)
    return {str(value.name) for value in made if origin(value, is_view).producer() is None}
