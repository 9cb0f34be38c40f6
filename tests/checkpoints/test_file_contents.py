"""Contents of training checkpoints are read as they were written."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from onward.checkpoints import file_contents, tensor_files
from onward.checkpoints.file_contents import Contents, StoredOptimizer, StoredParameter


def test_write_then_read_is_identity(tmp_path: Path) -> None:
    w, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.array(4)
    slots = {"first/moments": {"a/w": w * 2}}
    made = Contents(
        {"a/w": StoredParameter(True, w), "b": StoredParameter(False, b)},
        {"epoch": 3, "name": "x"},
        StoredOptimizer(5, 0.1, 0.05, {"moments": {"a/w": w * 2}}),
        "model",
    )
    file_contents.write(tmp_path / "c", made)
    found = file_contents.read(tmp_path / "c")
    assert list(found.parameters) == ["a/w", "b"] and found.model == "model"
    np.testing.assert_array_equal(found.parameters["a/w"].data, w)
    assert found.parameters["b"].data.dtype == np.int64  # type: ignore[union-attr]
    assert found.properties == made.properties
    assert found.optimizer is not None and found.optimizer.learning_rate == 0.05
    np.testing.assert_array_equal(
        found.optimizer.slots["moments"]["a/w"], slots["first/moments"]["a/w"]
    )


def test_file_has_the_documented_properties(tmp_path: Path) -> None:
    made = Contents({"w": StoredParameter(True, np.zeros(2, np.float32))})
    file_contents.write(tmp_path / "c", made)
    properties = tensor_files.read(tmp_path / "c").properties
    assert properties == {
        "parameters": {"w": {"requires_grad": True}},
        "user": {},
        "optimizer": None,
        "nominal": False,
        "model": None,
    }
    file_contents.write(tmp_path / "n", Contents({"w": StoredParameter(True, None)}))
    assert tensor_files.read(tmp_path / "n").properties["nominal"] is True
    assert file_contents.read(tmp_path / "n").parameters["w"].data is None
