"""Cases of rules/recurrent.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.gradients.case import Case, normal

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_TIME, _BATCH, _SIZE, _HIDDEN = 4, 3, 2, 3


def _layer(operator: str, note: str, given: str = "b", returned: str = "y", **rest: Any) -> Case:
    """`given` are optional inputs: b, l(engths), h, c, p; `returned` outputs: y, h, c."""
    # stock onnxruntime refuses layout 1
    options: dict[str, Any] = {"ort": rest.pop("ort", not rest.get("layout"))}
    options |= {n: rest.pop(n) for n in ("autograd", "dynamic", "lengths", "time") if n in rest}
    lengths, time = options.pop("lengths", [4, 2, 1]), options.pop("time", _TIME)
    directions = 2 if rest.get("direction") == "bidirectional" else 1
    gates = _GATES[operator] * _HIDDEN
    batch_first = rest.get("layout", 0)
    state = (_BATCH, directions, _HIDDEN) if batch_first else (directions, _BATCH, _HIDDEN)
    feeds: dict[str, Any] = {
        "x": normal(*((_BATCH, time, _SIZE) if batch_first else (time, _BATCH, _SIZE))),
        "w": normal(directions, gates, _SIZE, seed=1),
        "r": 0.5 * normal(directions, gates, _HIDDEN, seed=2),
        "b": normal(directions, 2 * gates, seed=3),
        "l": np.array(lengths, np.int32),
        "h": normal(*state, seed=4),
        "c": normal(*state, seed=5),
        "p": normal(directions, 3 * _HIDDEN, seed=6),
    }
    order = ["x", "w", "r", "b", "l", "h", *(["c", "p"] if operator == "LSTM" else [])]
    results = ["y", "h", "c"] if operator == "LSTM" else ["y", "h"]

    def build(op: Any, **inputs: Any) -> Any:
        values = [inputs.get(name) for name in order]
        made = getattr(op, operator)(*values, outputs=len(results), hidden_size=_HIDDEN, **rest)
        return tuple(y for name, y in zip(results, made) if name in returned)

    kept = {name: feed for name, feed in feeds.items() if name in "xwr" + given}
    return Case(operator, build, kept, note, **options)


def _each(operator: str) -> list[Case]:
    """What all three have."""
    states = "hc" if operator == "LSTM" else "h"
    everything = "y" + states
    return [
        _layer(operator, ""),
        _layer(operator, "no bias", given=""),
        _layer(operator, "only last states", returned=states),
        _layer(operator, "first states", given="b" + states, returned=everything),
        _layer(operator, "reverse", given="b" + states, returned=everything, direction="reverse"),
        _layer(
            operator,
            "bidirectional",
            given="b" + states,
            returned=everything,
            direction="bidirectional",
        ),
        _layer(
            operator,
            "batch first",
            given="b" + states,
            returned=everything,
            direction="bidirectional",
            layout=1,
        ),
        _layer(operator, "lengths", given="l" + states, returned=everything),
        _layer(operator, "lengths without first states", given="bl", direction="reverse"),
        _layer(
            operator,
            "lengths, both ways",
            given="bl" + states,
            returned=everything,
            direction="bidirectional",
        ),
        _layer(
            operator, "an empty one", given="bl" + states, returned=everything, lengths=[4, 0, 2]
        ),
        _layer(operator, "clip", clip=0.4),
        _layer(operator, "one step", given="b" + states, returned=everything, time=1),
    ]


# one function for all gates of an RNN: each of ONNX's names
_NAMES = {
    "Relu": {},
    "Sigmoid": {},
    "Affine": {"activation_alpha": [0.5], "activation_beta": [0.2]},
    "LeakyRelu": {"activation_alpha": [0.1]},
    "ThresholdedRelu": {"activation_alpha": [0.3]},
    "ScaledTanh": {"activation_alpha": [1.2], "activation_beta": [0.7]},
    "HardSigmoid": {"activation_alpha": [0.3], "activation_beta": [0.4]},
    "Elu": {"activation_alpha": [0.8]},
    "Softsign": {},
    "Softplus": {},
}

CASES = [
    *_each("RNN"),
    *_each("GRU"),
    *_each("LSTM"),
    *[_layer("RNN", f"by {name}", activations=[name], **given) for name, given in _NAMES.items()],
    _layer(
        "RNN",
        "by two functions",
        direction="bidirectional",
        activations=["LeakyRelu", "Elu"],
        activation_alpha=[0.2, 0.9],
    ),
    # onnxruntime refuses it; a Scan of nothing knows no sizes but those that are written down
    # (and nothing that autograd could follow)
    _layer("GRU", "no step", time=0, ort=False, dynamic=False, autograd=False),
    _layer("LSTM", "no step", time=0, ort=False, dynamic=False, autograd=False),
    _layer("GRU", "reset after", given="bh", returned="yh", linear_before_reset=1),
    _layer("GRU", "reset after, no bias", given="", linear_before_reset=1),
    _layer(
        "GRU",
        "reset after, lengths",
        given="blh",
        returned="yh",
        linear_before_reset=1,
        direction="bidirectional",
    ),
    _layer(
        "GRU",
        "other functions",
        activations=["HardSigmoid", "Softsign"],
        activation_alpha=[0.3],
        activation_beta=[0.4],
        linear_before_reset=1,
        clip=2.0,
    ),
    _layer("LSTM", "peepholes", given="bhcp", returned="yhc"),
    _layer(
        "LSTM",
        "peepholes, lengths",
        given="blhcp",
        returned="yhc",
        direction="bidirectional",
    ),
    _layer("LSTM", "coupled gates", given="bhc", returned="yhc", input_forget=1),
    _layer("LSTM", "coupled gates, peepholes", given="bcp", returned="yc", input_forget=1),
    _layer(
        "LSTM",
        "other functions",
        activations=["HardSigmoid", "ScaledTanh", "Softsign"],
        activation_alpha=[0.3, 1.2],
        activation_beta=[0.4, 0.7],
        clip=2.0,
    ),
]
