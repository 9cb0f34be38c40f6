"""Updates over pairs of rows: the same numbers, in fewer passes, in the memory that is bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onward.graph.builder import OpBuilder
from onward.optimizers.adam import AdamW
from onward.optimizers.clip import ClipByValue
from onward.optimizers.ema import EMA
from onward.optimizers.lion import Lion
from onward.optimizers.optimizer import Optimizer
from onward.optimizers.paired_vectors import Paired, paired
from onward.optimizers.sgd import SGD
from onward.optimizers.update_models import flat_update
from onward.optimizers.vector_pair_names import pairs_of
from tests.optimizers.case import Array, Tensors, session
from tests.optimizers.test_update_models import ELEMENTWISE, fed, names, run_in_place

VECTOR_OPS = {"Add", "Sub", "Mul", "Div", "Sqrt", "Sign", "MatMul"}


def passes(model: ir.Model) -> int:
    """How many nodes make a vector."""
    made = [node.outputs[0] for node in model.graph if node.op_type in VECTOR_OPS]
    return sum(value.shape is not None and len(value.shape) == 1 for value in made)


def exact_type(name: str, array: Array) -> Any:
    """float64 for vectors and for the numbers that steer; the step is a whole number."""
    return np.float64 if name != "step" else array.dtype


def memory(made: Paired, feeds: Tensors) -> Tensors:
    """The feeds where a paired update wants them: blocks, and the matrices over them."""
    placed = dict(feeds)
    for block in made.blocks:
        rows = np.zeros((len(block), len(feeds["gradients"])), np.float32)
        for name, row in zip(block, rows):
            row[...] = feeds.get(name, np.nan if name.startswith("scratch") else 0)
            placed[name] = row
        placed |= {name: rows[i : i + 2] for i, name in pairs_of(block)}
    wanted = names(made.model.graph.inputs)
    return {name: placed[name] for name in wanted}


@pytest.mark.sampled("optimizer")
@pytest.mark.sampled("average", "scaled")
@pytest.mark.sampled("n")
@pytest.mark.parametrize("n", [1, 7, 1000, 100_003])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("average", [None, EMA(decay=0.5)], ids=repr)
@pytest.mark.parametrize("optimizer", ELEMENTWISE, ids=repr)
def test_paired_updates_match_plain_updates(
    optimizer: Optimizer, average: EMA | None, scaled: bool, n: int
) -> None:
    clip = ClipByValue(limit=0.5) if scaled else None
    plain = flat_update(optimizer, scaled=scaled, clip=clip, average=average)
    made = paired(plain)
    onnx.checker.check_model(ir.to_proto(made.model), full_check=True)
    feeds, run = fed(plain, n), session(plain)
    wanted = dict(zip(names(run.get_outputs()), run.run(None, feeds)))
    exact = session(flat_update(optimizer, "float64", scaled, clip=clip, average=average))
    wide = {name: array.astype(exact_type(name, array)) for name, array in feeds.items()}
    truth = dict(zip(names(exact.get_outputs()), exact.run(None, wide)))
    bound = memory(made, feeds)
    pairs = {name: name.removeprefix("new_") for name in names(made.model.graph.outputs)}
    run_in_place(session(made.model), bound, pairs)
    for name, tensor in wanted.items():
        ours = np.abs(bound[name.removeprefix("new_")] - truth[name])
        plain_error = np.abs(tensor - truth[name]).max()
        assert ours.max() <= 2 * plain_error + 3e-7, name


@pytest.mark.parametrize(
    ("optimizer", "before", "after"),
    [(AdamW(), 11, 7), (SGD(), 2, 1), (SGD(momentum=0.9), 4, 2), (Lion(weight_decay=0.1), 8, 5)],
    ids=repr,
)
def test_pairs_save_passes_over_memory(optimizer: Optimizer, before: int, after: int) -> None:
    plain = flat_update(optimizer)
    assert (passes(plain), passes(paired(plain).model)) == (before, after)


def test_other_types_are_not_converted() -> None:
    plain = flat_update(AdamW(), "float64")
    made = paired(plain)
    assert made.model is plain and made.blocks == ()


def test_a_sum_that_would_read_a_new_value_is_not_replaced() -> None:
    op = OpBuilder(opset=21)
    p, g = op.input("parameters", "float32", ("n",)), op.input("gradients", "float32", ("n",))
    half = op.Mul(p, 0.5)
    model = op.model(new_parameters=op.Tanh(half), other=op.Add(op.Mul(p, 0.25), g))
    assert paired(model).blocks == ()  # nothing makes `other` run before the new parameters


def test_a_vector_has_one_neighbour_on_each_side() -> None:
    op = OpBuilder(opset=21)
    a, b, c, d = (op.input(name, "float32", ("n",)) for name in "abcd")
    sums = [op.Add(op.Mul(a, 0.5), other) for other in (b, c, d)]
    made = paired(op.model(x=sums[0], y=sums[1], z=sums[2]))
    assert made.blocks == (("c", "a", "b"),)
    kinds = [node.op_type for node in made.model.graph]
    assert kinds.count("MatMul") == 2 and kinds.count("Add") == 1


def test_rows_never_form_a_circle() -> None:
    op = OpBuilder(opset=21)
    a, b, c = (op.input(name, "float32", ("n",)) for name in "abc")
    sums = [op.Add(op.Mul(x, 0.5), y) for x, y in ((a, b), (b, c), (c, a))]
    made = paired(op.model(x=sums[0], y=sums[1], z=sums[2]))
    assert made.blocks == (("a", "b", "c"),)
