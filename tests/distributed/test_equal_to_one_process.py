"""R13, R15: what many processes train equals what one process trains."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from onward import OpBuilder, TrainingSession, losses, optimizers
from onward.distributed import open_distributed
from onward.distributed.parallel import Parallel
from tests.distributed.group_of_processes import run_processes
from tests.distributed.training_cases import (
    WIDTH,
    batches,
    classifier,
    open_session,
    part,
    trained,
)

pytestmark = pytest.mark.integration

ROWS = 12
CASES: dict[str, dict[str, Any]] = {
    "equal batches": {"sizes": (6, 6)},
    "unequal batches": {"sizes": (9, 3)},
    "an empty batch": {"sizes": (12, 0)},
    "ignored labels": {"sizes": (6, 6), "ignored": -1},
    "accumulation": {"sizes": (6, 6), "options": {"accumulate": 2}},
    "clipping": {"sizes": (6, 6), "options": {"clip_norm": 0.05}},
    "loss scale": {"sizes": (5, 7), "options": {"loss_scale": 8.0}},
    "a loss that is a sum": {"sizes": (9, 3), "reduction": "sum"},
    "a loop in float64": {"sizes": (9, 3), "model": "looped", "optimizer": "sgd"},
    "separate tensors": {"sizes": (6, 6), "optimizer": "lamb"},
    "not a number": {"sizes": (6, 6), "spoiled": 2},
    "a batch without rows": {"sizes": (6, 6), "emptied": 3},
    "a batch without labels": {"sizes": (6, 6), "ignored": -1, "unlabelled": 3},
}


TORCH = [("TorchExecutionProvider", {"device": "cpu"})]


def feeds_of(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    feeds = batches(6, ROWS, ignored=case.get("ignored"))
    if case.get("model") == "looped":
        feeds = [{**each, "x": each["x"].astype(np.float64)} for each in feeds]
    if "spoiled" in case:
        feeds[case["spoiled"]]["x"][-1] = np.nan  # in the part of the last process
    if "emptied" in case:
        feeds[case["emptied"]] = part(feeds[case["emptied"]], 0, (0,))
    if "unlabelled" in case:
        feeds[case["unlabelled"]]["labels"][:] = case["ignored"]
    return feeds


def train_part(rank: int, name: str, parallel: Parallel, providers: Any) -> Any:
    case = {**CASES[name], "providers": providers}
    with open_session(case, parallel=parallel) as session:
        return trained(session, [part(each, rank, case["sizes"]) for each in feeds_of(case)])


def train_all(
    rank: int, names: Sequence[str], parallel: Parallel, providers: Any, in_segments: bool
) -> list[Any]:
    if in_segments:  # as between machines
        open_distributed._needs_segments = lambda *_: True
    return [train_part(rank, name, parallel, providers) for name in names]


@pytest.mark.parametrize(
    ("providers", "in_segments"),
    [(None, True), (None, False), (TORCH, True)],
    ids=["segments", "one graph", "torch"],
)
def test_data_parallel_equals_one_process(providers: Any, in_segments: bool) -> None:
    parallel = Parallel(data=2, bucket=300)
    found = run_processes(train_all, 2, list(CASES), parallel, providers, in_segments)
    for i, (name, case) in enumerate(CASES.items()):
        with open_session({**case, "providers": providers}) as session:
            expected_losses, expected = trained(session, feeds_of(case))
        for rank in range(2):
            losses, weights = found[rank][i]
            np.testing.assert_allclose(losses, expected_losses, rtol=1e-5, err_msg=name)
            for key, tensor in expected.items():
                np.testing.assert_allclose(weights[key], tensor, atol=1e-6, err_msg=f"{name} {key}")
                np.testing.assert_array_equal(weights[key], found[0][i][1][key])


def computed_targets(kind: str) -> tuple[Any, Any]:
    """A model that computes the target of its loss, or the loss itself."""
    op, rng = OpBuilder(18), np.random.default_rng(3)
    x, labels = op.input("x", "float32", ("batch", WIDTH)), op.input("labels", "int64", ("batch",))
    w = op.initializer("w", (rng.normal(size=(WIDTH, WIDTH)) * 0.4).astype(np.float32))
    y = op.Tanh(op.MatMul(x, w))
    if kind == "a sum":
        return op.model(y=y, target=op.Mul(x, np.float32(0.5))), losses.MSE(reduction="sum")
    if kind == "a mean":
        return op.model(y=y, target=op.Mul(x, np.float32(0.5))), losses.MSE(output="y")
    if kind == "labels":
        loss = losses.CrossEntropy(output="y", target="moved", ignore_index=-1)
        return op.model(y=y, moved=op.Identity(labels)), loss
    error = op.ReduceMean(op.Mul(op.Sub(y, x), op.Sub(y, x)), keepdims=0)
    return op.model(error=error), losses.Output("error")


def train_after_discarding(rank: int | None, replace: bool) -> Any:
    """Train after gradients of a loss that is not finite were discarded, or replaced."""
    found = []
    for providers in (None, TORCH):
        feeds = batches(5, ROWS)
        feeds[0]["x"][-1] = np.inf  # in the part of the last process
        if rank is not None:
            feeds = [part(each, rank, (6, 6)) for each in feeds]
        case = {"providers": providers, "options": {"accumulate": 2}, "optimizer": "sgd"}
        parallel = None if rank is None else Parallel(data=2)
        with open_session(case, parallel=parallel) as session:
            session.step(feeds[0])
            if replace:
                session.set_gradients({n: np.ones_like(w) for n, w in session.parameters.items()})
            else:
                session.clear_gradients()
                session.step(feeds[1])
            session.step(feeds[2])
            weights = {name: np.array(tensor) for name, tensor in session.parameters.items()}
            found.append((session.steps, session.skipped_steps, weights))
    return found


@pytest.mark.parametrize("replace", [False, True])
def test_an_infinite_loss_of_discarded_gradients_skips_no_update(replace: bool) -> None:
    expected = train_after_discarding(None, replace)
    assert [(steps, skipped) for steps, skipped, _ in expected] == [(1, 0)] * 2
    for found in run_processes(train_after_discarding, 2, replace):
        for (steps, skipped, weights), (*_, all_weights) in zip(found, expected, strict=True):
            assert (steps, skipped) == (1, 0)
            for key, tensor in all_weights.items():
                np.testing.assert_allclose(weights[key], tensor, atol=1e-6, err_msg=key)


KINDS = ("a sum", "a mean", "labels", "the loss")


def train_computed(rank: int | None, sizes: Sequence[int], in_segments: bool) -> list[Any]:
    if in_segments:
        open_distributed._needs_segments = lambda *_: True
    found = []
    for kind in KINDS:
        feeds = batches(4, ROWS, ignored=-1)
        if rank is not None:
            feeds = [part(each, rank, sizes) for each in feeds]
        model, loss = computed_targets(kind)
        parallel = None if rank is None else Parallel(data=2, bucket=300)
        with TrainingSession(model, loss, optimizers.SGD(lr=0.05), parallel=parallel) as session:
            found.append(trained(session, feeds))
    return found


@pytest.mark.parametrize("in_segments", [True, False])
@pytest.mark.parametrize("sizes", [(9, 3), (12, 0)])
def test_computed_targets_are_weighted_by_rows(sizes: tuple[int, int], in_segments: bool) -> None:
    expected = train_computed(None, sizes, in_segments=False)
    for found in run_processes(train_computed, 2, sizes, in_segments):
        for kind, (ours, weights), (theirs, all_weights) in zip(
            KINDS, found, expected, strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, err_msg=kind)
            np.testing.assert_allclose(weights["w"], all_weights["w"], atol=1e-6, err_msg=kind)


# biases before BatchNormalization have a gradient of 0, whose rounding Adam would enlarge
LOCAL = {"model": {"dropout": 0.5, "batch_norm": True}, "optimizer": "sgd"}


def train_with_own_statistics(rank: int) -> Any:
    found = []
    for providers in (None, TORCH):
        with open_session({**LOCAL, "providers": providers}, parallel=Parallel(bucket=300)) as one:
            found.append(trained(one, [part(each, rank, (6, 6)) for each in batches(6, ROWS)]))
    return found


def test_dropout_and_batch_norm_equal_those_of_micro_batches() -> None:
    found = run_processes(train_with_own_statistics, 2)
    for i, providers in enumerate((None, TORCH)):
        case = {**LOCAL, "providers": providers}
        with open_session(case, options={"accumulate": 2}) as session:
            micro = [part(each, rank, (6, 6)) for each in batches(6, ROWS) for rank in range(2)]
            trained(session, micro)
            expected = {name: np.array(tensor) for name, tensor in session.parameters.items()}
        for rank in range(2):
            for key, tensor in expected.items():
                np.testing.assert_allclose(found[rank][i][1][key], tensor, atol=1e-6, err_msg=key)


def open_with_unequal_losses(rank: int) -> list[str]:
    handler, messages = logging.Handler(), []
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("onward").addHandler(handler)
    parts = [losses.CrossEntropy(target="a", ignore_index=0), losses.CrossEntropy(target="b")]
    total = losses.Total({"a": parts[0], "b": parts[1]})
    TrainingSession(classifier(), total, optimizers.SGD(), parallel=Parallel()).close()
    return messages


def test_losses_that_count_labels_differently_are_warned_of() -> None:
    [messages] = run_processes(open_with_unequal_losses, 1)
    assert len(messages) == 1 and "Total: its losses count labels in different ways" in messages[0]
