"""Settings of every test.

Hypothesis repeats itself and looks at no clock; Ctrl-C can be tested; torch's exporter reads its
table of operators once, which takes half of an export.
"""

from __future__ import annotations

import functools
import importlib.util
import signal
import sys
from typing import Any

if importlib.util.find_spec("hypothesis"):  # what needs it is skipped elsewhere
    from hypothesis import settings

    settings.register_profile("onward", deadline=None, derandomize=True, print_blob=True)
    settings.load_profile("onward")

# A shell that starts the tests in the background has them, and all their children, ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup() -> None:
    exporter = sys.modules.get("torch.onnx._internal.exporter._registration")
    if exporter is not None and not isinstance(exporter.ONNXRegistry, _CachedRegistry):
        exporter.ONNXRegistry = _CachedRegistry(exporter.ONNXRegistry)  # type: ignore[attr-defined]


class _CachedRegistry:
    """torch's class of the same name, whose `from_torchlib` copies the table of the first call."""

    def __init__(self, registry: Any) -> None:
        self._registry, self._read = registry, functools.cache(registry.from_torchlib)

    def __call__(self) -> _CachedRegistry:
        return self

    def from_torchlib(self, *opset: int, **named: int) -> Any:
        found, copied = self._read(*opset, **named), self._registry()
        copied._opset_version = found.opset_version
        copied.functions = {
            target: list(functions) for target, functions in found.functions.items()
        }
        return copied
