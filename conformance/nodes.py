"""ONNX's own node tests: 1,884 small models with inputs and expected outputs."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from onward.providers.defect import Defect, Platform, architecture

GAPS = Path(__file__).parent / "gaps"
CACHE = Path(__file__).parents[1] / ".pytest_cache" / "d" / "node-cases"
# Each provider's engine package, and the oldest version that its list was tested with.
ENGINES = {
    "default": ("onnxruntime", "1.31"),
    "CPUExecutionProvider": ("onnxruntime", "1.31"),
    "OpenVINOExecutionProvider": ("openvino", "2026.4"),
    "TorchExecutionProvider": ("torch", "2.11"),
    "ReferenceExecutionProvider": ("onnx", "1.23"),
}
_LINE = re.compile(r"(?P<name>\w+)(?: \[(?P<where>[^\]]*)\])?: (?P<reason>.*)")


@functools.cache
def load() -> dict[str, TestCase]:
    """Every node test by its name, from a cache: ONNX takes ten seconds to make them."""
    path = CACHE / f"onnx-{onnx.__version__}-numpy-{np.__version__}.pickle"
    if path.exists():
        return pickle.loads(path.read_bytes())  # type: ignore[no-any-return]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ONNX's own generators warn
        cases = {case.name: case for case in load_model_tests(kind="node")}
    with contextlib.suppress(OSError):  # where nothing can be written, they are made each time
        CACHE.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(pickle.dumps(cases))
        unfinished.replace(path)  # at once: other processes may be reading
    return cases


@functools.cache
def by_operator() -> dict[str, list[str]]:
    """The names of each operator's tests; one that writes it as others follows the test itself."""
    operators: dict[str, str] = {}
    found: dict[str, list[str]] = {}
    for name, case in load().items():
        plain = name.partition("_expanded")[0]
        if plain == name and len(case.model.graph.node) == 1:
            operators[name] = case.model.graph.node[0].op_type
        if plain in operators:
            found.setdefault(operators[plain], []).append(name)
    return found


def gaps(provider: str) -> dict[str, Defect]:
    """The tests that a provider is known to fail: where, and why.

    A line is `name: reason`, or `name [aarch64, since 1.30, until 1.31]: reason`, where each of
    the three may be left out.
    """
    path = GAPS / f"{provider}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [parse(line, *ENGINES[provider]) for line in lines if line and line[0] != "#"]
    return {row.subject: row for row in rows}


def parse(line: str, engine: str, since: str) -> Defect:
    """One line of a list of gaps."""
    found = _LINE.fullmatch(line)
    assert found, f"not a gap: {line!r}"
    words = [word.split() for word in (found["where"] or "").split(",") if word]
    versions = {word[0]: word[1] for word in words if len(word) == 2}
    architectures = tuple(word[0] for word in words if len(word) == 1)
    return Defect(
        found["name"],
        engine,
        found["reason"],
        **{"since": since, **versions},
        architectures=architectures,
    )


def missing(provider: str) -> str | None:
    """The package that a provider needs, if it is not installed."""
    engine, _ = ENGINES[provider]
    return None if importlib.util.find_spec(engine) else engine


def here(provider: str) -> Platform:
    """The version of a provider's engine that is installed, and this processor."""
    return Platform(importlib.metadata.version(ENGINES[provider][0]), architecture())


def read(proto: Any) -> Any:
    """A test's value as a numpy array, a list of them, or None."""
    if isinstance(proto, onnx.TensorProto):
        return numpy_helper.to_array(proto)
    if isinstance(proto, onnx.SequenceProto):
        return numpy_helper.to_list(proto)
    if isinstance(proto, onnx.OptionalProto):
        return numpy_helper.to_optional(proto)
    return proto


def check(got: Any, wanted: Any, case: TestCase) -> None:
    """Assert that a result equals ONNX's expected output, within the test's tolerance."""
    if wanted is None:
        assert got is None
        return
    if isinstance(wanted, (list, tuple)):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            check(one, other, case)
        return
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape
    if wanted.dtype.kind in "OUS":
        np.testing.assert_array_equal(got.astype(str), wanted.astype(str))
        return
    assert got.dtype == wanted.dtype
    if wanted.dtype.kind != "c":
        got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_allclose(got, wanted, rtol=max(case.rtol, 1e-3), atol=max(case.atol, 1e-6))
