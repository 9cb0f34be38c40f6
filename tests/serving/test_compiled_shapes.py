"""compiled_shapes: which runs an engine may compile in."""

from __future__ import annotations

import numpy as np
import pytest

from onward.serving import compiled_shapes
from onward.serving.compiled_shapes import CompiledShapes, may_compile


def test_engines_that_compile_for_shapes() -> None:
    assert may_compile(["TensorrtExecutionProvider", "CPUExecutionProvider"])
    assert not may_compile(["CUDAExecutionProvider", "CPUExecutionProvider"])


def test_the_first_run_of_each_set_of_shapes_may_compile() -> None:
    shapes = CompiledShapes()

    def compiles(*sizes: int) -> bool:
        feeds = {f"x{i}": np.zeros((size, 2)) for i, size in enumerate(sizes)}
        return shapes.run(feeds, lambda: shapes.is_compiling)

    assert [compiles(1, 2), compiles(1, 2), compiles(2, 1), compiles(1, 2)] == [
        True, False, True, False,
    ]  # fmt: skip
    assert not shapes.is_compiling


def test_a_run_that_failed_has_not_compiled() -> None:
    shapes = CompiledShapes()
    with pytest.raises(ZeroDivisionError):
        shapes.run({}, lambda: 1 // 0)
    assert not shapes.is_compiling
    assert shapes.run({}, lambda: shapes.is_compiling)


def test_few_sets_of_shapes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_shapes, "_MOST", 2)
    shapes = CompiledShapes()
    for size in range(3):
        shapes.run({"x": np.zeros(size)}, lambda: None)
    assert shapes.run({"x": np.zeros(0)}, lambda: shapes.is_compiling)
