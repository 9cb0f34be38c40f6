"""Find the BatchNormalization layers that keep their statistics while the model trains."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onward.graph.scopes import walk
from onward.programs.select import matching
from onward.runner.finetune.linear_layers import prepare_layers
from onward.settings import list_of


def batch_norm_names(model: ir.Model, patterns: Sequence[str] = ("*",)) -> list[str]:
    """The names of BatchNormalization layers, for TrainingOptions.frozen_batch_norms.

    A layer matches by the name of its node, of its output, or of one of its tensors, such as
    `encoder.bn.weight`. All layers of a model without any are an empty list.

    Args:
        model: the model
        patterns: names or patterns; the default matches all

    >>> import numpy as np
    >>> from onward.graph.builder import OpBuilder
    >>> op, one = OpBuilder(), np.ones(3, np.float32)
    >>> tensors = [op.initializer(f"bn.{name}", one) for name in ("weight", "bias", "mean", "var")]
    >>> x = op.input("x", "float32", ("batch", 3, 4))
    >>> batch_norm_names(op.model(y=op.BatchNormalization(x, *tensors)), ["bn.*"])
    ['y']
    """
    patterns = list_of(str, "a list of names or patterns", "['encoder.*']")("patterns", patterns)
    layers: dict[str, list[str]] = {}
    for node in walk(prepare_layers(model).graph):
        if node.op_type == "BatchNormalization" and node.domain == "":
            named = [node.name, *(value.name for value in node.inputs[1:] if value is not None)]
            output = str(node.outputs[0].name)
            layers[output] = [output, *(name for name in named if name)]
    if not layers and set(patterns) <= {"*"}:
        return []
    known = [name for names in layers.values() for name in names]
    chosen = set(matching(known, patterns, "patterns", "BatchNormalization"))
    return [output for output, names in layers.items() if not chosen.isdisjoint(names)]
