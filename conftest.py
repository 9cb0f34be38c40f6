"""Skip tests that need an optional package, sample large tables, and spare the garbage collector.

`@pytest.mark.sampled("case.operator")`: of a test's parameters, `make test` runs the first case of
each operator, and the rest carries the marker `conformance`. Several names are one key together,
no name is one case of the test; of several markers, each adds its cases to the sample;
`last=True` adds the last case of each key too.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator, Iterator
from importlib.util import find_spec  # by name: a test may replace the module's
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.doctest import DoctestModule

PACKAGE = Path(__file__).parent / "onward"

# Packages that `pip install onward` does not install: the module, and what to ask pip for.
OPTIONAL = {
    "OpenSSL": "onward[signing]",
    "PIL": "onward[images]",
    "accelerate": "'onward[integrations]'",
    "cryptography": "onward[signing]",
    "datasets": "datasets",
    "hypothesis": "hypothesis",
    "lightning": "'onward[integrations]'",
    "material": "onward[docs]",
    "mkdocs": "onward[docs]",
    "model_signing": "onward[signing]",
    "onnxscript": "onnxscript",
    "openvino": "onward[openvino]",
    "optuna": "'onward[sweep]'",
    "peft": "'onward[integrations]'",
    "grpc": "'onward[serve]'",
    "httptools": "'onward[serve]'",
    "orjson": "'onward[serve]'",
    "prometheus_client": "'onward[serve]'",
    "pyarrow": "'onward[data]'",
    "starlette": "'onward[serve]'",
    "tokenizers": "'onward[text]'",
    "uvicorn": "'onward[serve]'",
    "watchfiles": "'onward[serve]'",
    "torch": "onward[torch]",
    "transformers": "transformers",
    "triton": "torch for a GPU, which contains it",
    "yaml": "'onward[train]'",
}

PROVIDERS = {"OpenVINO": "openvino", "Torch": "torch", "Inductor": "torch"}  # -> what they need


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Take the tests and all modules out of garbage collections.

    They are a million objects, which live until the end; each full collection would visit them,
    for a second, and every capture of a module ends in one.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path,
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for doctests in the package alone, where there are any: searching takes seconds."""
    found = yield
    if PACKAGE in file_path.parents and b">>>" in file_path.read_bytes():
        return found
    return [each for each in found if not isinstance(each, DoctestModule)]


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every case outside the sample of its test the marker `conformance`."""
    samples: dict[tuple[Any, ...], list[pytest.Item]] = {}
    cases = [item for item in items if item.get_closest_marker("sampled")]
    for item in cases:
        params = SimpleNamespace(**item.callspec.params)  # type: ignore[attr-defined]
        for number, mark in enumerate(item.iter_markers("sampled")):
            values = [repr(attrgetter(name)(params)) for name in mark.args]
            ends = samples.setdefault((item.nodeid.partition("[")[0], number, *values), [item])
            if mark.kwargs.get("last"):
                ends[1:] = [item]
    chosen = {item for ends in samples.values() for item in ends}
    for item in cases:
        if item not in chosen:
            item.add_marker(pytest.mark.conformance)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a case whose parameters name a provider whose package is missing."""
    for name in _strings(getattr(getattr(item, "callspec", None), "params", {})):
        package = PROVIDERS.get(name.removesuffix("ExecutionProvider"))
        if package is not None and is_missing(package):
            pytest.skip(not_installed(package))


def _strings(value: object) -> Iterator[str]:
    """The strings in a parameter: itself, or those in its lists, tuples and dicts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for part in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _strings(part)


def is_missing(package: str) -> bool:
    return find_spec(package) is None


def not_installed(package: str) -> str:
    return f"{package} is not installed: pip install {OPTIONAL[package]}"


def missing_package(error: BaseException | None) -> str | None:
    """Why a test cannot run: the optional package that it, or a module it imports, asked for.

    An import that failed, or an error (or warning) of Onward's that tells users what to install.
    """
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            package = (error.name or "").split(".")[0]
            if package in OPTIONAL:
                return not_installed(package)
        if not isinstance(error, AssertionError):
            for package, wanted in OPTIONAL.items():
                if f"pip install {wanted}" in str(error) and is_missing(package):
                    return not_installed(package)
        error = error.__cause__ or error.__context__
    return None


def pytest_exception_interact(
    node: pytest.Item | pytest.Collector,
    call: pytest.CallInfo[object],
    report: pytest.CollectReport | pytest.TestReport,
) -> None:
    """Skip a test file that cannot be imported because a package is missing."""
    reason = missing_package(call.excinfo.value) if call.excinfo is not None else None
    if isinstance(report, pytest.CollectReport) and reason is not None:
        report.outcome, report.longrepr = "skipped", (str(node.path), 0, f"Skipped: {reason}")
        _remove_module(str(node.path))


def _remove_module(path: str) -> None:
    """Remove a module that was imported in part, for the next file that imports it."""
    for name, module in list(sys.modules.items()):
        if vars(module).get("__file__") == path:
            del sys.modules[name]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test that asks for a missing package while it runs."""
    report = yield
    reason = missing_package(call.excinfo.value) if call.excinfo is not None else None
    if report.failed and reason is not None:
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"Skipped: {reason}")
    return report
