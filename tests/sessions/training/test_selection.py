"""Which tensors are parameters."""

from __future__ import annotations

import numpy as np
import pytest

import onward
from onward.errors import OptionError
from onward.losses import MSE
from onward.optimizers import SGD
from onward.sessions.training.options import TrainingOptions
from onward.sessions.training.session import TrainingSession


def model() -> object:
    """y = (x w) * 0.5 + table[ids]; `unused` leads nowhere."""
    op = onward.OpBuilder()
    x, ids = op.input("x", "float32", ("n", 3)), op.input("ids", "int64", ("n",))
    w = op.initializer("w", np.ones((3, 2), np.float32))
    table = op.initializer("table", np.ones((5, 2), np.float32))
    half = op.initializer("half", np.float32(0.5))
    op.initializer("unused", np.ones((7, 7), np.float32))
    return op.model(y=op.Add(op.Mul(op.MatMul(x, w), half), op.Gather(table, ids)))


def session(**options: object) -> TrainingSession:
    return TrainingSession(model(), MSE(), SGD(lr=0.1), TrainingOptions(**options))  # type: ignore[arg-type]


def test_weights_that_the_loss_depends_on_are_trained_but_no_single_numbers() -> None:
    assert list(session().parameters) == ["w", "table"]


def test_what_is_asked_for_is_trained() -> None:
    assert list(session(trainable=["w", "half"]).parameters) == ["w", "half"]
    assert list(session(trainable=["*"], frozen=["t*", "unused"]).parameters) == ["w", "half"]


def test_a_parameter_without_influence_is_an_error_when_it_is_asked_for() -> None:
    with pytest.raises(OptionError, match="trainable: the loss does not depend on 'unused'"):
        session(trainable=["unused"])


def test_rows_of_a_table_that_were_not_read_stay() -> None:
    one = session()
    feeds = {
        "x": np.ones((2, 3), np.float32),
        "ids": np.array([1, 3]),
        "target": np.zeros((2, 2), np.float32),
    }
    one.step(feeds)
    changed = (one.parameters["table"] != 1).any(1)
    assert changed.tolist() == [False, True, False, True, False]
