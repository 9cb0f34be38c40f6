"""Modules that are imported at first use."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onward.lazy import LazyModule

PROGRAM = """
import sys
from onward.lazy import defer_imports

defer_imports("heavy")
defer_imports("heavy")
import light
print(len([f for f in sys.meta_path if type(f).__name__ == "_DeferringFinder"]))
print("imported", light.heavy.__name__ and "used")
print(light.heavy.answer)
"""


def test_a_deferred_module_is_executed_at_first_use(tmp_path: Path) -> None:
    (tmp_path / "heavy.py").write_text("print('ran')\nanswer = 42\n")
    (tmp_path / "light.py").write_text("import heavy\nprint('light')\n")
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["light", "1", "ran", "imported", "used", "42"]


def test_a_missing_module_fails_at_first_use() -> None:
    module: Any = LazyModule("onward.no_such_module")
    assert inspect.unwrap(module) is module  # as doctest looks at every name of a file
    assert not hasattr(module, "__wrapped__")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        _ = module.anything
