"""Tests that need an optional package are skipped, by its name, where it is not installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Generator

import pytest

# What `pip install onward` does not bring: the module, and what to ask pip for.
OPTIONAL = {
    "OpenSSL": "onward[signing]",
    "PIL": "onward[images]",
    "cryptography": "onward[signing]",
    "hypothesis": "hypothesis",
    "material": "onward[docs]",
    "mkdocs": "onward[docs]",
    "model_signing": "onward[signing]",
    "openvino": "onward[openvino]",
    "torch": "onward[torch]",
}


PROVIDERS = {"OpenVINO": "openvino", "Torch": "torch", "Inductor": "torch"}  # -> what they need


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A case of a table that is about a provider is skipped where its package is missing."""
    for value in getattr(getattr(item, "callspec", None), "params", {}).values():
        name = value.removesuffix("ExecutionProvider") if isinstance(value, str) else ""
        package = PROVIDERS.get(name)
        if package is not None and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install {OPTIONAL[package]}")


def missing_package(error: BaseException | None) -> str | None:
    """Why a test cannot run: the optional package that it, or what it imports, asked for."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            package = (error.name or "").split(".")[0]
            if package in OPTIONAL:
                return f"{package} is not installed: pip install {OPTIONAL[package]}"
        error = error.__cause__ or error.__context__
    return None


def pytest_exception_interact(
    node: pytest.Item | pytest.Collector,
    call: pytest.CallInfo[object],
    report: pytest.CollectReport | pytest.TestReport,
) -> None:
    """A test file that cannot be imported for want of a package is skipped."""
    reason = missing_package(call.excinfo.value) if call.excinfo is not None else None
    if isinstance(report, pytest.CollectReport) and reason is not None:
        report.outcome, report.longrepr = "skipped", (str(node.path), 0, f"Skipped: {reason}")
        _forget(str(node.path))


def _forget(path: str) -> None:
    """Remove the half of a module that pytest leaves behind, for the next file that imports it."""
    for name, module in list(sys.modules.items()):
        if vars(module).get("__file__") == path:
            del sys.modules[name]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that imports a package while it runs is skipped too."""
    report = yield
    reason = missing_package(call.excinfo.value) if call.excinfo is not None else None
    if report.failed and reason is not None:
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"Skipped: {reason}")
    return report
