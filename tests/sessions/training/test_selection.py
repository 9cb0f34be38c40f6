"""Which tensors are parameters."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
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


def normal() -> ir.Model:
    """Two BatchNormalizations, encoder.0 and encoder.1, and a Dropout, encoder.drop."""
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("n", 2))
    for i in range(2):
        kinds = {"scale": 1.0, "bias": 0.0, "mean": 0.0, "var": 1.0}
        tensors = [op.initializer(f"{n}{i}", np.full(2, a, np.float32)) for n, a in kinds.items()]
        x = op.BatchNormalization(x, *tensors)
        x.name = f"encoder.{i}"
    x = op.Dropout(x, 0.5)
    x.name = "encoder.drop"
    return op.model(y=op.Identity(x))


@pytest.mark.parametrize(
    ("names", "moved"),
    [
        ([], ["mean0", "var0", "mean1", "var1"]),
        (["encoder.0"], ["mean1", "var1"]),
        (["*.1"], ["mean0", "var0"]),
        (["encoder.[0-9]"], []),
    ],
)
def test_batch_norms_are_frozen_by_name_or_pattern(names: list[str], moved: list[str]) -> None:
    options = TrainingOptions(frozen_batch_norms=names)
    assert list(TrainingSession(normal(), MSE(), SGD(lr=0.1), options).statistics) == moved


def test_a_pattern_of_batch_norms_leaves_dropout_alone() -> None:
    options = TrainingOptions(frozen_batch_norms=["*"])
    one = TrainingSession(normal(), MSE(), SGD(lr=0.1), options)
    feeds = {"x": np.ones((64, 2), np.float32), "target": np.zeros((64, 2), np.float32)}
    assert not one.statistics and (one.step(feeds)["y"] == 0).any()


@pytest.mark.parametrize("name", ["encoder.drop", "encoder.7*"])
def test_what_is_no_batch_norm_is_refused_with_near_names(name: str) -> None:
    message = (
        rf"frozen_batch_norms: {re.escape(repr(name))} is no BatchNormalization of the model\n"
        r"patterns are written like 'encoder\.\*'; (did you mean|there are) '.*encoder\.[01]'"
    )
    with pytest.raises(OptionError, match=message):
        options = TrainingOptions(frozen_batch_norms=[name])
        TrainingSession(normal(), MSE(), SGD(lr=0.1), options)
