"""Models with map types: read, written, saved, cloned, and found in subgraphs."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from onward.errors import InvalidModel
from onward.graph.files import load, save
from onward.graph.protos import MapType, from_proto, from_type_proto, to_proto, to_type_proto
from onward.graph.shapes.infer import infer_shapes
from tests.models_ml import dict_vectorizer, zipped_classifier

SCORES = ir.SequenceType(MapType(ir.DataType.INT64, ir.TensorType(ir.DataType.FLOAT)))


def test_a_list_of_maps_is_read_with_its_type() -> None:
    output = load(zipped_classifier()).graph.outputs[1]
    assert output.type == SCORES
    assert output.dtype == ir.DataType.UNDEFINED  # it is not taken for a tensor


def test_a_map_input_is_read_with_its_type() -> None:
    (x,) = load(dict_vectorizer()).graph.inputs
    assert x.type == MapType(ir.DataType.STRING, ir.TensorType(ir.DataType.FLOAT))


def test_reading_and_writing_keeps_types() -> None:
    for proto in (zipped_classifier(), dict_vectorizer()):
        again = to_proto(from_proto(proto))
        assert list(again.graph.input) == list(proto.graph.input)
        assert list(again.graph.output) == list(proto.graph.output)
        assert to_proto(load(proto).clone()).graph.output == proto.graph.output


def test_a_saved_model_declares_its_maps(tmp_path: Path) -> None:
    model = load(zipped_classifier())
    save(model, tmp_path / "model.onnx")
    saved = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(saved)
    assert saved.graph.output[1].type == zipped_classifier().graph.output[1].type
    assert model.graph.outputs[1].type == SCORES  # saving does not change the model


def test_maps_in_subgraphs_keep_their_types() -> None:
    proto = zipped_classifier()
    (zip_map,) = (node for node in proto.graph.node if node.op_type == "ZipMap")
    info = proto.graph.output[1]
    branch = helper.make_graph([zip_map], "branch", [], [info])
    inside = helper.make_node(
        "If", ["c"], ["maps"], then_branch=branch, else_branch=branch, name="if"
    )
    proto.graph.node.remove(zip_map)
    proto.graph.node.append(inside)
    proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    model = load(proto)
    node = model.graph[-1]
    assert node.attributes["then_branch"].as_graph().outputs[0].type == SCORES
    written = to_proto(model).graph.node[-1]
    assert written.attribute[0].g.output[0].type == info.type


def test_a_list_of_maps_without_a_declared_type_is_inferred() -> None:
    proto = zipped_classifier()
    proto.graph.output[1].ClearField("type")
    assert infer_shapes(load(proto)).graph.outputs[1].type == SCORES


def test_every_type_round_trips() -> None:
    inner = helper.make_map_type_proto(
        TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.INT64, [])
    )
    for proto in (
        inner,
        helper.make_sequence_type_proto(inner),
        helper.make_optional_type_proto(inner),
    ):
        kind = from_type_proto(proto)
        assert kind is not None
        assert from_type_proto(to_type_proto(kind)) == kind


def test_other_errors_of_onnx_ir_are_raised() -> None:
    proto = zipped_classifier()
    proto.graph.node[0].input[0] = "nobody"
    with pytest.raises(InvalidModel, match="reads 'nobody', which is not an input"):
        load(proto)
