"""What bounds a model: the rule, from measurements made by hand."""

from __future__ import annotations

import pytest

from onward.measure.profile.bottlenecks import Analysis, analyse, find_bound, typical
from onward.measure.profile.diagnosis import Diagnosis, diagnose
from onward.measure.profile.record_costs import Graphs
from onward.measure.profile.timed_runs import Measurement, Timing
from onward.measure.profile.trace import Trace, TracedRun
from tests.measure.profile.measured import CPU, ROUND, measurement, record


def diagnosed(measured: Measurement) -> tuple[Analysis, Diagnosis]:
    analysis = analyse(measured, ROUND)
    return analysis, diagnose(analysis, measured, ROUND)


@pytest.mark.parametrize(
    ("flops", "moved", "calls", "bound", "least"),
    [
        (2e6, 1e6, 1, "compute", 2e-3),
        (1e6, 3e6, 1, "memory", 3e-3),
        (10, 10, 50, "waiting", 5e-5),
        (0, 0, 1, "waiting", 1e-6),
    ],
)
def test_a_node_is_bound_by_what_would_take_it_longest(
    flops: float, moved: float, calls: float, bound: str, least: float
) -> None:
    assert find_bound(flops, moved, calls, ROUND[CPU]) == (bound, pytest.approx(least))


def test_bound_by_memory_bandwidth() -> None:
    # 1000 floats in, 1000 out: 8 kB, 8 us at 1 GB/s
    nodes = [record(f"relu{n}", "Relu", 10e-6, (1000,)) for n in range(12)]
    analysis, verdict = diagnosed(measurement(nodes, 150e-6))
    assert analysis.shares == pytest.approx({"compute": 0, "memory": 0.8, "io": 0, "waiting": 0.2})
    assert verdict.sentence == (
        "Bound by memory bandwidth: 80 % of the time is in nodes that move 800 MB/s, 80 % of what "
        "this machine can (1 GB/s); most of it in 12 Relu nodes."
    )
    assert "use the memory well" in verdict.advice


def test_bound_by_compute_and_far_from_the_ceiling() -> None:
    # Softmax of 1000 is 5 kFLOP but 8 kB; Mish 6 kFLOP: make compute dearer with a slow peak
    nodes = [record("mish", "Mish", 1e-3, (1000,)), record("relu", "Relu", 2e-6, (10,))]
    slow = {CPU: type(ROUND[CPU])({"float32": 1e8}, 1e9, 1e-6)}
    measured = measurement(nodes, 1.1e-3)
    analysis = analyse(measured, slow)
    verdict = diagnose(analysis, measured, slow)
    assert verdict.bound == "compute"
    assert verdict.sentence.startswith("Bound by compute: 91 % of the time is in nodes that do 6 M")
    assert "only 6 % of the ceiling" in verdict.advice


def test_bound_by_waiting_in_gaps_dispatch_and_threads() -> None:
    nodes = [record(f"n{i}", "Neg", 2e-6, (1,)) for i in range(10)]
    nodes += [record("big", "Relu", 30e-6, (1000,), waited=12e-6)]
    analysis, verdict = diagnosed(measurement(nodes, 150e-6))
    assert analysis.waiting == pytest.approx(
        {"gaps between nodes": 100 / 150, "dispatch": 20 / 150, "threads": 12 / 150}
    )
    assert verdict.sentence == (
        "Bound by waiting: 88 % of the time is not the work of a node: 67 % in gaps between nodes, "
        "13 % in dispatching 10 small nodes, 8 % in threads that wait for each other."
    )


def test_bound_by_input_and_output() -> None:
    node = record("relu", "Relu", 10e-6, (1000,))
    analysis, verdict = diagnosed(measurement([node], 100e-6, executing=15e-6))
    assert analysis.shares["io"] == pytest.approx(0.85)
    assert verdict.sentence.startswith("Bound by I/O: 85 % of the time goes into handing tensors")
    assert "io_binding" in verdict.advice


def test_operators_add_their_nodes_up() -> None:
    nodes = [record("a", "Relu", 10e-6, (1000,)), record("b", "Relu", 6e-6, (500,))]
    analysis, _ = diagnosed(measurement(nodes, 20e-6))
    [relu] = analysis.operators
    assert relu.calls == 2
    assert relu.time == pytest.approx(16e-6)
    assert relu.flops == 1500 and relu.bytes == 12000
    assert relu.intensity == pytest.approx(0.125)
    assert relu.bytes_per_second == pytest.approx(12000 / 16e-6)
    assert relu.reached == pytest.approx(12 / 16)


def test_a_busy_machine_does_not_count_as_a_gap() -> None:
    """The run without profiling was disturbed: what the profiled one shows is the most."""
    node = record("relu", "Relu", 10e-6, (1000,))
    measured = measurement([node], 500e-6, executing=12e-6)
    measured = type(measured)(measured.timing, measured.trace, [13e-6], measured.graphs, {}, [CPU])
    analysis, _ = diagnosed(measured)
    assert analysis.waiting["gaps between nodes"] == pytest.approx(2 / 13)


def test_typical_is_the_mean_of_the_middle_half() -> None:
    assert typical([1, 2, 3, 100]) == 2.5
    assert typical([4]) == 4
    assert typical([]) == 0


def test_shares_are_of_one_run_and_add_up() -> None:
    """Two nodes that take turns being slow: no run is as slow as the sum of their medians."""
    times = [(10e-6, 50e-6), (50e-6, 10e-6), (30e-6, 40e-6)]
    records = [
        record(name, "Relu" if name == "a" else "Neg", time, (1000,), iteration=turn)
        for turn, pair in enumerate(times)
        for name, time in zip("ab", pair, strict=True)
    ]
    runs = [TracedRun(0.0, sum(pair) + 30e-6, sum(pair) + 20e-6) for pair in times]
    walls = [run.duration for run in runs]
    timing = Timing(0.1, 0.2, 0, [0.0], [1e-3], [])
    measured = Measurement(timing, Trace(records, runs), walls, Graphs([], {}), {}, [CPU])
    analysis, _ = diagnosed(measured)
    found = {node.name: node.time for node in analysis.nodes}
    assert found in [dict(zip("ab", pair, strict=True)) for pair in times]
    assert analysis.outside == pytest.approx(10e-6)
    inside = sum(operator.share for operator in analysis.operators)
    gaps = analysis.waiting["gaps between nodes"]
    assert inside + gaps + analysis.shares["io"] == pytest.approx(1)
    assert sum(analysis.shares.values()) == pytest.approx(1)
