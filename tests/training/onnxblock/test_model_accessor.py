"""base, empty_base and custom_op_library: one at a time, closed at the end."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from onward.training import onnxblock
from tests.training.nets import mlp, opened


def test_blocks_write_into_a_copy() -> None:
    model = mlp()
    with onnxblock.base(model) as handle:
        onnxblock.blocks.Abs()("output")
        assert handle.model is not model
    assert len(model.graph.node) == 3
    assert len(handle.model.graph.node) == 4


def test_nested_models_are_refused() -> None:
    law = "Base onnx model already exists. Cannot create multiple ModelAccessors."
    for inner in (lambda: onnxblock.base(mlp()), onnxblock.empty_base):
        with onnxblock.base(mlp()), pytest.raises(RuntimeError, match=law):
            inner().__enter__()
    with onnxblock.empty_base():  # the first one is gone
        pass


def test_a_model_closes_when_its_body_fails() -> None:
    with pytest.raises(ZeroDivisionError), onnxblock.base(mlp()):
        raise ZeroDivisionError
    with onnxblock.base(mlp()):
        pass


def test_model_of_none_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"Base onnx model cannot be None.*empty_base"):
        onnxblock.base(None).__enter__()


@pytest.mark.parametrize(("asked", "got"), [(None, 26), (15, 15), (28, 26)])
def test_an_empty_model_is_of_an_opset_that_stock_onnxruntime_loads(
    asked: int | None, got: int
) -> None:
    with onnxblock.empty_base(opset_version=asked) as handle:
        handle.model.graph.input.append(mlp().graph.input[0])
        onnxblock.blocks.Neg()("input")
    versions = {each.domain: each.version for each in handle.model.opset_import}
    assert versions == {"": got, "com.microsoft": 1}
    output = handle.model.graph.node[0].output[0]
    handle.model.graph.output.add(name=output)
    opened(handle.model)


def test_model_over_2_gb_needs_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(mlp(), path, save_as_external_data=True, location="weights", size_threshold=0)
    monkeypatch.setattr("onward.training.onnxblock.model_accessor.PROTOBUF_LIMIT", 10)
    with pytest.raises(RuntimeError, match=r"This model is > 2GB \([\d,]+ bytes\).*pass in a path"):
        onnxblock.base(mlp()).__enter__()
    with onnxblock.base(onnx.load(path, load_external_data=False), model_path=str(path)) as handle:
        assert handle.folder == tmp_path


def test_custom_op_library_must_exist_and_be_the_only_one(tmp_path: Path) -> None:
    library = tmp_path / "ops.so"
    library.write_bytes(b"")
    with onnxblock.custom_op_library(library) as path:
        assert path == library
        with pytest.raises(RuntimeError, match="CustomOp library already set"):
            onnxblock.custom_op_library(library).__enter__()
    with pytest.raises(RuntimeError, match=r"Custom op library path .*none.so does not exist"):
        onnxblock.custom_op_library(tmp_path / "none.so").__enter__()
