"""Opening a session on many processes: one engine, one program, one Parallel, and one error."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onward import TrainingSession, losses, optimizers
from onward.distributed import Parallel
from onward.errors import DistributedError, OnwardError
from onward.graph.builder import OpBuilder
from tests.distributed.group_of_processes import run_processes
from tests.distributed.training_cases import batches, classifier, open_session, part

pytestmark = pytest.mark.integration

LAYOUTS = [
    Parallel(bucket=300),
    Parallel(shard=2, zero=3),
    Parallel(sync_batch_norm=True),
]
NORMED = {"model": {"batch_norm": True}, "optimizer": "sgd"}


def train(rank: int, folder: str, providers: Any) -> list[Any]:
    handler, warned = logging.Handler(logging.WARNING), []
    handler.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("onward").addHandler(handler)
    given: Any = {"seconds": 0.01, "folder": folder, "providers": ["cpu", "torch"]}
    found = []
    for parallel in LAYOUTS:
        case = {**(NORMED if parallel.sync_batch_norm else {}), "providers": providers}
        if providers == "auto":
            case["providers"] = [("auto", given)]
        feeds = batches(3, 12)
        with open_session(case, parallel=parallel) as session:
            session.step(part(feeds[0], rank, (12, 0)))  # not every process has rows
            assert session.tuning_result is None
            for each in feeds[1:]:
                session.step(part(each, rank, (6, 6)))
            rows = session.tuning_result and session.tuning_result.rows
            weights = {name: np.array(tensor) for name, tensor in session.parameters.items()}
            found.append((rows, session.get_providers(), weights))
    return [found, warned]


def test_auto_chooses_the_same_engine_on_all_processes(tmp_path: Path) -> None:
    folder = str(tmp_path / "kept")
    found = run_processes(train, 2, folder, "auto")
    expected = run_processes(train, 2, folder, None)
    (first, warned), (second, others_warned) = found
    for i, (rows, providers, weights) in enumerate(first):
        assert rows and not any(row.error for row in rows)
        assert providers == [rows[0].candidate.provider]
        assert second[i][:2] == (rows, providers)
        for name, tensor in weights.items():
            np.testing.assert_allclose(tensor, expected[0][0][i][2][name], atol=1e-5)
    assert sum("measuring 2 engines" in text for text in warned) == 2 and not others_warned
    again = run_processes(train, 2, folder, "auto")
    assert not any("measuring" in text for text in again[0][1])
    assert [each[0] for each in again[1][0]] == [each[0] for each in first]


def small_model(activation: str, axis: int) -> Any:
    op = OpBuilder(18)
    x = op.input("x", "float32", ("batch", 4))
    w = op.initializer("w", np.ones((4, 4), np.float32))
    h = op.Softmax(op.MatMul(x, w), axis=axis)
    return op.model(y=getattr(op, activation)(h))


def open_differently(rank: int) -> list[str]:
    found = []
    loss, optimizer = losses.MSE(), optimizers.SGD()
    for model, own_loss in (
        (small_model("Relu" if rank else "Tanh", 1), loss),
        (small_model("Tanh", rank), loss),
        (small_model("Tanh", 1), losses.L1() if rank else loss),
    ):
        with pytest.raises(DistributedError) as caught:
            TrainingSession(model, own_loss, optimizer, parallel=Parallel())
        found.append(str(caught.value))
    for own in (Parallel(shard=2, zero=2 + rank), Parallel(shard=1 + rank)):
        with pytest.raises(DistributedError) as caught:
            TrainingSession(small_model("Tanh", 1), loss, optimizer, parallel=own)
        found.append(str(caught.value))
    TrainingSession(  # what each process may choose for itself
        small_model("Tanh", 1), loss, optimizer, parallel=Parallel(timeout=60.0 + rank)
    ).close()
    return found


def test_processes_with_another_model_or_layout_are_refused() -> None:
    for rank, errors in enumerate(run_processes(open_differently, 2, timeout=100)):
        for text in errors[:3]:
            assert text.startswith(f"process {rank} and process {1 - rank} train different models")
        own, other = f"zero={2 + rank}" if rank < 1 else "shard=2", "process"
        assert own in errors[3] and other in errors[3]
        assert errors[4].startswith(f"process {rank} has Parallel(")
        assert errors[4].endswith("give every process the same Parallel")


def open_where_one_fails(rank: int) -> str:
    given = {"device": "no such device"} if rank else {"device": "cpu"}
    with pytest.raises(OnwardError) as caught:
        open_session({"providers": [("torch", given)]}, parallel=Parallel())
    return str(caught.value)


def test_an_engine_that_one_process_cannot_open_is_an_error_of_all() -> None:
    first, second = run_processes(open_where_one_fails, 2, timeout=100)
    assert "no such device" in second
    assert first == f"process 1 ended the run: {second.splitlines()[0]}\nsee its own output"


def open_with_other_engines(rank: int) -> str:
    providers = [("torch", {"device": "cpu"})] if rank else ["cpu"]
    with pytest.raises(DistributedError) as caught:
        open_session({"providers": providers}, parallel=Parallel(shard=2))
    return str(caught.value)


def test_processes_with_other_engines_are_refused() -> None:
    first, second = run_processes(open_with_other_engines, 2, timeout=100)
    assert first.startswith(
        "process 0 trains with CPUExecutionProvider, but process 1 with TorchExecutionProvider\n"
    )
    assert second.startswith("process 1 trains with Torch")


def open_with_other_frozen_weights(rank: int) -> str:
    model = classifier()
    if rank:
        value = model.graph.initializers["w0"]
        assert value.const_value is not None
        value.const_value = ir.tensor(value.const_value.numpy() * np.float32(1.5), name="w0")
    loss = losses.CrossEntropy(output="scores")
    options = {"frozen": ["w0"]}
    with pytest.raises(DistributedError) as caught:
        TrainingSession(model, loss, optimizers.SGD(), options, parallel=Parallel())
    return str(caught.value)


def test_processes_with_other_frozen_weights_are_refused() -> None:
    for rank, text in enumerate(run_processes(open_with_other_frozen_weights, 2, timeout=100)):
        assert text == (
            f"process {rank} and process {1 - rank} have other numbers in the frozen weight 'w0'\n"
            "give every process the same model file"
        )
