"""If, Loop and Scan: every way to stop, no iteration at all, sequences as state, axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from onward.providers.torch.kernels import control
from tests.providers.torch.one_node import run_model

Array = np.ndarray[Any, Any]


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 25]>\n{text}')


def floats(*shape: int) -> Array:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


# -- If ----------------------------------------------------------------------------------------


def test_a_condition_may_be_a_list_of_one() -> None:
    model = parse("""
        g (bool[1] p) => (float y) {
            y = If (p) <then_branch = yes () => (float a) { a = Constant <value_float = 1.0> () },
                        else_branch = no () => (float b) { b = Constant <value_float = 2.0> () }>
        }
    """)
    assert run_model(model, [np.array([True])])[0] == 1
    assert run_model(model, [np.array([False])])[0] == 2


def test_branches_may_give_several_values_of_different_shapes_and_sequences() -> None:
    model = parse("""
        g (bool p, float[n] x) => (float[m] y, seq(float[k]) z) {
            y, z = If (p) <
                then_branch = yes () => (float[m] a, seq(float[k]) b) {
                    a = Concat <axis = 0> (x, x)
                    b = SequenceConstruct(x, a)
                },
                else_branch = no () => (float[m] c, seq(float[k]) d) {
                    c = Neg(x)
                    d = SequenceEmpty()
                }
            >
        }
    """)
    x = floats(2)
    y, z = run_model(model, [np.array(True), x])
    assert_array_equal(y, [*x, *x])
    assert [len(item) for item in z] == [2, 4]
    y, z = run_model(model, [np.array(False), x])
    assert_array_equal(y, -x)
    assert z == []


# -- Loop --------------------------------------------------------------------------------------


def counting(trips: str, condition: str) -> onnx.ModelProto:
    """Doubles `x` until it is over 100, if the condition counts; returns x and each i."""
    return parse(f"""
        g (int64 trips, bool condition, float x) => (float y, int64[n] counted)
        {{
            y, counted = Loop ({trips}, {condition}, x) <
                body = twice (int64 i, bool go, float h) => (bool more, float k, int64 at)
                <float two = {{2.0}}, float limit = {{100.0}}>
                {{
                    k = Mul(h, two)
                    more = Less(k, limit)
                    at = Identity(i)
                }}
            >
        }}
    """)


@pytest.mark.parametrize(
    "trips, condition, given, start, iterations",
    [
        ("trips", "condition", 3, True, 3),
        ("trips", "condition", 30, True, 7),
        ("trips", "condition", 3, False, 0),
        ("trips", "condition", 0, True, 0),
        ("trips", "condition", -1, True, 0),
        ("trips", "", 9, False, 9),
        ("", "condition", 0, True, 7),
        ("", "condition", 0, False, 0),
    ],
)
def test_a_loop_ends_by_its_count_or_by_its_condition(
    trips: str, condition: str, given: int, start: bool, iterations: int
) -> None:
    feeds = [np.array(given), np.array(start), np.float32(1)]
    y, counted = run_model(counting(trips, condition), feeds)
    assert y == 2**iterations
    assert counted.dtype == np.int64
    assert_array_equal(counted, np.arange(iterations))


def test_a_loop_without_iterations_gives_its_scan_outputs_known_shape() -> None:
    model = parse("""
        g (int64 trips, float[n, 3] x) => (float[t, 2, 3] y, int64[t] z) <bool always = {1}>
        {
            y, z = Loop (trips, always) <
                body = b (int64 i, bool go) => (bool go, float[2, 3] top, int64 at)
                <int64[1] zero = {0}, int64[1] two = {2}>
                { top = Slice(x, zero, two)  at = Identity(i) }
            >
        }
    """)
    y, z = run_model(model, [np.array(0), floats(4, 3)])
    assert (y.shape, y.dtype) == ((0, 2, 3), np.float32)
    assert (z.shape, z.dtype) == ((0,), np.int64)
    y, z = run_model(model, [np.array(2), floats(4, 3)])
    assert (y.shape, z.shape) == ((2, 2, 3), (2,))


def test_a_loop_grows_a_sequence() -> None:
    model = parse("""
        g (int64 trips, float[n] x) => (seq(float[k]) y, float[k] joined)
        {
            none = SequenceEmpty()
            y = Loop (trips, , none) <
                body = b (int64 i, bool go, seq(float[k]) before) => (bool go, seq(float[k]) after)
                <int64[1] first = {0}, int64[1] axis = {0}>
                {
                    end = Unsqueeze(i, axis)
                    part = Slice(x, first, end)
                    after = SequenceInsert(before, part)
                }
            >
            joined = ConcatFromSequence <axis = 0> (y)
        }
    """)
    x = floats(5)
    y, joined = run_model(model, [np.array(4), x])
    assert [len(item) for item in y] == [0, 1, 2, 3]
    assert_array_equal(joined, [*x[:1], *x[:2], *x[:3]])


def test_a_loops_counter_may_be_declared_as_a_list_of_one() -> None:
    model = parse("""
        g (int64[1] trips, float[n] x) => (float[t, 1] y) <bool always = {1}>
        {
            y = Loop (trips, always) <
                body = b (int64[1] i, bool[1] go) => (bool[1] more, float[1] z)
                { more = Identity(go)  z = Gather(x, i) }
            >
        }
    """)
    x = floats(4)
    assert_array_equal(run_model(model, [np.array([3]), x])[0], x[:3, None])


# -- Scan --------------------------------------------------------------------------------------


def scanning(attributes: str) -> onnx.ModelProto:
    """A running sum of x, and x - z at every step."""
    return parse(f"""
        g (float[k] start, float[a, b] x, float[c, d] z)
            => (float[k] total, float[e, f] sums, float[g, h] differences)
        {{
            total, sums, differences = Scan (start, x, z) <
                num_scan_inputs = 2, {attributes}
                body = step (float[k] h, float[k] p, float[k] q)
                    => (float[k] sum, float[k] copy, float[k] difference)
                {{
                    sum = Add(h, p)
                    copy = Identity(sum)
                    difference = Sub(p, q)
                }}
            >
        }}
    """)


@pytest.mark.parametrize("axes", [(0, 0), (1, 0), (-1, -2)])
@pytest.mark.parametrize("directions", [(0, 0), (1, 0), (1, 1)])
@pytest.mark.parametrize("out_axes", [(0, 0), (1, -1)])
@pytest.mark.parametrize("out_directions", [(0, 0), (0, 1)])
def test_a_scan_reads_and_writes_at_any_axis_in_either_direction(
    axes: tuple[int, int],
    directions: tuple[int, int],
    out_axes: tuple[int, int],
    out_directions: tuple[int, int],
) -> None:
    model = scanning(
        f"scan_input_axes = {list(axes)}, scan_input_directions = {list(directions)}, "
        f"scan_output_axes = {list(out_axes)}, scan_output_directions = {list(out_directions)},"
    )
    start, rows, others = floats(3), floats(4, 3), floats(4, 3) + 1  # (time, k)
    x = rows if axes[0] == 0 else rows.T.copy()
    z = others if axes[1] in (0, -2) else others.T.copy()
    total, sums, differences = run_model(model, [start, x, z])
    p, q = (r[::-1] if d else r for r, d in zip((rows, others), directions, strict=True))
    running = start + np.cumsum(p, 0)
    assert_allclose(total, running[-1], rtol=1e-5)
    for got, wanted, axis, backward in zip(
        (sums, differences), (running, p - q), out_axes, out_directions, strict=True
    ):
        wanted = wanted[::-1] if backward else wanted
        assert_allclose(got, wanted if axis == 0 else wanted.T, rtol=1e-5, atol=1e-6)


def test_a_scan_without_directions_and_axes_goes_forward_at_axis_0() -> None:
    start, x, z = floats(3), floats(4, 3), floats(4, 3) + 1
    total, sums, differences = run_model(scanning(""), [start, x, z])
    assert_allclose(total, start + x.sum(0), rtol=1e-5)
    assert_allclose(sums, start + np.cumsum(x, 0), rtol=1e-5)
    assert_array_equal(differences, x - z)


def test_scan_over_an_empty_axis_returns_its_state() -> None:
    total, sums, differences = run_model(scanning(""), [floats(3), floats(0, 3), floats(0, 3)])
    assert_array_equal(total, floats(3))
    assert len(sums) == len(differences) == 0


def test_long_scan_is_sliced_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_AT_ONCE", 4)
    x = torch.arange(22).reshape(2, 11)
    for backward in (False, True):
        steps = list(control._slices(x, 1, backward))
        assert torch.equal(torch.stack(steps, 1), x.flip(1) if backward else x)
