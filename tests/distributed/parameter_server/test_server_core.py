"""The core of a parameter server: laws over random sequences of requests, and single rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from onward.distributed.parameter_server.server_core import ParameterServerCore, Pulled
from onward.distributed.parameter_server.server_settings import ServerSettings
from onward.errors import OptionError
from onward.programs.program import Array, Spec

NAMES = [f"worker {i}" for i in range(4)]
FLOAT = np.dtype(np.float32)
TIMEOUT = 10.0


class PlainUpdates:
    """w -= rate * gradient, and the log of what was applied."""

    parameters: Mapping[str, Spec] = {"w": (FLOAT, (2,)), "v": (FLOAT, ())}
    statistics: Mapping[str, Spec] = {"mean": (FLOAT, (1,))}

    def __init__(self) -> None:
        self.tensors = {"w": np.zeros(2, FLOAT), "v": np.zeros((), FLOAT)}
        self.tensors["mean"] = np.zeros(1, FLOAT)
        self.version = 0
        self.rates: list[float] = []

    def apply(
        self, gradients: Mapping[str, Array], statistics: Mapping[str, Array], rate: float
    ) -> bool:
        for name, gradient in gradients.items():
            self.tensors[name] = self.tensors[name] - FLOAT.type(rate) * gradient
        self.tensors |= statistics
        self.version += 1
        self.rates.append(rate)
        return True

    def read(self) -> Mapping[str, Array]:
        return self.tensors


def gradients(value: float = 1.0) -> dict[str, Array]:
    return {"w": np.array([value, 0], FLOAT), "v": np.array(0, FLOAT)}


def statistics(value: float = 0.0) -> dict[str, Array]:
    return {"mean": np.array([value], FLOAT)}


def make_core(**given: Any) -> tuple[ParameterServerCore, PlainUpdates]:
    updates = PlainUpdates()
    chosen = ServerSettings(**{"timeout": TIMEOUT, **given})
    return ParameterServerCore(updates, chosen, "life 1"), updates


def pull(core: ParameterServerCore, worker: str, now: float = 0.0, known: Any = None) -> Pulled:
    found = core.pull(worker, now, known)
    assert isinstance(found, Pulled), found
    return found


class Requests(RuleBasedStateMachine):
    """Any sequence of requests of four workers, with lost answers, bad gradients and deaths."""

    @initialize(
        staleness=st.none() | st.integers(0, 3), average=st.integers(1, 3), scaled=st.booleans()
    )
    def start(self, staleness: int | None, average: int, scaled: bool) -> None:
        self.core, self.updates = make_core(
            staleness=staleness, average=average, scale_by_staleness=scaled
        )
        self.now = 0.0
        self.holds: dict[str, int] = {}  # by living worker with an open pull
        self.alive: dict[str, float] = {}
        self.numbers = dict.fromkeys(NAMES, 0)
        self.used = 0  # gradients that were taken
        self.statuses: dict[str, str] = {}

    def note(self, worker: str) -> None:
        """Drop the workers that are too old, then hear this one."""
        for name, heard in list(self.alive.items()):
            if self.now - heard > TIMEOUT:
                self.drop(name)
        if worker in self.alive:
            self.alive[worker] = self.now

    def drop(self, worker: str) -> None:
        self.alive.pop(worker, None)
        self.holds.pop(worker, None)

    @rule(worker=st.sampled_from(NAMES))
    def join(self, worker: str) -> None:
        self.note(worker)
        self.core.join(worker, self.now)
        self.alive[worker] = self.now

    @rule(worker=st.sampled_from(NAMES))
    def leave(self, worker: str) -> None:
        self.note(worker)
        self.core.leave(worker, self.now)
        self.drop(worker)

    @rule(worker=st.sampled_from(NAMES))
    def pull(self, worker: str) -> None:
        self.note(worker)
        found = self.core.pull(worker, self.now)
        if worker not in self.alive:
            assert found == "unknown"
            return
        self.holds.pop(worker, None)
        if isinstance(found, Pulled):
            assert found.version == self.core.version
            np.testing.assert_array_equal(found.tensors["w"], self.updates.tensors["w"])
            self.holds[worker] = found.version
        else:
            assert found == "wait"
            assert self.core.settings.staleness is not None

    @rule(worker=st.sampled_from(NAMES), bad=st.sampled_from(["", "", "", "nan", "shape", "old"]))
    def push(self, worker: str, bad: str) -> None:
        self.note(worker)
        version = self.holds.get(worker, 0) - (bad == "old")
        given = gradients(np.nan if bad == "nan" else 1.0)
        if bad == "shape":
            given["w"] = given["w"][:1]
        self.numbers[worker] += 1
        before = self.updates.tensors["w"].copy()
        pushed = self.core.push(
            worker, self.numbers[worker], version, given, 2.0, self.now, statistics()
        )
        expected = {"nan": "nonfinite", "shape": "malformed", "old": "stale"}.get(bad)
        if worker not in self.alive:
            expected = "unknown"
        elif worker not in self.holds:
            expected = "stale"
        if expected is None:
            assert pushed.status in ("applied", "kept")  # what was pulled is never too stale
            self.used += 1
        else:
            assert pushed.status == expected
            np.testing.assert_array_equal(self.updates.tensors["w"], before)
        self.holds.pop(worker, None)
        if worker in self.alive:
            self.statuses[worker] = pushed.status
        else:
            self.numbers[worker] -= 1  # it is not remembered

    @precondition(lambda self: self.statuses)
    @rule(data=st.data())
    def push_again(self, data: st.DataObject) -> None:
        """The answer to the last push was lost: the same answer, and no second update."""
        worker = data.draw(st.sampled_from(sorted(self.statuses)))
        self.note(worker)
        before = self.updates.version
        pushed = self.core.push(
            worker, self.numbers[worker], 0, gradients(5.0), 1.0, self.now, statistics()
        )
        assert pushed.repeated and pushed.status == self.statuses[worker]
        assert self.updates.version == before

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def the_version_counts_updates_of_so_many_gradients(self) -> None:
        if hasattr(self, "core"):
            average = self.core.settings.average
            assert self.core.version == self.updates.version == self.used // average
            assert self.core.counts["updates"] == self.core.version
            assert self.core.counts["gradients"] == self.core.version * average

    @invariant()
    def no_gradient_is_too_stale(self) -> None:
        if hasattr(self, "core") and self.core.settings.staleness is not None:
            assert max(self.core.staleness, default=0) <= self.core.settings.staleness

    @invariant()
    def weights_are_finite(self) -> None:
        if hasattr(self, "updates"):
            assert np.isfinite(self.updates.tensors["w"]).all()

    @precondition(lambda self: hasattr(self, "core"))
    @rule()
    def dead_workers_block_nobody(self) -> None:
        """After the timeout, a worker that joins can make updates by itself."""
        self.now += TIMEOUT + 1
        for _ in range(self.core.settings.average):
            self.join(NAMES[0])
            self.pull(NAMES[0])
            assert NAMES[0] in self.holds
            self.push(NAMES[0], "")
        assert self.statuses[NAMES[0]] in ("applied", "kept")

    @rule(pulls=st.permutations(NAMES), pushes=st.permutations(NAMES))
    def work_together(self, pulls: list[str], pushes: list[str]) -> None:
        """All workers pull, and those whose pull was answered push in another order."""
        for worker in pulls:
            self.join(worker)
            self.pull(worker)
        for worker in pushes:
            if worker in self.holds:
                self.push(worker, "")

    @precondition(lambda self: getattr(self, "alive", None))
    @rule()
    def living_workers_do_not_wait_for_each_other_in_a_circle(self) -> None:
        for worker in sorted(self.alive):
            if worker not in self.holds:
                self.pull(worker)
        assert self.holds or not self.alive


TestRequests = Requests.TestCase
TestRequests.settings = hypothesis_settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True
)


def test_an_asynchronous_server_updates_at_once_and_scales_the_rate() -> None:
    core, updates = make_core(scale_by_staleness=True)
    for name in NAMES[:3]:
        core.join(name, 0.0)
        pull(core, name)
    for name in NAMES[:3]:
        assert core.push(name, 1, 0, gradients(), 8, 0.0, statistics()).status == "applied"
    assert updates.rates == [1.0, 1 / 2, 1 / 3]
    assert dict(core.staleness) == {0: 1, 1: 1, 2: 1}


def test_gradients_are_averaged_by_their_weights() -> None:
    core, updates = make_core(staleness=0, average=2)
    for name, value, rows in [("a", 1.0, 1.0), ("b", 4.0, 3.0)]:
        core.join(name, 0.0)
        pull(core, name)
        core.push(name, 1, 0, gradients(value), rows, 0.0, statistics(value))
    assert updates.tensors["w"].tolist() == [-3.25, 0.0]  # (1 * 1 + 3 * 4) / 4
    assert updates.tensors["mean"].tolist() == [3.25]


def test_a_synchronous_worker_waits_for_the_others_but_not_for_the_dead() -> None:
    core, _ = make_core(staleness=0, average=2)
    core.join("a", 0.0)
    core.join("b", 0.0)
    pull(core, "a")
    core.push("a", 1, 0, gradients(), 1, 0.0, statistics())
    assert core.pull("a", 9.0) == "wait"  # the second gradient is that of b
    again = pull(core, "a", TIMEOUT + 2)  # b was never heard of again: a computes the second one
    assert again.version == 0 and again.draw == 1 and core.counts["expired"] == 1
    assert core.push("a", 2, 0, gradients(), 1, 12.0, statistics()).status == "applied"


def test_pulls_that_wait_are_answered_in_their_order() -> None:
    core, _ = make_core(staleness=0)
    for name in ("a", "b", "c"):
        core.join(name, 0.0)
    pull(core, "a")
    assert core.pull("b", 1.0) == core.pull("c", 2.0) == "wait"
    core.push("a", 1, 0, gradients(), 1, 3.0, statistics())
    assert core.pull("a", 3.0) == core.pull("c", 3.0) == "wait"
    pull(core, "b", 4.0)


def test_one_that_stopped_to_pull_does_not_block_the_queue() -> None:
    core, _ = make_core(staleness=0)
    for name in ("a", "b", "c"):
        core.join(name, 0.0)
    pull(core, "a")
    assert core.pull("b", 1.0) == core.pull("c", 1.0) == "wait"
    core.push("a", 1, 0, gradients(), 1, 2.0, statistics())
    assert core.hear("b", 7.0) and core.pull("c", 5.0) == "wait"
    pull(core, "c", 7.0)  # b is alive, and has not tried for more than half of the timeout


def test_the_bound_counts_gradients_that_are_still_computed() -> None:
    core, _ = make_core(staleness=1)
    for name in ("a", "b", "c"):
        core.join(name, 0.0)
    pull(core, "a")
    pull(core, "b")
    assert core.pull("c", 0.0) == "wait"  # a's gradient could come after those of b and c
    core.push("b", 1, 0, gradients(), 1, 0.0, statistics())
    assert core.pull("c", 0.0) == "wait"
    core.push("a", 1, 0, gradients(), 1, 0.0, statistics())
    pull(core, "c")
    assert dict(core.staleness) == {0: 1, 1: 1}


def test_a_pull_has_what_changed() -> None:
    core, updates = make_core()
    core.join("a", 0.0)
    first = pull(core, "a")
    assert set(first.tensors) == {"w", "v", "mean"}
    core.push("a", 1, 0, gradients(), 1, 0.0, statistics())
    second = pull(core, "a", 0.0, ("life 1", 0))
    assert set(second.tensors) == {"w", "mean"}  # v did not change; statistics are always sent
    assert set(pull(core, "a", 0.0, ("life 1", 1)).tensors) == {"mean"}
    assert set(pull(core, "a", 0.0, ("another life", 1)).tensors) == {"w", "v", "mean"}
    first.tensors["w"][:] = 7  # an answer that is still being sent is a copy
    assert updates.tensors["w"].tolist() == [-1.0, 0.0]


def test_an_average_that_overflows_is_skipped() -> None:
    core, updates = make_core(average=2)
    core.join("a", 0.0)
    huge = float(np.finfo(FLOAT).max)
    statuses = []
    for number in (1, 2):
        pull(core, "a")
        pushed = core.push("a", number, 0, gradients(huge), 8, 0.0, statistics())
        statuses.append(pushed.status)
    assert statuses == ["kept", "skipped"]
    assert core.version == 0 and updates.tensors["w"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("weight", [0.0, -1.0, np.inf, np.nan])
def test_a_weight_must_be_a_number_above_0(weight: float) -> None:
    core, _ = make_core()
    core.join("a", 0.0)
    pull(core, "a")
    assert core.push("a", 1, 0, gradients(), weight, 0.0, statistics()).status == "malformed"


def test_the_end_of_training_is_exact() -> None:
    core, _ = make_core(updates=1)
    for name in ("a", "b"):
        core.join(name, 0.0)
        pull(core, name)
    assert core.push("a", 1, 0, gradients(), 1, 0.0, statistics()).status == "applied"
    assert core.push("b", 1, 0, gradients(), 1, 0.0, statistics()).status == "ended"
    assert core.pull("a", 0.0) == "ended" and core.version == 1


def test_a_restored_server_knows_which_pushes_were_applied() -> None:
    core, updates = make_core()
    core.join("a", 0.0)
    pull(core, "a")
    core.push("a", 1, 0, gradients(), 1, 0.0, statistics())
    restored = ParameterServerCore(updates, core.settings, "life 2")
    restored.restore(core.state())
    pushed = restored.push("a", 1, 0, gradients(), 1, 0.0, statistics())  # its answer was lost
    assert pushed.repeated and pushed.status == "applied" and updates.version == 1
    assert restored.push("a", 2, 0, gradients(), 1, 0.0, statistics()).status == "unknown"
    assert restored.counts["updates"] == 1 and dict(restored.staleness) == {0: 1}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"staleness": -1}, "ServerSettings.staleness must be a whole number, at least 0"),
        ({"average": 0}, "ServerSettings.average must be a whole number, at least 1"),
        ({"timeout": 0}, "ServerSettings.timeout must be a number above 0"),
        ({"stalenes": 1}, "ServerSettings has no setting 'stalenes'\ndid you mean 'staleness'"),
    ],
)
def test_settings_are_checked(given: dict[str, Any], text: str) -> None:
    with pytest.raises((OptionError, TypeError)) as caught:
        ServerSettings(**given)
    assert text in str(caught.value)
