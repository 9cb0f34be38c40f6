"""BoundSession: runs read and write bound arrays without copies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onward.errors import FeedError, InvalidModel, OptionError, ProviderError
from onward.graph.builder import OpBuilder
from onward.providers.options import SessionOptions
from onward.providers.ort.bound_session import BoundSession, copy_to_ort, to_numpy

QUIET = SessionOptions(log_severity_level=4)


def affine() -> bytes:
    op = OpBuilder()
    x = op.input("x", "float32", ("n", 2))
    model = op.model(twice=op.Mul(x, 2.0), more=op.Add(x, 1.0))
    model.metadata_props["onward.inputs"] = '["x"]'
    return ir.to_proto(model).SerializeToString()


def update() -> bytes:
    op = OpBuilder()
    p, g = op.input("p", "float32", (3,)), op.input("g", "float32", (3,))
    return ir.to_proto(op.model(new=op.Sub(p, g))).SerializeToString()


def test_bound_input_is_read_at_each_run() -> None:
    session = BoundSession(affine())
    x = np.ones((1, 2), np.float32)
    session.bind_input("x", x)
    twice, more = session.run()
    x[...] = 5
    again, _ = session.run()
    np.testing.assert_array_equal(to_numpy(twice), [[2, 2]])  # its memory was not reused
    np.testing.assert_array_equal(to_numpy(more), [[2, 2]])
    np.testing.assert_array_equal(to_numpy(again), [[10, 10]])


def test_shapes_may_change_between_runs() -> None:
    session = BoundSession(affine())
    for rows in (1, 4, 2):
        session.bind_input("x", np.ones((rows, 2), np.float32))
        assert [value.shape() for value in session.run()] == [[rows, 2], [rows, 2]]


def test_output_bound_to_the_memory_of_its_input() -> None:
    session = BoundSession(update())
    p, g = np.arange(3, dtype=np.float32), np.ones(3, np.float32)
    session.bind_input("p", p)
    session.bind_input("g", g)
    session.bind_output("new", p)
    assert session.run() == []
    session.run()
    np.testing.assert_array_equal(p, [-2, -1, 0])
    session.bind_output("new", None)
    [fresh] = session.run()
    np.testing.assert_array_equal(to_numpy(fresh), [-3, -2, -1])
    np.testing.assert_array_equal(p, [-2, -1, 0])


def test_outputs_in_the_requested_order() -> None:
    session = BoundSession(affine())
    session.bind_input("x", np.ones((1, 2), np.float32))
    more, twice = session.run(["more", "twice"])
    [alone] = session.run(["twice"])
    assert to_numpy(more)[0, 0] == 2 and to_numpy(twice)[0, 0] == 2
    assert to_numpy(alone)[0, 0] == 2 and alone.data_ptr() != twice.data_ptr()


def test_bind_an_ort_value() -> None:
    session = BoundSession(affine())
    session.bind_input("x", copy_to_ort(np.full((1, 2), 3, np.float32)))
    assert to_numpy(session.run(["twice"])[0])[0, 0] == 6


def test_sequences_are_lists() -> None:
    op = OpBuilder()
    xs = ir.val("xs", type=ir.SequenceType(ir.TensorType(ir.DataType.FLOAT)))
    op.graph.inputs.append(xs)
    first = op.SequenceAt(xs, np.int64(0))
    model = op.model(ys=op.SequenceConstruct(first, first))
    session = BoundSession(ir.to_proto(model).SerializeToString())
    results = session.run_unbound({"xs": [np.ones(2, np.float32)]})
    assert [array.tolist() for array in results["ys"]] == [[1, 1], [1, 1]]


def test_names_types_and_metadata(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(affine())
    session = BoundSession(path)
    assert session.input_names == ["x"] and session.output_names == ["twice", "more"]
    assert session.input_types == {"x": "tensor(float)"}
    assert session.inputs["x"].dtype == np.float32
    assert session.metadata == {"onward.inputs": '["x"]'}


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.ones((1, 2)), r"input 'x' is a tensor\(float\) of shape \(n, 2\), not float64"),
        (np.ones((1, 3), np.float32), r"not float32 of shape \(1, 3\)"),
        (np.ones((2, 1), np.float32).T[:, :1], r"not float32 of shape \(1, 1\)"),
        (
            np.ones((2, 4), np.float32)[:, ::2],
            "the array is not contiguous\nbind a C-contiguous array",
        ),
        ([1.0, 2.0], "not list\nbind a numpy array"),
    ],
)
def test_array_that_does_not_fit_is_refused(array: np.ndarray, words: str) -> None:
    with pytest.raises(FeedError, match=words):
        BoundSession(affine()).bind_input("x", array)


def test_unknown_names_missing_inputs_and_read_only_memory_are_refused() -> None:
    session = BoundSession(affine())
    with pytest.raises(OptionError, match="the graph has no input 'y'\nit has 'x'"):
        session.bind_input("y", np.ones(1, np.float32))
    with pytest.raises(OptionError, match="the graph has no output 'y'\nit has 'twice', 'more'"):
        session.bind_output("y", np.ones(1, np.float32))
    with pytest.raises(FeedError, match="input 'x' is not bound"):
        session.run()
    locked = np.ones((1, 2), np.float32)
    locked.flags.writeable = False
    with pytest.raises(FeedError, match=r"output 'twice': the array is read-only"):
        session.bind_output("twice", locked)


def test_failed_run_is_a_provider_error() -> None:
    op = OpBuilder()
    x, i = op.input("x", "float32", (2,)), op.input("i", "int64", ("n",))
    model = op.model(y=op.Gather(x, i))
    session = BoundSession(ir.to_proto(model).SerializeToString(), QUIET)
    session.bind_input("x", np.ones(2, np.float32))
    session.bind_input("i", np.array([7]))
    with pytest.raises(ProviderError, match=r"onnxruntime failed: .*Gather"):
        session.run()
    session.bind_input("i", np.array([1]))
    assert to_numpy(session.run()[0]).tolist() == [1]


def test_invalid_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(InvalidModel):
        BoundSession(path)
    op = OpBuilder()
    x = op.input("x", "float32", (2,))
    op.graph.opset_imports["nowhere"] = 1
    strange = op.model(y=op.node("Strange", [x], {}, domain="nowhere"))
    with pytest.raises(InvalidModel, match="onnxruntime cannot open the model: "):
        BoundSession(ir.to_proto(strange).SerializeToString(), QUIET)


def test_import_loads_onnxruntime_and_numpy_only() -> None:
    code = (
        "import sys, onward.providers.ort.bound_session\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'onnx', 'onnx_ir', 'onnxscript', 'torch', 'ml_dtypes'}, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("shape", [(1000,), (), (0, 3)])
def test_copy_to_ort_owns_its_memory(shape: tuple[int, ...]) -> None:
    source = np.full(shape, 7, np.float32)
    value = copy_to_ort(source)
    array = to_numpy(value)
    source[...] = 0
    del value
    np.testing.assert_array_equal(array, np.full(shape, 7, np.float32))


def test_external_data_is_found(tmp_path: Path) -> None:
    op = OpBuilder()
    x = op.input("x", "float32", (64, 64))
    w = op.initializer("w", np.full((64, 64), 3, np.float32))
    proto = ir.to_proto(op.model(y=op.Mul(x, w)))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data")
    session = BoundSession(tmp_path / "m.onnx")
    session.bind_input("x", np.ones((64, 64), np.float32))
    assert to_numpy(session.run()[0])[5, 5] == 3
