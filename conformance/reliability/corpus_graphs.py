"""Malicious models: graphs that are too large or invalid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from conformance.reliability.corpus import (
    called,
    case,
    model,
    node,
    varint,
    written,
)

# -- graphs that are too large or invalid ----------------------------------------------------------


@case("InvalidModel", "calls itself")
def a_function_that_calls_itself(folder: Path) -> Any:
    return called([node("F", ["a"], ["b"], domain="own")])


@case("InvalidModel", "calls itself")
def two_functions_that_call_each_other(folder: Path) -> Any:
    imports = [helper.make_opsetid("own", 1)]
    back = helper.make_function(
        "own", "G", ["a"], ["b"], [node("F", ["a"], ["b"], domain="own")], imports
    )
    return called([node("G", ["a"], ["b"], domain="own")], back)


@case("InvalidModel", "is defined twice")
def a_function_that_is_defined_twice(folder: Path) -> Any:
    imports = [helper.make_opsetid("", 20)]
    again = helper.make_function("own", "F", ["a"], ["b"], [node("Neg", ["a"], ["b"])], imports)
    return called([node("Neg", ["a"], ["b"])], again)


@case("LimitExceeded", "ModelLimits.expanded_nodes")
def functions_that_double_at_every_level(folder: Path) -> Any:
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    functions = [
        helper.make_function("own", "F0", ["a"], ["b"], [node("Neg", ["a"], ["b"])], imports)
    ]
    for level in range(1, 60):
        inner = f"F{level - 1}"
        body = [
            node(inner, ["a"], ["c"], domain="own"),
            node(inner, ["c"], ["b"], domain="own"),
        ]
        functions.append(helper.make_function("own", f"F{level}", ["a"], ["b"], body, imports))
    call = node("F59", ["x"], ["y"], domain="own")
    return written(model([call], functions=functions, domains=["own"]))


def nested(depth: int) -> bytes:
    """Graphs inside each other, written by hand: protobuf itself stops at a hundred messages."""
    message = b""
    for _ in range(depth):  # graph { node { attribute { g: ... } } }
        for tag in (b"\x32", b"\x2a", b"\x0a"):
            message = tag + varint(len(message)) + message
    return b"\x08\x0a\x3a" + varint(len(message)) + message


@case("LimitExceeded", "ModelLimits.nesting")
def forty_graphs_inside_each_other(folder: Path) -> Any:
    return nested(40)


@case("LimitExceeded", "ModelLimits.nesting")
def ten_thousand_graphs_inside_each_other(folder: Path) -> Any:
    return nested(10_000)


@case("InvalidModel", "nests more than")
def a_type_of_ten_thousand_sequences(folder: Path) -> Any:
    message = b""
    for _ in range(10_000):
        inner = b"\x0a" + varint(len(message)) + message
        message = b"\x22" + varint(len(inner)) + inner
    value = b"\x0a\x01x\x12" + varint(len(message)) + message
    graph = b"\x5a" + varint(len(value)) + value
    return b"\x08\x0a\x3a" + varint(len(graph)) + graph


@case("LimitExceeded", "ModelLimits.nodes")
def a_million_tiny_nodes(folder: Path) -> Any:
    one = node("Neg", ["x"], ["y"]).SerializeToString()
    graph = (b"\x0a" + varint(len(one)) + one) * 1_000_000
    return b"\x08\x0a\x3a" + varint(len(graph)) + graph


@case("LimitExceeded", "ModelLimits.node_values")
def a_node_with_a_million_inputs(folder: Path) -> Any:
    return written(model([helper.make_node("Sum", ["x"] * 1_000_000, ["y"])]))


@case("LimitExceeded", "ModelLimits.name_bytes")
def a_name_of_ten_million_letters(folder: Path) -> Any:
    return written(model([helper.make_node("N" * 10_000_000, ["x"], ["y"])]))


@case("LimitExceeded", "ModelLimits.file_bytes")
def a_file_beyond_two_gibibytes(folder: Path) -> Any:
    path = folder / "model.onnx"
    with path.open("wb") as file:
        file.truncate((1 << 31) + 1)  # sparse: it takes no room on the disk
    return path


@case("LimitExceeded", "unknown domain 'evil.domain'")
def an_operator_of_an_unknown_domain(folder: Path) -> Any:
    return written(
        model([node("Run", ["x"], ["y"], domain="evil.domain")], domains=["evil.domain"])
    )


@case("LimitExceeded", "unknown domain 'evil.domain'")
def an_unknown_domain_inside_a_function(folder: Path) -> Any:
    return called([node("Run", ["a"], ["b"], domain="evil.domain")])


@case("LimitExceeded", "another engine's compiled program")
def an_engines_program_in_the_model(folder: Path) -> Any:
    program = node("EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=1,
                   ep_cache_context=b"\x7fELF")  # fmt: skip
    return written(model([program], domains=["com.microsoft"]))


@case("LimitExceeded", "another engine's compiled program")
def an_engines_program_by_its_path(folder: Path) -> Any:
    program = node("EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=0,
                   ep_cache_context="../../evil.so")  # fmt: skip
    return written(model([program], domains=["com.microsoft"]))


@case("InvalidModel", "circle")
def nodes_that_depend_on_each_other(folder: Path) -> Any:
    return written(model([node("Add", ["x", "b"], ["a"]), node("Neg", ["a"], ["b"]),
                          node("Neg", ["b"], ["y"])]))  # fmt: skip


@case("InvalidModel", "'a'")
def two_nodes_that_make_one_value(folder: Path) -> Any:
    twice = [node("Neg", ["x"], ["a"]), node("Abs", ["x"], ["a"]), node("Neg", ["a"], ["y"])]
    return written(model(twice))


@case("InvalidModel", "reads 'ghost', which is not an input")
def a_node_that_reads_a_missing_value(folder: Path) -> Any:
    return written(model([node("Add", ["x", "ghost"], ["y"])]))


@case("InvalidModel", "the model's output 'y' is not an input")
def an_output_without_a_producer(folder: Path) -> Any:
    return written(model([node("Neg", ["x"], ["z"])]))


@case("InvalidModel", "the model could not be prepared")
def an_attribute_of_the_wrong_type(folder: Path) -> Any:
    return written(model([node("Transpose", ["x"], ["y"], perm="up")]))


@case("UnsupportedModel", "no provider runs ai.onnx::Frobnicate")
def an_operator_that_does_not_exist(folder: Path) -> Any:
    return written(model([node("Frobnicate", ["x"], ["y"])]))


@case("InvalidModel", "no opset 1000000000 of ai.onnx exists")
def an_opset_of_a_billion(folder: Path) -> Any:
    return written(model([node("Neg", ["x"], ["y"])], opset=10**9))


@case("InvalidModel", "no opset -3 of ai.onnx exists")
def a_negative_opset(folder: Path) -> Any:
    return written(model([node("Neg", ["x"], ["y"])], opset=-3))


@case("InvalidModel", "the model could not be prepared")
def a_scale_that_is_no_number(folder: Path) -> Any:
    scales = numpy_helper.from_array(np.array([np.nan], np.float32), "s")
    return written(model([node("Resize", ["x", "", "s"], ["y"])], [scales]))
