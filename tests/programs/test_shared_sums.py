"""Programs that sum values over processes: cut at the sums, and run piece by piece."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward import losses, optimizers
from onward.errors import OptionError
from onward.passes.composites import is_call
from onward.programs.build import build_program
from onward.programs.layout_json import layout_to_json
from onward.programs.program import LOSS, Program
from onward.programs.shared_sums import split_at_sums
from onward.providers.options import SessionOptions
from onward.providers.provider import Draw, SegmentedTraining
from onward.sessions.training.open_program import open_training
from onward.sessions.training.training_program import TrainingProgram
from tests.distributed.training_cases import batches, classifier

TORCH = [("TorchExecutionProvider", {"device": "cpu"})]


def program(*, shares: bool, **model: Any) -> Program:
    return build_program(
        classifier(batch_norm=True, **model),
        losses.CrossEntropy(output="scores"),
        optimizers.SGD(lr=0.1),
        {"loss_scale": 1.0},
        shares_batch_norms=shares,
    )


def open_engine(given: Program, providers: Any) -> SegmentedTraining:
    options = SessionOptions(intra_op_num_threads=1, inter_op_num_threads=1)
    engine = open_training(TrainingProgram(given), options, providers).engine
    assert isinstance(engine, SegmentedTraining)
    engine.set_rates(0, [[0.1]])
    return engine


class NoHooks:
    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def before(self, segment: int) -> None:
        pass

    def scale(self) -> float:
        return self.factor

    def after(self, update: int) -> None: ...


def test_every_sum_is_computed_before_it_is_read() -> None:
    shared = program(shares=True)
    layout = shared.layout
    assert [each.size for each in layout.sums] == [25] * 6  # 3 * 8 + 1, forward and backward
    assert not any(is_call(n) and n.op_type == "AllReduce" for n in shared.train.graph)
    groups = [[LOSS, *layout.state.values()], list(layout.gradients.values())]
    segments = split_at_sums(shared.train, groups, layout.sums)
    assert [[p.sum is None for p in segment] for segment in segments] == [[False] * 3 + [True]] * 2
    known = {value.name for value in shared.train.graph.inputs} - {e.total for e in layout.sums}
    for piece, shared_sum in [each for segment in segments for each in segment]:
        inputs = {value.name for value in piece.model.graph.inputs}
        assert inputs <= known
        known |= {value.name for value in piece.model.graph.outputs}
        known |= set() if shared_sum is None else {shared_sum.total}


def test_programs_of_one_process_are_not_cut() -> None:
    own = program(shares=False)
    assert own.layout.sums == ()
    assert "sums" not in layout_to_json(own.layout)


def test_program_with_sums_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"sync_batch_norm .* cannot be saved"):
        TrainingProgram(program(shares=True)).save(tmp_path / "program")


@pytest.mark.parametrize("providers", [None, TORCH], ids=["onnxruntime", "torch"])
@pytest.mark.parametrize("halves", [False, True])
def test_one_process_alone_trains_the_same(providers: Any, halves: bool) -> None:
    own = open_engine(program(shares=False, dropout=0.2), providers)
    shared = open_engine(program(shares=True, dropout=0.2), providers)
    vectors: list[int] = []
    shared.all_reduce = lambda vector: vectors.append(len(vector))
    for step, feeds in enumerate(batches(2, 12)):
        draw = Draw(0, step, 0)
        expected = own.compute_gradients(feeds, draw, 1.0, first=True)
        if halves:
            found = shared.forward(feeds, draw)
            shared.backward(1.0, first=True)
        else:
            found = shared.run_forward_segments(feeds, draw, True, NoHooks())
            shared.run_backward_segments(True, NoHooks())
            shared.keep_statistics(True)
            shared.gradients_changed()
        assert expected is not None
        assert found is not None
        np.testing.assert_allclose(found["scores"], expected["scores"], rtol=1e-5, atol=1e-6)
        assert bool(own.update(1, 1.0)) and bool(shared.update(1, 1.0))
    assert vectors == [25] * 12
    for name in program(shares=False).layout.weights():
        np.testing.assert_allclose(shared.store.read(name), own.store.read(name), atol=1e-6)


@pytest.mark.parametrize("providers", [None, TORCH], ids=["onnxruntime", "torch"])
def test_empty_batch_adds_zeros_to_every_sum(providers: Any) -> None:
    engine = open_engine(program(shares=True), providers)
    added: list[float] = []
    engine.all_reduce = lambda vector: added.append(float(abs(vector).sum()))
    empty = {name: array[:0] for name, array in batches(1, 12)[0].items()}
    assert engine.run_forward_segments(empty, Draw(0, 0, 0), True, NoHooks()) is None
    results = engine.skip_forward_segments(NoHooks())
    engine.skip_backward_segments(True, NoHooks())
    assert added == [0.0] * 6
    assert results["scores"].shape == (0, 5)
