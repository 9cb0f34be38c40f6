"""Scanning a model's bytes: what is found, and what is refused."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from onward.errors import InvalidModel, OnwardError
from onward.graph.scan.model_scan import scan_model
from onward.graph.scan.protobuf import RUN, fields, numbers, signed
from tests.models import mlp, serialized


def rich() -> onnx.ModelProto:
    """A model with one of everything that a scan counts."""
    inner = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["r"])],
        "inner",
        [],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, [2])],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    body = [helper.make_node("Neg", ["a"], ["t"]), helper.make_node("Abs", ["t"], ["b"])]
    function = helper.make_function("own", "F", ["a"], ["b"], body, imports)
    nodes = [
        helper.make_node("If", ["c"], ["i"], then_branch=inner, else_branch=inner),
        helper.make_node("F", ["i"], ["f"], domain="own"),
        helper.make_node("F", ["f"], ["g"], domain="own"),
        helper.make_node("Add", ["g", "w"], ["s"]),
        helper.make_node("Cast", ["s"], ["y"], to=TensorProto.FLOAT16),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [2])],
        [numpy_helper.from_array(np.ones(2, np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=10)


def test_a_scan_counts_the_models_parts() -> None:
    scan = scan_model(rich().SerializeToString())
    assert (scan.nodes, scan.nesting, scan.initializers) == (9, 1, 1)
    assert scan.expanded_nodes == 9  # two calls of two nodes each in place of 2 calls and 2 nodes
    assert scan.opsets == {"": 20, "own": 1}
    assert scan.operators["own", "F"] == 2
    assert scan.operators["", "Neg"] == 3
    assert list(scan.functions) == [("own", "F", "")]
    assert scan.weight_bytes == 8
    assert 10 in scan.casts_to
    assert not scan.external
    assert not scan.doubtful


def test_numbers_are_read_as_protobuf_writes_them() -> None:
    assert signed((1 << 64) - 1) == -1
    assert numbers(b"\x01\x80\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 0, 13, 9) == [
        1,
        128,
        -1,
    ]


def test_a_long_unpacked_list_is_one_run() -> None:
    data = b"\x40\x05" * 1000 + b"\x3d\x00\x00\x80\x3f" * 1000
    found = list(fields(data, 0, len(data)))
    assert len(found) < 140
    assert sum(1 for tag, _, _ in found if tag & RUN) == 2


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x00\x01", "a field without a number"),
        (b"\x3b", "of kind 3"),
        (b"\x3a\x05ab", "5 bytes where 2 are left"),
        (b"\x08" + b"\xff" * 11, "a number that does not end"),
        (b"\x08", "a number that does not end"),
        (b"\x0d\x00", "a number that is cut off"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "a field without a number"),
    ],
)
def test_broken_bytes_are_refused_with_the_reason(data: bytes, words: str) -> None:
    with pytest.raises(InvalidModel, match=words):
        scan_model(data)


def test_several_fields_of_one_graph_are_merged() -> None:
    one = serialized(mlp())
    assert scan_model(one + one).nodes == 2 * scan_model(one).nodes  # as protobuf merges them


@pytest.mark.parametrize("seed", range(4))
def test_mutants_are_read_as_protobuf_reads_them_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    whole = rich().SerializeToString()
    both = 0
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 1, 2, 6))):
            at = chance.randrange(len(data))
            data[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
        try:
            scan = scan_model(bytes(data))
        except OnwardError:
            continue
        try:
            proto = onnx.load_model_from_string(bytes(data))
        except DecodeError:
            continue
        both += 1
        assert scan.nodes == nodes_of(proto.graph.node) + sum(
            nodes_of(function.node) for function in proto.functions
        )
    assert both > 20


def nodes_of(nodes: object) -> int:
    """Nodes, and those of their subgraphs."""
    total = 0
    for node in nodes:  # type: ignore[attr-defined]
        total += 1
        for attribute in node.attribute:
            graphs = [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]
            total += sum(nodes_of(graph.node) for graph in graphs)
    return total


def test_a_scan_needs_no_onnx() -> None:
    code = "import sys, onward.graph.scan.model_scan; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"onnx", "onnx_ir", "google.protobuf"} & set(done.stdout.split())
