"""Recomputed activations take less memory and give the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward import losses, optimizers
from onward.errors import OptionError
from onward.passes.drop_unused import drop_unused
from onward.programs.build import build_program
from onward.programs.memory.forward_backward import divide_train_graph
from onward.programs.memory.memory_options import Memory
from onward.programs.memory.schedule import make_schedule, peak_of
from onward.programs.memory.train_sizes import measure_train_graph
from onward.programs.program import LOSS, Program
from tests.programs.memory.models import chain, transformer, transformer_feeds

ENGINES = ["CPUExecutionProvider", "TorchExecutionProvider"]
MEMORIES = [
    Memory(level=1),
    Memory(level=2),
    Memory(budget="60%"),
    Memory(plan=["*Gelu*"]),
]


def build(model: ir.Model, memory: Memory | None, **options: Any) -> Program:
    given = {"memory": memory, "outputs": [], **options}
    return build_program(model, losses.CrossEntropy(), optimizers.AdamW(), given)


def train(model: ir.Model, feeds: Any, memory: Memory | None, engine: str) -> Any:
    """The losses of three steps, and the parameters after them."""
    options = {"memory": memory, "outputs": []}
    loss, optimizer = losses.CrossEntropy(), optimizers.SGD(lr=0.1)
    session = onward.TrainingSession(model, loss, optimizer, options, providers=[engine])
    steps = [float(session.step(feeds)["loss"]) for _ in range(3)]
    return steps, {name: np.array(value) for name, value in session.parameters.items()}


def peak(program: Program) -> int:
    """The bytes of activations that are alive at once, as the graph runs in its order."""
    sizes = measure_train_graph(program.train, {})
    parts = divide_train_graph(program.train.graph, [LOSS])
    every = {value for node in parts.nodes for value in node.outputs}
    gradients = [parameter.gradient for parameter in program.layout.parameters]
    return peak_of(make_schedule(parts, every), sizes.bytes_of, gradients)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("memory", MEMORIES, ids=str)
def test_losses_and_parameters_are_the_same(memory: Memory, engine: str) -> None:
    feeds = transformer_feeds()
    expected, parameters = train(transformer(), feeds, None, engine)
    found, trained = train(transformer(), feeds, memory, engine)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    for name, value in parameters.items():
        np.testing.assert_allclose(trained[name], value, atol=1e-6)


@pytest.mark.integration
@pytest.mark.parametrize("engine", ENGINES)
def test_dynamic_batch_trains_with_any_size(engine: str) -> None:
    memory = Memory(budget="60%")
    feeds = transformer_feeds(3)
    expected, _ = train(transformer("batch"), feeds, None, engine)
    found, _ = train(transformer("batch"), feeds, memory, engine)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.integration
@pytest.mark.parametrize(("share", "text"), [(0.8, "80%"), (0.6, "60%")])
def test_budget_bounds_the_peak(share: float, text: str) -> None:
    unlimited = peak(build(transformer(16), None))
    assert peak(build(transformer(16), Memory(budget=text))) <= share * unlimited + 64


@pytest.mark.integration
def test_budget_in_bytes_bounds_the_peak() -> None:
    unlimited = peak(build(transformer(16), None))
    budget = int(0.7 * unlimited)
    assert peak(build(transformer(16), Memory(budget=budget))) <= budget + 64


@pytest.mark.integration
def test_levels_take_less_memory_each() -> None:
    levels = [peak(build(transformer(16), Memory(level=level))) for level in (0, 1, 2)]
    assert levels[0] > levels[1] > levels[2]


def test_level_1_repeats_no_products() -> None:
    nodes = build(transformer(), Memory(level=1)).train.graph
    again = {node.op_type for node in nodes if "/again" in (node.name or "")}
    assert again and not again & {"MatMul", "Gemm", "Attention"}


def test_chain_without_residuals_is_cut_into_layers() -> None:
    """Computed again from its input, a chain would be alive as a whole before its backward."""
    unlimited = peak(build(chain(), None))
    assert peak(build(chain(), Memory(level=2))) < 0.75 * unlimited


def test_plan_repeats_the_named_values() -> None:
    graph = build(transformer(), Memory(plan=["*Gelu*"])).train.graph
    again = [node.op_type for node in graph if "/again" in (node.name or "")]
    assert again.count("Gelu") == 2 and set(again) == {"Gelu"}


@pytest.mark.integration
def test_level_0_without_a_plan_repeats_nothing() -> None:
    plain, same = build(transformer(), None), build(transformer(), Memory(level=0))
    assert len(drop_unused(plain.train).graph) == len(same.train.graph)


def test_dropout_draws_the_same_mask_again() -> None:
    """A mask is a function of seed, step and node: it need not wait."""
    program = build(transformer(16), Memory(level=2))
    again = {node.op_type for node in program.train.graph if "/again" in (node.name or "")}
    assert "DropoutMask" in again


def test_too_small_budget_names_the_smallest() -> None:
    with pytest.raises(OptionError, match=r"(?s)too small: activations take .* at least .*raise"):
        build(transformer(), Memory(budget=1000))


@pytest.mark.integration
def test_budget_in_bytes_needs_sizes() -> None:
    with pytest.raises(OptionError, match="needs the sizes of dynamic dimensions: 'batch'"):
        build(transformer("batch"), Memory(budget="1MiB"))
    build(transformer("batch"), Memory(budget="1MiB", sizes={"batch": 2}))


def test_plan_refuses_unknown_names() -> None:
    with pytest.raises(OptionError, match=r"Memory\.plan: the forward pass has no value 'nothing'"):
        build(transformer(), Memory(plan=["nothing"]))


@pytest.mark.integration
@pytest.mark.parametrize("engine", ENGINES)
def test_forward_and_backward_run_separately(engine: str) -> None:
    feeds = transformer_feeds()
    results = []
    for memory in (None, Memory(level=2)):
        session = onward.TrainingSession(
            transformer(),
            losses.CrossEntropy(),
            optimizers.SGD(lr=0.1),
            {"memory": memory, "outputs": []},
            providers=[engine],
        )
        session.run_forward(feeds)
        session.run_backward()
        session.update_weights()
        results.append(float(session.step(feeds)["loss"]))
    assert results[1] == pytest.approx(results[0], rel=1e-6)


def test_unused_nodes_read_nothing_of_the_backward_pass() -> None:
    """A Gelu that was recognised leaves its parts behind; copies for them would be made early."""
    op, rng = onward.OpBuilder(), np.random.default_rng(0)
    x: Any = op.input("x", "float32", (64, 32))
    for i in range(3):
        w = op.initializer(f"w{i}", rng.normal(0, 0.2, (32, 32)).astype(np.float32))
        h = op.MatMul(x, w)
        erf = op.Add(op.Erf(op.Div(h, np.float32(2**0.5))), np.float32(1))
        x = op.Add(x, op.Mul(op.Mul(h, np.float32(0.5)), erf))
    graph = build(op.model(y=x), Memory(level=2)).train.graph
    nodes = list(graph)
    loss = next(i for i, node in enumerate(nodes) if node.outputs[0].name == LOSS)
    again = [i for i, node in enumerate(nodes) if "/again" in (node.name or "")]
    assert again and min(again) > loss - 3  # the scores of the loss may be computed again first
