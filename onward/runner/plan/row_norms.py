"""BatchNormalization layers that take the statistics of a batch over its rows alone.

One row has none: its normalized values are 0 whatever it is, so nothing before the layer learns,
and the running variance shrinks. (Of an image, the pixels of one row are enough.)
"""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onward.graph.scopes import walk
from onward.graph.shapes.infer import infer_shapes
from onward.runner.finetune.adapted_model import AdaptedModel
from onward.runner.finetune.linear_layers import prepare_layers
from onward.runner.plan.training_plan import ChosenSetting


def keep_row_norms(adapted: AdaptedModel, batch: int) -> tuple[AdaptedModel, list[ChosenSetting]]:
    """For batches of one row: the model whose layers of this kind keep their statistics."""
    found = row_norms(adapted) if batch == 1 else []
    if not found:
        return adapted, []
    choice = ChosenSetting(
        "BatchNormalization",
        f"{len(found)} {'layer keeps its' if len(found) == 1 else 'layers keep their'} statistics",
        "a batch of 1 row has none of its own",
    )
    kept = [*adapted.frozen_batch_norms, *found]
    return replace(adapted, frozen_batch_norms=kept), [choice]


def leaves_one_row(
    adapted: AdaptedModel, rows: int, batch: int
) -> tuple[bool, list[ChosenSetting]]:
    """Whether the last batch of an epoch would be a row that such a layer cannot normalize."""
    if batch == 1 or rows < batch or rows % batch != 1 or not row_norms(adapted):
        return False, []
    why = "BatchNormalization cannot normalize a batch of 1 row; another row in each epoch"
    return True, [ChosenSetting("left out", "the last batch of an epoch", why)]


def row_norms(adapted: AdaptedModel) -> list[str]:
    """The outputs of such layers, of those that train with the statistics of a batch."""
    nodes = [each for each in walk(adapted.model.graph) if _is_norm(each)]
    if not nodes and not adapted.model.functions:
        return []
    found = []
    for node in walk(infer_shapes(prepare_layers(adapted.model)).graph):
        name = node.outputs[0].name
        if _is_norm(node) and name not in adapted.frozen_batch_norms and _has_only_rows(node):
            found.append(str(name))
    return found


def _is_norm(node: ir.Node) -> bool:
    return node.op_type == "BatchNormalization" and node.domain == ""


def _has_only_rows(node: ir.Node) -> bool:
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    return shape is not None and all(size == 1 for size in shape[2:])
