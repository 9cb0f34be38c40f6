"""The segments of the torch engine equal compute_gradients, bucket by bucket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from onward import losses, optimizers
from onward.programs.buckets import split_updates
from onward.programs.build import build_program
from onward.providers.options import SessionOptions
from onward.providers.provider import Draw, SegmentedTraining
from onward.providers.torch.provider import TorchProvider, make_torch
from onward.providers.torch.training.executable import TorchTraining, open_program
from tests.distributed.training_cases import batches, classifier

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning")
CPU = {"device": "cpu"}


@dataclass
class Recorded:
    """Hooks that copy the gradients of each update when it is complete."""

    engine: TorchTraining
    factor: float = 1.0
    seen: list[torch.Tensor] = field(default_factory=list)

    def before(self, segment: int) -> None:
        pass

    def scale(self) -> float:
        return self.factor

    def after(self, update: int) -> None:
        assert update == len(self.seen)
        self.seen.append(self.engine.store.gradient_buffer(update).clone())


def open_engine(provider: TorchProvider, bucket: int = 300) -> TorchTraining:
    model = classifier(batch_norm=True, dropout=0.3)
    program = build_program(
        model,
        losses.CrossEntropy(output="scores"),
        optimizers.SGD(lr=0.1, momentum=0.9),
        {"loss_scale": 1.0, "clip_norm": 1.0},
    )
    engine = open_program(split_updates(program, bucket).program, provider)
    assert engine is not None
    engine.set_rates(0, [[0.1]] * len(engine.store.updates))
    return engine


def run_segments(
    engine: TorchTraining, feeds: Any, draw: Draw, first: bool, hooks: Recorded
) -> Any:
    results = engine.run_forward_segments(feeds, draw, first, hooks)
    if results is not None:
        engine.run_backward_segments(first, hooks)
    return results


def eager() -> TorchProvider:
    return make_torch(CPU, SessionOptions())


def compiled() -> TorchProvider:
    """A provider that captures functions as Inductor does, without its code generation."""

    def compiler(function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, backend="aot_eager", fullgraph=True)

    return TorchProvider(
        "InductorExecutionProvider", torch.device("cpu"), compiler, step_compiler=compiler
    )


def same(one: Any, other: Any, exact: bool = True) -> None:
    tolerance = 0.0 if exact else 1e-6
    np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=tolerance, atol=tolerance)


def fixed() -> TorchProvider:
    """A provider whose gradients stay in the same memory, as those of CUDA graphs do."""
    return TorchProvider("TorchExecutionProvider", torch.device("cpu"), captures_steps=True)


@pytest.mark.integration
@pytest.mark.parametrize("make", [eager, compiled, fixed])
def test_segments_equal_the_whole_step(make: Callable[[], TorchProvider]) -> None:
    provider, compiles = make(), make is compiled
    whole, parts = (
        open_engine(eager(), bucket=1 << 20),
        open_engine(provider, 900 if compiles else 300),
    )
    assert isinstance(parts, SegmentedTraining)
    feeds = batches(3, 12)
    for step in range(2):
        for micro, each in enumerate(feeds[: step + 1]):  # one batch, then two that are added
            draw = Draw(1, step, micro)
            expected = whole.compute_gradients(each, draw, 0.5, first=not micro)
            hooks = Recorded(parts, 0.5)
            results = run_segments(parts, each, draw, not micro, hooks)
            assert expected is not None
            assert results is not None
            for shown, result in expected.items():
                same(results[shown], result, exact=not compiles)
            parts.keep_statistics(True)
            for seen, kept in zip(hooks.seen, parts.store.gradient_buffers(), strict=True):
                torch.testing.assert_close(seen, kept, rtol=0, atol=0)
        parts.gradients_changed()
        assert bool(whole.update(step + 1, 0.5))
        assert bool(parts.update(step + 1, 0.5))
    for tensor in (*whole.store.parameters, *whole.store.statistics):
        same(parts.store.read(tensor), whole.store.read(tensor), exact=not compiles)
    assert len(parts.store.updates) > 1


def test_values_are_freed_after_their_last_reader() -> None:
    engine = open_engine(eager())
    assert run_segments(engine, batches(1, 12)[0], Draw(0, 0, 0), True, Recorded(engine))
    assert not engine._segments.open("train")._values


def test_parameters_may_be_freed_and_gathered_between_segments() -> None:
    kept, freed = open_engine(eager()), open_engine(eager())
    [feeds] = batches(1, 12)
    expected = run_segments(kept, feeds, Draw(0, 0, 0), True, Recorded(kept))
    for tensors in freed.store.updates:
        contents, storage = tensors.parameters.clone(), tensors.parameters.untyped_storage()
        size = storage.nbytes()
        storage.resize_(0)
        storage.resize_(size)
        tensors.parameters.copy_(contents)
    results = run_segments(freed, feeds, Draw(0, 0, 0), True, Recorded(freed))
    assert expected is not None
    assert results is not None
    same(results["loss"], expected["loss"])


def test_empty_batch_runs_no_segment() -> None:
    engine = open_engine(eager())
    hooks = Recorded(engine)
    empty = {name: array[:0] for name, array in batches(1, 12)[0].items()}
    assert run_segments(engine, empty, Draw(0, 0, 0), True, hooks) is None
    assert not hooks.seen
    results = engine.skip_forward_segments(hooks)
    engine.skip_backward_segments(True, hooks)
    assert [float(seen.abs().sum()) for seen in hooks.seen] == [0.0] * len(engine.store.updates)
    assert results["scores"].shape == (0, 5)
    assert [np.asarray(each).shape for each in engine.fresh_statistics()]


def test_statistics_of_a_skipped_batch_are_not_kept() -> None:
    engine = open_engine(eager())
    before = {name: engine.store.read(name).copy() for name in engine.store.statistics}
    run_segments(engine, batches(1, 12)[0], Draw(0, 0, 0), True, Recorded(engine))
    engine.keep_statistics(False)
    for name, array in before.items():
        same(engine.store.read(name), array)
    [fresh] = engine.fresh_statistics()
    fresh.fill_(7.0)  # as a reduction over processes changes them
    engine.keep_statistics(True)
    for name in before:
        assert (engine.store.read(name) == 7).all()
