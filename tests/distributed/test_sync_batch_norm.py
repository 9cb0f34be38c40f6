"""BatchNormalization over the batch of all processes equals that of one process with the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward import losses, optimizers
from onward.distributed.parallel import Parallel
from onward.graph.builder import OpBuilder
from onward.providers.options import SessionOptions
from onward.sessions.training.session import TrainingSession
from tests.distributed.group_of_processes import run_processes
from tests.distributed.training_cases import CLASSES, part

pytestmark = pytest.mark.integration

ROWS, CHANNELS = 12, 3
TORCH = [("TorchExecutionProvider", {"device": "cpu"})]
SYNC = Parallel(sync_batch_norm=True, bucket=200)
CASES: dict[str, dict[str, Any]] = {
    "equal batches": {"sizes": (6, 6)},
    "unequal batches": {"sizes": (11, 1), "sides": 3},
    "an empty batch": {"sizes": (12, 0)},
    "an empty batch first": {"sizes": (0, 12), "sides": 0, "options": {"accumulate": 2}},
    "ignored labels": {"sizes": (5, 7), "sides": 1, "ignored": -1},
    "unbiased": {"sizes": (8, 4), "shift": 30.0, "options": {"unbiased_variance": True}},
    "frozen": {"sizes": (8, 4), "options": {"frozen_batch_norms": ["norm1*"]}},
    "no labels": {"sizes": (12, 0), "sides": 0, "ignored": -1, "unlabelled": 1},
}


def norms(sides: int = 2, dtype: Any = np.float32) -> ir.Model:
    """Two convolutions (products for sides=0), each with BatchNormalization."""
    op, rng = OpBuilder(18), np.random.default_rng(3)

    def weights(name: str, *shape: int) -> ir.Value:
        return op.initializer(name, (rng.normal(size=shape) * 0.4).astype(dtype))

    x = h = op.input("x", np.dtype(dtype).name, ("batch", CHANNELS, *[4] * sides))
    for i in range(2):
        w = weights(f"w{i}", CHANNELS, CHANNELS, *[3] * sides)
        h = op.Conv(h, w, pads=[1] * 2 * sides) if sides else op.MatMul(h, w)
        moments = {"mean": np.zeros(CHANNELS, dtype), "var": np.ones(CHANNELS, dtype)}
        names = [op.initializer(f"{name}{i}", array) for name, array in moments.items()]
        given = (weights(f"s{i}", CHANNELS), weights(f"t{i}", CHANNELS), *names)
        h = op.BatchNormalization(h, *given, momentum=0.8)
        assert h.producer() is not None
        h.name = f"norm{i}"
        h = op.Add(op.Tanh(h), x)
    flat = op.Flatten(h)
    return op.model(scores=op.MatMul(flat, weights("last", CHANNELS * 4**sides, CLASSES)))


def feeds(case: dict[str, Any], count: int = 3) -> list[dict[str, Any]]:
    rng = np.random.default_rng(5)
    shape = (ROWS, CHANNELS, *[4] * case.get("sides", 2))
    found = []
    for i in range(count):
        labels = rng.integers(0, CLASSES, ROWS)
        if i == case.get("unlabelled"):
            labels[...] = case["ignored"]
        elif "ignored" in case:
            labels[rng.random(ROWS) < 0.4] = case["ignored"]
        x = rng.normal(size=shape) * np.linspace(0.5, 3, ROWS).reshape(-1, *[1] * (len(shape) - 1))
        x = (x + case.get("shift", 0.0)).astype(case.get("dtype", np.float32))
        found.append({"x": x, "labels": labels})
    return found


def open_session(case: dict[str, Any], providers: Any, **more: Any) -> TrainingSession:
    model = norms(case.get("sides", 2), case.get("dtype", np.float32))
    return TrainingSession(
        model,
        losses.CrossEntropy(output="scores", ignore_index=case.get("ignored")),
        optimizers.SGD(lr=0.02, momentum=0.5),
        case.get("options", {}),
        sess_options=SessionOptions(intra_op_num_threads=1, inter_op_num_threads=1),
        providers=providers,
        **more,
    )


def trained(session: TrainingSession, given: list[dict[str, Any]]) -> Any:
    found = [float(session.step(each)["loss"]) for each in given]
    tensors = {**session.parameters, **session.statistics}
    return found, {name: np.array(tensor) for name, tensor in tensors.items()}


def train_all(rank: int, providers: Any) -> list[Any]:
    found = []
    for case in CASES.values():
        with open_session(case, providers, parallel=SYNC) as session:
            found.append(trained(session, [part(e, rank, case["sizes"]) for e in feeds(case)]))
    return found


@pytest.mark.parametrize("providers", [None, TORCH], ids=["onnxruntime", "torch"])
def test_shared_statistics_equal_those_of_one_process(providers: Any) -> None:
    found = run_processes(train_all, 2, providers)
    for i, (name, case) in enumerate(CASES.items()):
        with open_session(case, providers) as session:
            expected_losses, expected = trained(session, feeds(case))
        for rank in range(2):
            found_losses, tensors = found[rank][i]
            np.testing.assert_allclose(found_losses, expected_losses, rtol=1e-6, err_msg=name)
            for key, tensor in expected.items():
                np.testing.assert_allclose(
                    tensors[key], tensor, rtol=1e-6, atol=1e-6, err_msg=f"{name} {key}"
                )
                np.testing.assert_array_equal(tensors[key], found[0][i][1][key], err_msg=name)
