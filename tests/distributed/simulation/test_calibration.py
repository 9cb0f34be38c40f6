"""SimulationCalibration: a link and compute that explain measured steps."""

from __future__ import annotations

import pytest

from onward.distributed.parallel import Parallel
from onward.distributed.planner.bucket_sizes import Bucket
from onward.distributed.simulation.calibration import (
    SimulationCalibration,
    StepMeasurement,
    calibrate,
)
from onward.distributed.simulation.cluster import Cluster, Link
from onward.distributed.simulation.scaling_plot import ScalingPanel, ScalingSeries, draw_scaling
from onward.distributed.simulation.simulated_step import StepWork, simulate_step
from onward.errors import OptionError
from onward.runner.figures.figure import Dot, Line, Words
from onward.runner.figures.svg import svg_text

MIB = 1 << 20
FEW, MANY = (4 * MIB,) * 3, (MIB // 8,) * 24


def measured(link: Link, ranks: int, buckets: tuple[int, ...], compute: float) -> StepMeasurement:
    """What a machine with this link would measure."""
    share = [compute * each / sum(buckets) for each in buckets]
    work = StepWork(
        buckets=tuple(Bucket(names=(), nbytes=each, slots=0) for each in buckets),
        forward=tuple(each / 3 for each in share),
        backward=tuple(each * 2 / 3 for each in share),
    )
    step = simulate_step(work, Parallel(data=ranks), Cluster(inside=link))
    return StepMeasurement(ranks=ranks, seconds=step.seconds, buckets=buckets)


@pytest.mark.integration
@pytest.mark.parametrize(("latency", "bandwidth"), [(2e-4, 1e9), (2e-3, 2e8)])
def test_a_known_link_is_found(latency: float, bandwidth: float) -> None:
    link = Link(latency=latency, bandwidth=bandwidth)
    points = [
        measured(link, ranks, buckets, 0.02) for buckets in (FEW, MANY) for ranks in (1, 2, 4)
    ]
    found = calibrate(points)
    assert found.link.latency == pytest.approx(latency, rel=0.15)
    assert found.link.bandwidth == pytest.approx(bandwidth, rel=0.15)
    for ranks in (1, 2, 4, 8):
        expected = measured(link, ranks, FEW, 0.02).seconds
        assert found.predict(FEW, ranks).seconds == pytest.approx(expected, rel=0.05)


def test_one_process_is_predicted_exactly() -> None:
    link = Link(latency=1e-4, bandwidth=1e9)
    found = calibrate([measured(link, ranks, FEW, 0.02) for ranks in (1, 2)])
    assert found.predict(FEW, 1).seconds == pytest.approx(0.02)


def test_processes_that_share_cores_take_longer() -> None:
    machine = SimulationCalibration(
        link=Link(latency=1e-4, bandwidth=1e9), compute={FEW: 0.02}, forward={FEW: 1 / 3}, cores=2
    )
    one, two, four = (machine.predict(FEW, ranks) for ranks in (1, 2, 4))
    assert one.seconds == pytest.approx(0.02)
    assert two.hidden == pytest.approx(0, abs=1e-9) and two.seconds > 0.02 + sum(FEW) / 1e9
    assert four.seconds > 2 * 0.02 + 2 * 1.5 * sum(FEW) / 1e9


def test_a_calibration_needs_one_process_and_several() -> None:
    link = Link(latency=1e-4, bandwidth=1e9)
    for points in ([measured(link, 1, FEW, 0.02)], [measured(link, 2, FEW, 0.02)]):
        with pytest.raises(OptionError, match="steps of one process and of several"):
            calibrate(points)
    with pytest.raises(OptionError, match=r"StepMeasurement.seconds must be a number above 0"):
        StepMeasurement(ranks=1, seconds=0, buckets=FEW)
    found = calibrate([measured(link, ranks, FEW, 0.02) for ranks in (1, 2)])
    with pytest.raises(OptionError, match="were not measured with one process"):
        found.predict(MANY, 2)


def test_scaling_is_drawn_over_powers_of_two() -> None:
    series = [
        ScalingSeries("simulated", [(1, 1.0), (2, 0.9), (1024, 0.5)]),
        ScalingSeries("measured", [(1, 1.0), (2, 0.8)], measured=True, color=1),
    ]
    figure = draw_scaling([ScalingPanel("efficiency", series, 1024)])
    words = [mark.text for mark in figure.marks if isinstance(mark, Words)]
    assert {"efficiency", "1,024", "512", "simulated", "measured", "100%"} <= {*words}
    [curve] = [mark for mark in figure.marks if isinstance(mark, Line) and len(mark.points) == 3
               and mark.width > 2]  # fmt: skip
    left, middle, right = curve.points
    assert middle[0] - left[0] == pytest.approx((right[0] - left[0]) / 10)
    assert sum(isinstance(mark, Dot) for mark in figure.marks) == 3  # two, and the legend's
    assert svg_text(figure).startswith("<svg")
