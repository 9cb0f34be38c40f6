"""Axes of LSTM, GRU and RNN: the hidden units, in every gate."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.compress.pruning.axes import Axes, rank
from onward.compress.pruning.cut import CUTS, Cut
from onward.compress.pruning.rules.reading import given
from onward.graph.operator_table import OpTable

RECURRENT = OpTable()


@RECURRENT("LSTM", "GRU", "RNN")
def _recurrent(node: ir.Node, axes: Axes) -> None:
    """W: (directions, gates * hidden, inputs), R: (directions, gates * hidden, hidden)"""
    x, w, r = node.inputs[0], node.inputs[1], node.inputs[2]
    if x is None or w is None or r is None or rank(r) != 3 or not rank(x):
        return
    hidden = (r, 2)
    size = axes.size(hidden)
    if not size:
        return
    axes.tie((x, (rank(x) or 0) - 1), (w, 2))
    for weight, place in ((w, 1), (r, 1), (given(node, 3), 1), (given(node, 7), 1)):
        if weight is None:
            continue
        count = axes.size((weight, place))
        if count is None or count % size:
            axes.pin(hidden)
            continue
        places = np.arange(count)
        axes.tie_positions((weight, place), places, hidden, places % size)
    for state in (given(node, 5), given(node, 6), *node.outputs):
        if state is None or (state in node.outputs and not state.name):
            continue
        count = rank(state)
        if count is None:
            axes.pin(hidden)
            continue
        axes.tie((state, count - 1), hidden)


@CUTS("LSTM", "GRU", "RNN")
def _cut_recurrent(node: ir.Node, cut: Cut) -> None:
    r = node.inputs[2]
    if r is not None and cut.kept(r, 2) is not None:
        cut.set_attribute(node, "hidden_size", cut.size(r, 2))
