"""Translations of simple recurrent layers to RNN: torch's exporter would unroll them over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onnxscript import opset18

op: Any = opset18


def recurrent(activation: str) -> Callable[..., tuple[Any, Any]]:
    """The translation of aten.rnn_tanh.input or aten.rnn_relu.input."""

    def translate(
        x: Any,
        state: Any,
        params: Sequence[Any],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> tuple[Any, Any]:
        """x: (time, batch, features), state: (layers * directions, batch, hidden)"""
        directions = 2 if bidirectional else 1
        per_cell = 4 if has_biases else 2
        cells = [params[i : i + per_cell] for i in range(0, len(params), per_cell)]
        states = []
        y = op.Transpose(x, perm=[1, 0, 2]) if batch_first else x
        for layer in range(num_layers):
            first = layer * directions
            if layer and train and dropout:
                y, _ = op.Dropout(y, dropout, True)
            w, r, *biases = (_stack(each) for each in zip(*cells[first : first + directions]))
            initial = op.Slice(state, [first], [first + directions], [0])
            y, last = op.RNN(
                *(y, w, r, op.Concat(*biases, axis=1) if biases else None, None, initial),
                activations=[activation] * directions,
                direction="bidirectional" if bidirectional else "forward",
                hidden_size=state.shape[-1],
            )
            y = op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, -1])
            states.append(last)
        y = op.Transpose(y, perm=[1, 0, 2]) if batch_first else y
        return y, op.Concat(*states, axis=0)

    return translate


def _stack(values: Sequence[Any]) -> Any:
    """One tensor with an axis for the directions."""
    rows = [op.Unsqueeze(value, [0]) for value in values]
    return op.Concat(*rows, axis=0)
