"""ONNX's node tests on each provider: 'default' as a user gets it, the others by themselves.

`gaps/<provider>.txt` lists the known gaps with their reasons. A gap is expected to fail where it
was seen: when it is mended, the test fails (except for random draws, which may pass by luck, and
for rounding, which differs between machines). Where it was tried and not seen, or without the GPU
or with the locale that it is about, the test must pass; in a version or on a processor that was not
tried, both are accepted.

`make test` runs all on 'default' and a sample on the others; `make conformance` runs the rest, and
prints how many tests each provider passes.
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
BY_OPERATOR = ("OpenVINOExecutionProvider",)  # operators written as others are in the survey alone
OWN_KERNELS = ("TorchExecutionProvider",)  # the sample has the last test of each operator too


def cases() -> list[Any]:
    found = []
    for provider in PROVIDERS:
        if (missing := nodes.missing(provider)) is not None:
            skip = pytest.mark.skip(reason=f"{missing} is not installed")
            found.append(pytest.param(provider, "", marks=skip, id=provider))
            continue
        gaps, here = nodes.gaps(provider), nodes.here(provider)
        chosen = sample(last=provider in OWN_KERNELS)
        for name in nodes.load():
            if provider in BY_OPERATOR and "_expanded" in name:
                continue
            gap = gaps.get(name)
            marks = marks_of(gap, here)
            if provider != "default" and name not in chosen and not was_a_bug(gap):
                marks.append(pytest.mark.conformance)
            found.append(pytest.param(provider, name, marks=marks, id=f"{provider}-{name}"))
    return found


def sample(*, last: bool) -> set[str]:
    """The first test of each operator, and the last one too if asked for."""
    found = set()
    for names in nodes.by_operator().values():
        plain = [name for name in names if "_expanded" not in name]
        found |= {plain[0], plain[-1 if last else 0]}
    return found


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
