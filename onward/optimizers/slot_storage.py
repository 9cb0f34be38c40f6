"""SlotStorage: the nodes that read and write slots which are stored in 16 bits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onward.graph.dtypes import BY_NUMPY
from onward.graph.graph_ops import GraphOps
from onward.optimizers.optimizer import Slots
from onward.optimizers.stored_slots import StoredSlot
from onward.passes.random_functions import DOMAIN, RANDOM_KEY, STOCHASTIC_ROUND, register

_NODE = 1 << 20  # the first number of calls here: other than those of train graphs


class SlotStorage:
    """Casts slots to the type of their parameter, and new ones back.

    Random bits are a function of the step, of the slot and of the place in its vector.
    """

    def __init__(self, op: GraphOps, stored: Mapping[str, StoredSlot]) -> None:
        self._op, self._stored = op, stored
        self._key: ir.Value | None = None
        self._calls = 0

    def read(self, slots: Slots, p: ir.Value) -> Slots:
        """Slots in the type of their parameter."""
        return {
            slot: self._op.cast_like(value, p) if slot in self._stored else value
            for slot, value in slots.items()
        }

    def rounded(self, news: Slots, step: ir.Value) -> Slots:
        """New slots in the type that they are stored in."""
        found = dict(news)
        for slot, stored in self._stored.items():
            if stored.stochastic:
                found[slot] = self._round_at_random(news[slot], step)
            else:
                found[slot] = self._op.Cast(news[slot], to=BY_NUMPY[stored.dtype].number)
        return found

    def completed(self, model: ir.Model) -> ir.Model:
        """The model with the functions that it calls."""
        if self._calls:
            for name in (RANDOM_KEY, STOCHASTIC_ROUND):
                register(model, name)
        return model

    def _round_at_random(self, new: ir.Value, step: ir.Value) -> ir.Value:
        op = self._op
        if self._key is None:
            zero = np.zeros(1, np.int64)
            draw = op.Concat(zero, op.Reshape(step, np.ones(1, np.int64)), zero, axis=0)
            self._key = op.RandomKey(draw, domain=DOMAIN)
            self._key.dtype, self._key.shape = ir.DataType.INT32, ir.Shape((2,))
        x = op.Cast(new, to=1) if new.dtype != ir.DataType.FLOAT else new
        made = op.node(
            STOCHASTIC_ROUND, (x, self._key), {"node": _NODE + self._calls}, domain=DOMAIN
        )
        assert isinstance(made, ir.Value)
        made.dtype, made.shape = ir.DataType.BFLOAT16, new.shape
        self._calls += 1
        return made
