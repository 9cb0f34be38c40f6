"""R7, the short tier: one pair of each model, resumed in this process."""

from __future__ import annotations

import pytest

from conformance.reliability import resume_runs
from onward.optimizers.optimizer import Optimizer

PAIRS = list(zip(resume_runs.MODELS, resume_runs.OPTIMIZERS[::3]))


@pytest.mark.parametrize(("model", "optimizer"), PAIRS, ids=[model for model, _ in PAIRS])
def test_resumed_run_is_bit_identical(model: str, optimizer: Optimizer) -> None:
    tally = resume_runs.resume_all(3, seed=4, models=[model], optimizers=[optimizer],
                                   processes=False)  # fmt: skip
    assert not tally.faults and tally.resumed == 3
    assert "not the same bits: 0 in 3: < 3/3" in tally.line()


def test_each_epoch_has_its_own_order() -> None:
    first, again, next_epoch = (resume_runs.batch(n)["x"] for n in (0, 0, resume_runs.EPOCH))
    assert (first == again).all() and not (first == next_epoch).all()
