"""Tables whose gradient is a sum of rows have an update of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward import losses, optimizers
from onward.optimizers import EMA
from onward.programs import row_gradients
from onward.programs.build import build_program
from onward.programs.program import Program

ROWS, SIZE = 40, 4


def bag_of_words(*, tied: bool = False) -> ir.Model:
    """The mean of embeddings and a linear layer; `tied`: which is the table again."""
    rng = np.random.default_rng(0)
    op = onward.OpBuilder()
    ids = op.input("ids", "int64", ("batch", 5))
    table = op.initializer("table", rng.normal(0, 1, (ROWS, SIZE)).astype(np.float32))
    mean = op.ReduceMean(op.Gather(table, ids), np.array([1]), keepdims=0)
    if tied:
        return op.model(y=op.MatMul(mean, op.Transpose(table, perm=[1, 0])))
    head = op.initializer("head", rng.normal(0, 1, (SIZE, 3)).astype(np.float32))
    return op.model(y=op.MatMul(mean, head))


def program(optimizer: Any, *, tied: bool = False, **options: Any) -> Program:
    return build_program(bag_of_words(tied=tied), losses.CrossEntropy(), optimizer, options)


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_gradients, "SMALLEST_TABLE", ROWS * SIZE)


@pytest.mark.parametrize("optimizer", [optimizers.SGD(lr=0.1), optimizers.Adagrad(lr=0.1)])
@pytest.mark.parametrize("options", [{}, {"clip_norm": 1.0}, {"precision": "bf16"}])
def test_a_table_has_an_update_of_its_own(optimizer: Any, options: dict[str, Any]) -> None:
    layouts = program(optimizer, **options).layout.updates
    assert [(each.parameters, each.sparse) for each in layouts] == [
        (("head",), False),
        (("table",), True),
    ]


@pytest.mark.parametrize(
    "optimizer",
    [
        optimizers.AdamW(),
        optimizers.SGD(lr=0.1, momentum=0.9),
        optimizers.SGD(lr=0.1, weight_decay=0.1),
        optimizers.Adagrad(weight_decay=0.1),
    ],
)
def test_optimizers_that_change_every_row_update_all(optimizer: Any) -> None:
    [layout] = program(optimizer).layout.updates
    assert not layout.sparse and {*layout.parameters} == {"table", "head"}


def test_averages_change_every_row() -> None:
    [layout] = program(optimizers.SGD(lr=0.1), average=EMA(decay=0.9)).layout.updates
    assert not layout.sparse


def test_a_tied_table_has_a_gradient_of_all_rows() -> None:
    [layout] = program(optimizers.SGD(lr=0.1), tied=True).layout.updates
    assert not layout.sparse and layout.parameters == ("table",)


def test_small_tables_are_updated_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_gradients, "SMALLEST_TABLE", ROWS * SIZE + 1)
    [layout] = program(optimizers.SGD(lr=0.1)).layout.updates
    assert not layout.sparse
