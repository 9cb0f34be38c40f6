"""The activations and FLOPs of a train graph, against those that the rest of the package counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
import pytest

from onward import losses, optimizers
from onward.distributed.planner.bucket_sizes import bucket_names
from onward.distributed.planner.training_costs import measure_costs
from onward.errors import OptionError
from onward.graph.builder import OpBuilder
from onward.graph.costs.node_costs import model_costs
from onward.measure.memory.budget import VIEWS, estimate_memory
from onward.passes.drop_unused import drop_unused
from onward.programs.build import build_program
from onward.programs.program import Program
from onward.runner.architectures.new_model import new_model
from tests.distributed.training_cases import classifier

ROWS = (2, 6, 499, 1000)


def compile_classifier(model: ir.Model, output: str = "scores") -> Program:
    return build_program(model, losses.CrossEntropy(output=output), optimizers.AdamW())


def layers(batch: int | str = "batch", time: int | str = 3) -> ir.Model:
    """x (batch, time, 8) -> scores (batch, 5), with a square of the batch's size inside."""
    op, rng = OpBuilder(18), np.random.default_rng(0)
    x = op.input("x", "float32", (batch, time, 8))
    w = op.initializer("w", rng.normal(size=(8, 5)).astype(np.float32))
    h = op.ReduceMean(op.Tanh(op.MatMul(x, w)), np.array([1]), keepdims=0)
    alike = op.Softmax(op.MatMul(h, op.Transpose(h, perm=[1, 0])))  # (batch, batch)
    return op.model(scores=op.MatMul(alike, h))


MODELS = {
    "layers": classifier(),
    "statistics": classifier(batch_norm=True),
    "square of the batch": layers(),
}


def shapes_of(program: Program, sizes: Mapping[str, int]) -> dict[str, Sequence[int]]:
    known = {*program.layout.inputs, *program.layout.targets}
    return {
        str(value.name): [
            size if isinstance(size, int) else sizes.get(str(size.value), sizes["batch"])
            for size in value.shape or ()
        ]
        for value in program.train.graph.inputs
        if value.name in known
    }


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", MODELS)
def test_activations_equal_the_estimate_of_the_train_graph(name: str, rows: int) -> None:
    program = compile_classifier(MODELS[name])
    found = measure_costs(program).activations(rows)
    train = drop_unused(program.train.clone())
    known = estimate_memory(train, shapes_of(program, {"batch": rows}), VIEWS)
    assert not known.unknown
    gradients = {each.gradient for each in program.layout.parameters}
    elsewhere = [each for each in known.lives.buffers if gradients & {*each.values}]
    for step, node in enumerate(known.lives.steps):
        node.live -= sum(each.nbytes for each in elsewhere if each.birth <= step)
    assert found == known.lives.peak


def test_activations_without_gradients_by_hand() -> None:
    """loss = mean((x w - y)^2): d (x w) needs x w - y, and nothing else is alive with it."""
    op = OpBuilder(18)
    x = op.input("x", "float32", ("batch", 4))
    w = op.initializer("w", np.ones((4, 2), np.float32))
    program = build_program(op.model(y=op.MatMul(x, w)), losses.MSE(), optimizers.SGD(lr=0.1))
    costs = measure_costs(program)
    one, two = costs.activations(100), costs.activations(200)
    assert one < two < 2 * one + 64
    assert one >= 100 * 2 * 4 * 2  # the output, which the step returns, and the difference


@pytest.mark.parametrize("rows", [1, 7, 499])
def test_flops_equal_the_costs_of_the_train_graph(rows: int) -> None:
    program = compile_classifier(layers())
    train = drop_unused(program.train.clone())
    sizes = dict.fromkeys(model_costs(train).sizes, rows)
    assert measure_costs(program).flops(rows) == model_costs(train, sizes).flops


def test_flops_of_buckets_sum_up_to_all() -> None:
    program = compile_classifier(classifier())
    costs = measure_costs(program)
    grouped = bucket_names(program, 300)
    found = costs.bucket_flops(grouped, 16)
    assert len(found) == len(grouped) > 2
    total = sum(each.forward + each.backward for each in found)
    assert total == pytest.approx(costs.flops(16))
    [whole] = costs.bucket_flops([program.layout.names], 16)
    assert whole.forward == pytest.approx(sum(each.forward for each in found))
    assert 1.5 < whole.backward / whole.forward < 2.5  # two products for each of the forward pass
    assert all(each.backward > 0 for each in found)


def test_segments_follow_the_order_of_the_backward_pass() -> None:
    """The last layer's gradients need only its own product, the first layer's all others' too."""
    program = compile_classifier(classifier())
    found = measure_costs(program).bucket_flops([["last"], *rest(program)], 16)
    product = 2 * 16 * 8 * 5
    assert found[0].forward >= product
    assert product <= found[0].backward < 2 * product


def rest(program: Program) -> list[list[str]]:
    return [[name for name in program.layout.names if name != "last"]]


def test_dynamic_dimensions_are_1_or_as_given() -> None:
    program = compile_classifier(layers(time="time"))
    assert measure_costs(program).sizes == {"time": 1}
    longer = measure_costs(program, {"time": 50})
    assert longer.sizes == {"time": 50}
    assert longer.activations(8) > 5 * measure_costs(program).activations(8)
    with pytest.raises(OptionError, match="no dynamic dimension 'tim'\ndid you mean 'time'"):
        measure_costs(program, {"tim": 2})


def test_a_fixed_batch_is_kept() -> None:
    costs = measure_costs(compile_classifier(layers(batch=4)))
    assert costs.fixed == 4
    assert costs.activations(4) == measure_costs(compile_classifier(layers())).activations(4)


def test_recomputation_keeps_fewer_bytes() -> None:
    op, rng = OpBuilder(20), np.random.default_rng(0)
    h = op.input("x", "float32", ("batch", 64))
    for i in range(3):
        w = op.initializer(f"w{i}", rng.normal(size=(64, 64)).astype(np.float32))
        h = op.Exp(op.Neg(op.Sin(op.MatMul(h, w))))
    costs = measure_costs(compile_classifier(op.model(scores=h)))
    recomputed = costs.recomputed_activations(128)
    assert recomputed < costs.activations(128)


@pytest.mark.integration
def test_attention_has_sizes_everywhere() -> None:
    program = compile_classifier_of_tokens()
    costs = measure_costs(program, {"time": 16})
    missing = [
        str(value.name)
        for node in costs.train.graph
        for value in node.outputs
        if value.name not in costs.sized.nbytes
    ]
    assert len(missing) <= 3  # labels that are counted: their number depends on the data


def compile_classifier_of_tokens() -> Program:
    model = new_model("gpt2", layers=2, width=16, heads=2, vocabulary=32, context=32)
    return build_program(model, losses.CrossEntropy(axis=2), optimizers.AdamW())
