"""The batch size search: it grows while that pays, and a size that does not fit ends only it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from onward.errors import MemoryLimitExceeded, OptionError
from onward.losses import MSE
from onward.optimizers import SGD
from onward.runner.finders.batch_size import MeasuredSize, find_batch_size, search_sizes
from onward.runner.finders.free_memory import available_memory
from onward.sessions.training.training_program import compile_training, load_program
from tests.runner.finetune.finetune_models import random


def program() -> Any:
    op = onward.OpBuilder()
    x = op.input("x", "float32", ("batch", 256))
    h = op.Tanh(op.MatMul(x, op.initializer("a", random(256, 256) / 16)))
    return compile_training(
        op.model(y=op.MatMul(h, op.initializer("b", random(256, 8)))), MSE(), SGD()
    )


def batch(size: int) -> dict[str, Any]:
    return {"x": np.ones((size, 256), np.float32), "target": np.ones((size, 8), np.float32)}


@pytest.mark.integration
def test_a_size_that_does_not_fit_ends_only_the_search() -> None:
    search = find_batch_size(
        program(),
        lambda size: batch(1 if size == 1 else 200_000),  # which take some 600 MB
        smallest=1,
        largest=64,
        memory=100 << 20,
    )
    fits, too_large = search.sizes
    assert fits.seconds > 0 and fits.memory > 0 and not fits.error
    assert "it does not fit the memory" in too_large.error
    assert too_large.samples_per_second == 0 and search.suggestion == 1
    assert str(search).startswith("batch size: 1\n")


def test_a_first_size_that_fails_is_an_error() -> None:
    def measure(size: int) -> MeasuredSize:
        raise MemoryLimitExceeded("it does not fit the memory")

    with pytest.raises(MemoryLimitExceeded):
        search_sizes(measure, 8, 64)


@pytest.mark.parametrize(
    ("rows_per_second", "suggestion", "last"),
    [
        ({8: 100, 16: 200, 32: 400, 64: 401}, 32, 64),  # no longer faster
        ({8: 100, 16: 101}, 8, 16),
        ({8: 100, 16: 200, 32: 400, 64: 800, 100: 1600}, 100, 100),  # the largest
        ({8: 100, 16: 200, 32: None}, 16, 32),  # does not fit
    ],
)
def test_the_search_ends_where_larger_batches_do_not_pay(
    rows_per_second: dict[int, float | None], suggestion: int, last: int
) -> None:
    def measure(size: int) -> MeasuredSize:
        speed = rows_per_second[size]
        if speed is None:
            raise MemoryLimitExceeded("it does not fit the memory\nmore")
        return MeasuredSize(size, size / speed)

    search = search_sizes(measure, 8, 100)
    assert search.suggestion == suggestion and search.sizes[-1].size == last
    assert search.sizes[-1].error in ("", "it does not fit the memory")


def test_a_program_that_was_saved_for_onnxruntime_is_refused(tmp_path: Path) -> None:
    program().save(tmp_path / "program")
    with pytest.raises(OptionError, match="saved for onnxruntime"):
        find_batch_size(load_program(tmp_path / "program"), batch)


def test_a_container_may_have_less_memory_than_the_machine(tmp_path: Path) -> None:
    machine, group, none = tmp_path / "meminfo", tmp_path / "group", tmp_path / "none"
    machine.write_text("MemTotal: 4096 kB\nMemAvailable:   2048 kB\n")
    assert available_memory(machine, none, none) == 2 << 20
    group.mkdir()
    (group / "memory.current").write_text("1000\n")
    (group / "memory.max").write_text("max\n")
    assert available_memory(machine, group, none) == 2 << 20
    (group / "memory.max").write_text("5000\n")
    assert available_memory(machine, group, none) == 4000
    assert available_memory(none, none, none) is None
