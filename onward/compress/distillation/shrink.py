"""shrink: make a student out of a teacher by keeping some of its repeated layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from onward.compress.distillation.repeated_layers import Chain, find_chains
from onward.errors import OptionError, UnsupportedModel
from onward.graph.files import load
from onward.graph.shapes.infer import infer_shapes
from onward.passes.drop_unused import drop_unused
from onward.passes.pipelines import PREPARE

if TYPE_CHECKING:
    from onward.graph.files import Source


def shrink(model: Source, layers: int) -> ir.Model:
    """A model with fewer of its repeated layers, evenly spaced, the first and the last included.

    Layers are blocks of equal structure whose input and output have one shape: those of
    transformers, the residual blocks of a ResNet's stages. A model with several chains of layers
    (encoder and decoder, stages) keeps a share of each, at least one. A first layer that an
    exporter has written in another way than the others is kept, and not counted.

    Args:
        model: the teacher; it is not changed
        layers: the number of repeated layers to keep, in all chains together

    >>> import onward
    >>> teacher = onward.new_model("gpt2", layers=4, width=32, heads=2, context=8)
    >>> student = shrink(teacher, layers=2)
    >>> len(student.graph) < 0.6 * len(teacher.graph)
    True
    """
    source = load(model, any_domain=True)
    copy = source.clone()
    chains = find_chains(infer_shapes(copy).graph)
    if not chains and copy.functions:  # layers may be inside of functions
        copy = PREPARE(copy)
        chains = find_chains(copy.graph)
    total = sum(chain.layers for chain in chains)
    if not chains:
        raise UnsupportedModel(
            "no repeated layers were found in the model: there is nothing to leave out\n"
            "give a student of your own, such as onward.new_model(...)"
        )
    if not len(chains) <= layers <= total:
        raise OptionError(
            f"layers must be from {len(chains)} to {total}, the number of repeated layers that "
            f"the model has, not {layers}"
        )
    for chain, kept in zip(chains, _shares(chains, layers), strict=True):
        _keep_layers(copy, chain, kept)
    drop_unused(copy)
    return copy


def _shares(chains: Sequence[Chain], layers: int) -> list[int]:
    """The number of layers to keep of each chain: in proportion, at least one."""
    total = sum(chain.layers for chain in chains)
    kept = [max(1, int(layers * chain.layers / total)) for chain in chains]
    while sum(kept) > layers:
        kept[int(np.argmax(kept))] -= 1
    while sum(kept) < layers:
        missing = [layers * c.layers / total - k for c, k in zip(chains, kept, strict=True)]
        room = [m if k < c.layers else -np.inf for m, c, k in zip(missing, chains, kept)]
        kept[int(np.argmax(room))] += 1
    return kept


def _keep_layers(model: ir.Model, chain: Chain, kept: int) -> None:
    """Leave out layers: readers of their output read their input."""
    places = np.linspace(0, chain.layers - 1, kept).round().astype(int) if kept > 1 else [-1]
    chosen = {int(place) % chain.layers for place in places}
    outputs = model.graph.outputs
    current = chain.ends[0]
    for place, end in enumerate(chain.ends[1:]):
        if place in chosen:
            current = end
            continue
        outputs[:] = [value for value in outputs if value is not end]
        end.replace_all_uses_with(current)
