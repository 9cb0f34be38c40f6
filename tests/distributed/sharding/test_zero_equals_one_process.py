"""R13, R15: what processes that hold parts of a model train equals what one process trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from onward.distributed.parallel import Parallel
from onward.optimizers.ema import EMA
from onward.sessions.training.session import TrainingSession
from tests.distributed.group_of_processes import run_processes
from tests.distributed.training_cases import batches, open_session, part

pytestmark = pytest.mark.integration

ROWS, BATCHES = 12, 4
TORCH = [("TorchExecutionProvider", {"device": "cpu"})]
EQUAL = {2: (6, 6), 4: (3, 3, 3, 3)}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "unequal batches": {"sizes": {2: (9, 3), 4: (5, 4, 2, 1)}, "optimizer": "sgd"},
    "an empty batch": {"sizes": {2: (12, 0), 4: (6, 0, 6, 0)}},
    "accumulation": {
        "sizes": {2: (12, 0), 4: (0, 5, 6, 1)},
        "options": {"accumulate": 2, "average": EMA(decay=0.9)},
    },
    "clipping": {"options": {"clip_norm": 0.05}},
    "whole tensors": {"optimizer": "lamb", "options": {"clip_norm": 0.05}},
    "whole tensors, accumulation": {"optimizer": "adafactor", "options": {"accumulate": 2}},
    "batch norm": {"model": {"batch_norm": True}, "micro": True, "optimizer": "sgd"},
    "dropout": {"model": {"dropout": 0.5}, "micro": True},
    "not a number": {"spoiled": 1},
}
LAYOUTS = {
    "ZeRO 1": Parallel(shard=2, zero=1, bucket=300),
    "ZeRO 2": Parallel(shard=2, zero=2, bucket=300),
    "ZeRO 3": Parallel(shard=2, zero=3, bucket=300),
    "hybrid": Parallel(data=2, shard=2, zero=3, bucket=300),
}


def feeds_of(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    feeds = batches(BATCHES, ROWS)
    if "spoiled" in case:
        feeds[case["spoiled"]]["x"][-1] = np.nan  # in the part of the last process
    return feeds


def trained(session: TrainingSession, feeds: Sequence[Any]) -> dict[str, Any]:
    """Losses, and everything that a checkpoint has, after these batches."""
    losses = [float(session.step(each)["loss"]) for each in feeds]
    return {"losses": losses, **state_of(session)}


def state_of(session: TrainingSession) -> dict[str, Any]:
    return {
        "tensors": {name: np.array(tensor) for name, tensor in session.checkpoint()[0].items()},
        "gradients": session.get_gradients(),
        "norm": session.gradient_norm,
        "counts": (session.steps, session.skipped_steps),
    }


def train_cases(rank: int, names: Sequence[str], parallel: Parallel, providers: Any) -> list[Any]:
    size = (parallel.data or 1) * parallel.shard
    found = []
    for name in names:
        case = {**CASES[name], "providers": providers}
        sizes = case.get("sizes", EQUAL)[size]
        with open_session(case, parallel=parallel) as session:
            found.append(trained(session, [part(each, rank, sizes) for each in feeds_of(case)]))
    return found


def expected_of(name: str, size: int, providers: Any) -> dict[str, Any]:
    """What one process trains; `micro`: the parts of processes one after the other."""
    case = {**CASES[name], "providers": providers}
    feeds, options = feeds_of(case), {}
    if case.get("micro"):
        sizes = case.get("sizes", EQUAL)[size]
        feeds = [part(each, rank, sizes) for each in feeds for rank in range(size)]
        options["accumulate"] = size
    with open_session(case, options=options) as session:
        expected = trained(session, feeds)
    if case.get("micro"):  # after the update, they are the sum of the parts
        expected["gradients"] = {n: g / size for n, g in expected["gradients"].items()}
    return expected


def check(found: Sequence[dict[str, Any]], expected: dict[str, Any], name: str) -> None:
    statistics = [n for n in expected["tensors"] if n.startswith(("mean", "var"))]
    for each in found:
        assert each["counts"] == expected["counts"], name
        if not CASES[name].get("micro"):
            np.testing.assert_allclose(each["losses"], expected["losses"], 1e-5, err_msg=name)
        np.testing.assert_allclose(each["norm"], expected["norm"], 1e-5, err_msg=name)
        for kind in ("tensors", "gradients"):
            assert each[kind].keys() == expected[kind].keys()
            for key in each[kind].keys() - set(statistics):
                where, got = f"{name}: {kind} {key}", each[kind][key]
                np.testing.assert_allclose(got, expected[kind][key], 1e-5, 1e-6, err_msg=where)
                np.testing.assert_array_equal(got, found[0][kind][key], err_msg=where)
        for key in statistics:
            np.testing.assert_array_equal(each["tensors"][key], found[0]["tensors"][key])


# each takes more than ten seconds: `make test` checks the one with most parts
@pytest.mark.parametrize(
    "layout",
    [name if name == "ZeRO 3" else pytest.param(name, marks=pytest.mark.slow) for name in LAYOUTS],
)
def test_zero_equals_one_process(layout: str) -> None:
    parallel = LAYOUTS[layout]
    size = (parallel.data or 1) * parallel.shard
    found = run_processes(train_cases, size, list(CASES), parallel, None, timeout=900)
    for i, name in enumerate(CASES):
        check([each[i] for each in found], expected_of(name, size, None), name)


IN_TORCH = ("accumulation", "clipping", "whole tensors, accumulation", "batch norm")


def train_in_torch(rank: int) -> list[Any]:
    settings = [(LAYOUTS[layout], name) for layout in list(LAYOUTS)[:3] for name in IN_TORCH]
    return [train_cases(rank, [name], parallel, TORCH)[0] for parallel, name in settings]


@pytest.mark.slow
def test_zero_in_torch_equals_one_process() -> None:
    found = run_processes(train_in_torch, 2, timeout=900)
    for j, name in enumerate(IN_TORCH):
        expected = expected_of(name, 2, TORCH)
        for i in range(3):
            check([each[i * len(IN_TORCH) + j] for each in found], expected, name)
