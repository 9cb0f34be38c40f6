"""ONNX's node tests on each provider: 'default' as a user gets it, the others by themselves.

`gaps/<provider>.txt` lists the known gaps with their reasons. A gap is expected to fail where it
was seen: when it is mended, the test fails (except for random draws, which may pass by luck, and
for rounding, which differs between machines). Where it was tried and not seen, or without the GPU
or with the locale that it is about, the test must pass; in a version or on a processor that was not
tried, both are accepted.

`make test` runs a sample on the providers of SAMPLED; `make conformance` runs the rest, and prints
how many tests each provider passes.
"""

from __future__ import annotations

import functools
import locale
from typing import Any

import pytest

import onward
from conformance import nodes
from onward.providers.defect import ARM, X86, Defect, Platform

ALONE = onward.SessionOptions(disable_fallback=True, log_severity_level=4)
QUIET = onward.SessionOptions(log_severity_level=4)
PROVIDERS = (
    "default",
    "CPUExecutionProvider",
    "OpenVINOExecutionProvider",
    "TorchExecutionProvider",
    "ReferenceExecutionProvider",
)


BY_CHANCE = ("random", "rounding", "CUDA")
# Up to 100 ms a test, or as "default" runs nearly all of them.
SAMPLED = ("OpenVINOExecutionProvider", "ReferenceExecutionProvider", "CPUExecutionProvider")
BY_OPERATOR = ("OpenVINOExecutionProvider",)  # operators written as others are in the survey alone
BY_KERNEL = ("TorchExecutionProvider",)  # `make test` runs the operators that have a kernel


def cases() -> list[Any]:
    found = []
    sample = first_and_last()
    for provider in PROVIDERS:
        if (missing := nodes.missing(provider)) is not None:
            skip = pytest.mark.skip(reason=f"{missing} is not installed")
            found.append(pytest.param(provider, "", marks=skip, id=provider))
            continue
        gaps, here = nodes.gaps(provider), nodes.here(provider)
        for name in nodes.load():
            if provider in BY_OPERATOR and "_expanded" in name:
                continue
            gap = gaps.get(name)
            marks = marks_of(gap, here)
            is_left_out = provider in SAMPLED and name not in sample
            is_left_out |= provider in BY_KERNEL and "_expanded" in name
            if is_left_out and not was_a_bug(gap):
                marks.append(pytest.mark.conformance)
            found.append(pytest.param(provider, name, marks=marks, id=f"{provider}-{name}"))
    return found


def first_and_last() -> set[str]:
    """The first and the last test of each operator."""
    first: dict[str, str] = {}
    last: dict[str, str] = {}
    for name, case in nodes.load().items():
        if len(case.model.graph.node) == 1 and "_expanded" not in name:
            operator = case.model.graph.node[0].op_type
            first.setdefault(operator, name)
            last[operator] = name
    return {*first.values(), *last.values()}


def was_a_bug(gap: Defect | None) -> bool:
    """Whether an engine gave a wrong answer or broke, or differs by version or processor."""
    return gap is not None and bool(gap.bounds or not gap.reason.startswith("it cannot run"))


def marks_of(gap: Defect | None, place: Platform) -> list[pytest.MarkDecorator]:
    """What to expect of a test in a place: that it passes, that it fails, or either."""
    if gap is None or (gap.is_certain(place) and not gap.holds(place)):
        return []
    if (gap.reason.startswith("CUDA") and not has_cuda()) or (
        gap.reason.startswith("locale") and has_locale("en_US.UTF-8")
    ):
        return []
    strict = gap.is_certain(place) and not gap.reason.startswith(BY_CHANCE)
    return [pytest.mark.xfail(reason=gap.reason, strict=strict)]


@functools.cache
def has_cuda() -> bool:
    import torch  # only where there is TorchExecutionProvider

    return bool(torch.cuda.is_available())


@functools.cache
def has_locale(name: str) -> bool:
    before = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, name)
    except locale.Error:
        return False
    locale.setlocale(locale.LC_CTYPE, before)
    return True


@pytest.mark.filterwarnings("ignore")  # ONNX's reference evaluator warns about its own overflows
@pytest.mark.parametrize(("provider", "name"), cases())
def test_node(provider: str, name: str) -> None:
    run(provider, name)


def run(provider: str, name: str) -> None:
    case = nodes.load()[name]
    if provider == "default":
        session = onward.InferenceSession(case.model, QUIET)
    else:
        session = onward.InferenceSession(case.model, ALONE, [provider])
    check(session, name)


def check(session: Any, name: str) -> None:
    """Run a session on a test's feeds, and hold what it gives against what ONNX expects."""
    case = nodes.load()[name]
    inputs = [arg.name for arg in session.get_inputs()]
    assert case.data_sets
    for feeds, wanted in case.data_sets:
        results = session.run(None, dict(zip(inputs, map(nodes.read, feeds), strict=False)))
        assert len(results) == len(wanted)
        for got, expected in zip(results, map(nodes.read, wanted), strict=True):
            nodes.check(got, expected, case)


def test_no_gap_is_forgotten() -> None:
    """Every gap names a test that exists."""
    for provider in PROVIDERS:
        assert not set(nodes.gaps(provider)) - set(nodes.load())


@pytest.mark.parametrize(
    ("line", "version", "architecture", "expected"),
    [
        ("test_log: it cannot", "2026.4.1", ARM, "fails"),
        ("test_log: it cannot", "2026.4.1", X86, "fails"),
        ("test_log [aarch64]: it cannot", "2026.4.1", ARM, "fails"),
        ("test_log [aarch64]: it cannot", "2026.4.1", X86, "passes"),
        ("test_log [aarch64]: it cannot", "2026.4.1", "riscv64", "either"),
        ("test_log [aarch64]: it cannot", "2025.4", ARM, "either"),
        ("test_log [aarch64, until 2026.5]: it cannot", "2026.5", ARM, "passes"),
        ("test_log [since 2026.5]: it cannot", "2026.4", ARM, "either"),
        ("test_log: rounding: in 16 bits", "2026.4.1", ARM, "either"),
    ],
)
def test_a_gap_is_expected_where_it_was_seen(
    line: str, version: str, architecture: str, expected: str
) -> None:
    row = nodes.parse(line, "openvino", "2026.4")
    marks = marks_of(row, Platform(version, architecture))
    strict = [mark.kwargs["strict"] for mark in marks]
    assert strict == {"passes": [], "fails": [True], "either": [False]}[expected]


def test_a_test_without_a_gap_passes() -> None:
    assert marks_of(None, Platform("1.31.1", ARM)) == []
