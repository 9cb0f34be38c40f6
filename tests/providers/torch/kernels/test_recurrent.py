"""LSTM, GRU and RNN, against stock onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from onward.providers.torch.kernels import recurrent
from tests.providers.torch.one_node import Array, run_op
from tests.providers.torch.ort_node import agrees_with_ort

TIME, BATCH, INPUTS, HIDDEN = 4, 3, 2, 5
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
ALL = [(op, direction) for op in GATES for direction in DIRECTIONS]


def layer(
    op: str, direction: str, *, optional: bool = True, lengths: Any = None, size: float = 1.0
) -> list[Array | None]:
    """Random inputs of a layer; `optional` has its biases and initial states too."""
    random = np.random.default_rng(3)

    def numbers(*shape: int) -> Array:
        return (size * random.normal(size=shape)).astype(np.float32)

    directions, gates = DIRECTIONS[direction], GATES[op] * HIDDEN
    states = [numbers(directions, BATCH, HIDDEN) if optional else None for _ in range(STATES[op])]
    return [
        numbers(TIME, BATCH, INPUTS),
        numbers(directions, gates, INPUTS),
        numbers(directions, gates, HIDDEN),
        numbers(directions, 2 * gates) if optional else None,
        None if lengths is None else np.array(lengths, np.int32),
        *states,
    ]


def agrees(op: str, inputs: list[Array | None], direction: str, **attributes: Any) -> None:
    attributes |= {"hidden_size": HIDDEN, "direction": direction}
    agrees_with_ort(op, inputs, attributes, outputs=1 + STATES[op])


@pytest.fixture(params=["fused", "steps"])
def lstm_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to run the usual LSTM, whichever this machine prefers."""
    monkeypatch.setattr(recurrent, "_steps_are_faster", lambda x: request.param == "steps")


@pytest.mark.usefixtures("lstm_way")
@pytest.mark.parametrize("lengths", [None, [4, 2, 1], [2, 4, 0]])
@pytest.mark.parametrize("optional", [True, False])
@pytest.mark.parametrize("op, direction", ALL)
def test_a_layer_agrees_with_onnxruntime(
    op: str, direction: str, optional: bool, lengths: list[int] | None
) -> None:
    inputs = layer(op, direction, optional=optional, lengths=lengths)
    attributes = {"linear_before_reset": 1} if op == "GRU" else {}
    agrees(op, inputs, direction, **attributes)


@pytest.mark.parametrize("lengths", [None, [4, 2, 1]])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_gru_may_reset_before_its_product(direction: str, lengths: list[int] | None) -> None:
    agrees("GRU", layer("GRU", direction, lengths=lengths), direction)


@pytest.mark.parametrize("op, direction", ALL)
def test_a_clip_bounds_what_the_gates_take(op: str, direction: str) -> None:
    agrees(op, layer(op, direction, lengths=[4, 1, 3], size=2.0), direction, clip=0.7)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("coupled", [0, 1])
@pytest.mark.parametrize("peepholes", [True, False])
def test_an_lstm_has_peepholes_and_coupled_gates(
    direction: str, coupled: int, peepholes: bool
) -> None:
    inputs = layer("LSTM", direction)
    if peepholes:
        weights = np.random.default_rng(5).normal(size=(DIRECTIONS[direction], 3 * HIDDEN))
        inputs.append(weights.astype(np.float32))
    agrees("LSTM", inputs, direction, input_forget=coupled)


ACTIVATIONS: list[tuple[list[str], list[float], list[float]]] = [
    (["Relu"], [], []),
    (["Sigmoid"], [], []),
    (["Softsign"], [], []),
    (["Softplus"], [], []),
    (["LeakyRelu"], [], []),
    (["LeakyRelu"], [0.3], []),
    (["ThresholdedRelu"], [0.2], []),
    (["Elu"], [0.7], []),
    (["HardSigmoid"], [], []),
    (["HardSigmoid"], [0.3], [0.4]),
    (["ScaledTanh"], [0.6], [0.9]),
    (["Affine"], [0.3], [0.1]),
]


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("names, alphas, betas", ACTIVATIONS, ids=str)
def test_every_activation_agrees(
    names: list[str], alphas: list[float], betas: list[float], direction: str
) -> None:
    n = DIRECTIONS[direction]
    given = {"activations": names * n}
    given |= {"activation_alpha": alphas * n} if alphas else {}
    given |= {"activation_beta": betas * n} if betas else {}
    agrees("RNN", layer("RNN", direction, size=0.4), direction, **given)


def test_alphas_and_betas_go_to_the_functions_that_take_them_in_turn() -> None:
    agrees(
        "LSTM",
        layer("LSTM", "forward"),
        "forward",
        activations=["HardSigmoid", "LeakyRelu", "ScaledTanh"],
        activation_alpha=[0.3, 0.2, 0.8],
        activation_beta=[0.4, 0.7],
    )


@pytest.mark.parametrize("op, direction", ALL)
def test_batch_first_layout_only_swaps_axes(op: str, direction: str) -> None:
    inputs = layer(op, direction, lengths=[4, 1, 3])
    attributes = {"hidden_size": HIDDEN, "direction": direction}
    y, *states = run_op(op, inputs, attributes, outputs=1 + STATES[op])
    turned = [
        value if value is None or i in (1, 2, 3, 4) else value.swapaxes(0, 1)
        for i, value in enumerate(inputs)
    ]
    y1, *states1 = run_op(op, turned, {**attributes, "layout": 1}, outputs=1 + STATES[op])
    assert_allclose(y1, y.transpose(2, 0, 1, 3), rtol=1e-5, atol=1e-6)
    for state, state1 in zip(states, states1, strict=True):
        assert_allclose(state1, state.swapaxes(0, 1), rtol=1e-5, atol=1e-6)


def test_half_precision_is_computed_as_float32_on_the_cpu() -> None:
    inputs = layer("LSTM", "forward")
    attributes = {"hidden_size": HIDDEN}
    (y,) = run_op("LSTM", [None if x is None else x.astype(np.float16) for x in inputs], attributes)
    (wanted,) = run_op("LSTM", inputs, attributes)
    assert y.dtype == np.float16
    assert_allclose(y, wanted, atol=5e-3)


def test_a_compiled_layer_is_one_operator_for_any_length() -> None:
    x, w, r, *_ = [torch.tensor(value) for value in layer("LSTM", "forward", optional=False)[:3]]

    def run(x: torch.Tensor) -> torch.Tensor:
        return recurrent.lstm(x, w, r, direction="forward", layout=0, input_forget=0)[0]

    graphs = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(run, backend=keep, dynamic=True, fullgraph=True)
    for length in (4, 3):
        part = x[:length].clone()
        assert_allclose(compiled(part), run(part), rtol=1e-5)
    assert len(graphs) == 1
    assert torch.ops.onward.lstm.default in graphs[0]
