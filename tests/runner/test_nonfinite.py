"""The first node of a step whose output is not finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onward import losses, optimizers
from onward.graph.builder import OpBuilder
from onward.runner.nonfinite import NonFinite, find_nonfinite
from onward.sessions.training.session import TrainingSession

ROWS, SIZE = 4, 3
PROVIDERS = ["CPUExecutionProvider", "TorchExecutionProvider"]


def session_of(
    middle: Callable[[OpBuilder, Any], Any], provider: str = PROVIDERS[0], **options: Any
) -> TrainingSession:
    """A session over y = middle(x) w, trained with the cross entropy."""
    op = OpBuilder()
    x = op.input("x", "float32", ("rows", SIZE))
    w = op.initializer("w", np.array([[0.5, -0.5]] * SIZE, np.float32))
    model = op.model(y=op.MatMul(middle(op, x), w))
    return TrainingSession(
        model, losses.CrossEntropy(), optimizers.SGD(lr=0.1), options or None, providers=[provider]
    )


def feeds_of(session: TrainingSession, **changes: float) -> dict[str, Any]:
    x = np.arange(1, ROWS * SIZE + 1, dtype=np.float32).reshape(ROWS, SIZE)
    for place, number in changes.items():
        x.flat[int(place[1:])] = number
    label = next(name for name in session.input_names if name != "x")
    return {"x": x, label: np.zeros(ROWS, np.int64)}


def find(session: TrainingSession, feeds: dict[str, Any]) -> NonFinite:
    before = np.array(session.parameters["w"])
    assert not np.isfinite(session.step(feeds)["loss"]) or session.skipped_steps
    found = find_nonfinite(session, feeds)
    assert found is not None
    np.testing.assert_array_equal(session.parameters["w"], before)
    return found


def test_node_of_the_forward_pass_is_named() -> None:
    session = session_of(lambda op, x: op.Log(op.Relu(x)))
    found = find(session, feeds_of(session, _0=-1.0, _5=0.0))
    assert (found.kind, found.name) == ("Log", "node_Log_1")
    assert (found.values.inf, found.values.nan, found.values.size) == (2, 0, 12)
    assert str(found) == (
        "Log 'node_Log_1' (output 'Log_2') made 2 inf of 12 numbers; "
        "its input 'Relu_1' ranges from 0 to 12"
    )


def test_node_of_the_backward_pass_is_named() -> None:
    def root(op: OpBuilder, x: Any) -> Any:
        return op.Sqrt(op.Mul(x, op.initializer("v", np.ones(SIZE, np.float32))))

    session = session_of(root)
    feeds = feeds_of(session, _3=0.0)
    assert np.isfinite(session.step(feeds)["loss"]) and session.skipped_steps == 1
    found = find_nonfinite(session, feeds)
    assert found is not None and found.kind not in ("Sqrt", "Mul")
    assert found.values.name.startswith("gradient/")
    assert not any(each.nan or each.inf for each in found.inputs)


@pytest.mark.integration
@pytest.mark.parametrize("provider", PROVIDERS)
def test_random_numbers_are_those_of_the_step(provider: str) -> None:
    session = session_of(lambda op, x: op.Log(op.Dropout(x, np.float32(0.5), True)), provider)
    for skipped in range(3):  # a skipped step may draw other numbers than the one before
        feeds = feeds_of(session)
        result = session.step(feeds)["y"]
        assert session.skipped_steps == skipped + 1
        found = find_nonfinite(session, feeds)
        assert found is not None and found.kind == "Log"
        rows = np.isinf(np.asarray(result)).any(axis=1).sum()
        assert rows <= found.values.inf <= rows * SIZE


def test_feed_is_named_with_its_rows() -> None:
    session = session_of(lambda op, x: op.Relu(x))
    found = find(session, feeds_of(session, _1=np.nan, _2=np.inf, _9=np.nan))
    assert str(found) == "feed 'x' has 2 nan and 1 inf of 12 numbers, in rows 0, 3"
    assert not found.is_node


def test_parameter_is_named() -> None:
    session = session_of(lambda op, x: op.Relu(x))
    session.set_parameters({"w": np.full((SIZE, 2), np.inf, np.float32)})
    found = find_nonfinite(session, feeds_of(session))
    assert str(found) == "parameter 'w' has 6 inf of 6 numbers"


def test_infinity_of_a_mask_is_no_fault_but_a_row_of_them_is() -> None:
    def masked(op: OpBuilder, x: Any) -> Any:
        kept = op.Where(op.Greater(x, np.float32(2)), x, np.float32(-np.inf))
        return op.Softmax(kept, axis=1)

    session = session_of(masked)
    assert np.isfinite(session.step(feeds_of(session))["loss"])
    assert find_nonfinite(session, feeds_of(session)) is None
    found = find(session, feeds_of(session, _2=1.0))
    assert (found.kind, found.values.nan) == ("Softmax", 3)
    assert found.inputs[0].low == -np.inf


def test_finite_step_has_no_fault() -> None:
    session = session_of(lambda op, x: op.Relu(x))
    session.step(feeds_of(session))
    assert find_nonfinite(session, feeds_of(session)) is None


def test_saved_program_names_nodes_too(tmp_path: Any) -> None:
    program = session_of(lambda op, x: op.Log(op.Relu(x))).program
    session = TrainingSession(program.save(tmp_path / "program"))
    found = find(session, feeds_of(session, _0=-1.0))
    assert (found.kind, found.values.inf) == ("Log", 1)
