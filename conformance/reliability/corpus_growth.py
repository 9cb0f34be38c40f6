"""Malicious models: constants that grow when they are folded."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from conformance.reliability.corpus import (
    HUGE,
    INT64,
    STRING,
    called,
    case,
    folded,
    info,
    ints,
    model,
    node,
    ones,
    scalar,
    written,
)

# -- constants that would grow ---------------------------------------------------------------------

GROWS = "ModelLimits.folded_elements"


@case("LimitExceeded", GROWS)
def a_constant_of_a_huge_shape(folder: Path) -> Any:
    return folded([node("ConstantOfShape", ["s"], ["big"])], ints("s", HUGE))


@case("LimitExceeded", GROWS)
def a_constant_of_a_shape_that_is_computed(folder: Path) -> Any:
    square = node("Mul", ["s", "s"], ["t"])
    return folded([square, node("ConstantOfShape", ["t"], ["big"])], ints("s", 1 << 20))


@case("LimitExceeded", GROWS)
def an_expanded_scalar(folder: Path) -> Any:
    return folded([node("Expand", ["f", "s"], ["big"])], ones("f", 1), ints("s", HUGE))


@case("LimitExceeded", GROWS)
def a_tiled_scalar(folder: Path) -> Any:
    return folded([node("Tile", ["f", "s"], ["big"])], ones("f", 1), ints("s", HUGE))


@case("LimitExceeded", GROWS)
def a_range_without_end(folder: Path) -> Any:
    numbers = [scalar("a", 0), scalar("b", HUGE), scalar("c", 1)]
    return folded([node("Range", ["a", "b", "c"], ["big"])], *numbers)


@case("LimitExceeded", GROWS)
def a_padded_scalar(folder: Path) -> Any:
    return folded([node("Pad", ["f", "s"], ["big"])], ones("f", 1), ints("s", 0, HUGE))


@case("LimitExceeded", GROWS)
def a_resized_pixel(folder: Path) -> Any:
    sizes = ints("s", 1, 1, 1 << 20, 1 << 20)
    return folded([node("Resize", ["f", "", "", "s"], ["big"])], ones("f", 1, 1, 1, 1), sizes)


@case("LimitExceeded", GROWS)
def a_scaled_pixel(folder: Path) -> Any:
    scales = numpy_helper.from_array(np.array([1, 1, 2**20, 2**20], np.float32), "s")
    return folded([node("Resize", ["f", "", "s"], ["big"])], ones("f", 1, 1, 1, 1), scales)


@case("LimitExceeded", GROWS)
def a_one_hot_of_huge_depth(folder: Path) -> Any:
    return folded(
        [node("OneHot", ["i", "d", "v"], ["big"])], ints("i", 0), scalar("d", HUGE), ones("v", 2)
    )


@case("LimitExceeded", GROWS)
def a_constant_that_doubles_forty_times(folder: Path) -> Any:
    names = ["f", *(f"v{i}" for i in range(39)), "big"]
    pairs = itertools.pairwise(names)
    return folded([node("Concat", [a, a], [b], axis=0) for a, b in pairs], ones("f", 1))


@case("LimitExceeded", GROWS)
def a_sum_that_is_an_outer_product(folder: Path) -> Any:
    sizes = (ones("a", 1 << 16, 1), ones("b", 1, 1 << 16))
    return folded([node("Add", ["a", "b"], ["big"])], *sizes)


@case("LimitExceeded", GROWS)
def a_product_that_is_an_outer_product(folder: Path) -> Any:
    sizes = (ones("a", 1 << 16, 1), ones("b", 1, 1 << 16))
    return folded([node("MatMul", ["a", "b"], ["big"])], *sizes)


@case("LimitExceeded", GROWS)
def a_window_of_huge_size(folder: Path) -> Any:
    return folded([node("HannWindow", ["s"], ["big"])], scalar("s", HUGE))


@case("LimitExceeded", GROWS)
def a_crop_that_pads(folder: Path) -> Any:
    return folded([node("CenterCropPad", ["f", "s"], ["big"])], ones("f", 1), ints("s", HUGE))


@case("LimitExceeded", GROWS)
def a_gather_of_many_rows(folder: Path) -> Any:
    rows = numpy_helper.from_array(np.zeros(1 << 15, np.int64), "i")
    return folded([node("Gather", ["f", "i"], ["big"])], ones("f", 1, 1 << 16), rows)


@case("LimitExceeded", GROWS)
def the_shape_of_a_huge_input(folder: Path) -> Any:
    nodes = [node("Shape", ["x"], ["s"]), node("ConstantOfShape", ["s"], ["big"])]
    return folded(nodes, inputs=[info("x", (1 << 39,))])


@case("LimitExceeded", GROWS)
def a_text_that_doubles_forty_times(folder: Path) -> Any:
    names = ["t", *(f"v{i}" for i in range(39)), "z"]
    nodes = [node("StringConcat", [a, a], [b]) for a, b in itertools.pairwise(names)]
    first = helper.make_tensor("t", STRING, [1], [b"boom"])
    outputs = [info("y", None), info("z", None, STRING)]
    return written(model([*nodes, node("Neg", ["x"], ["y"])], [first], outputs=outputs))


@case("LimitExceeded", GROWS)
def a_bomb_in_a_branch(folder: Path) -> Any:
    inner = helper.make_graph(
        [node("ConstantOfShape", ["s"], ["r"])], "inner", [], [info("r", None)]
    )
    choice = node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    inputs = [info("x"), info("c", (), TensorProto.BOOL)]
    return written(model([choice], [ints("s", HUGE)], inputs=inputs))


@case("LimitExceeded", GROWS)
def a_bomb_in_a_loop(folder: Path) -> Any:
    inner = helper.make_graph(
        [node("Expand", ["f", "s"], ["r"]), node("Identity", ["go"], ["on"])],
        "body",
        [info("i", (), INT64), info("go", (), TensorProto.BOOL)],
        [info("on", (), TensorProto.BOOL), info("r", None)],
    )
    loop = node("Loop", ["n", ""], ["y"], body=inner)
    return written(model([loop], [scalar("n", 2), ints("s", HUGE), ones("f", 1)]))


@case("LimitExceeded", GROWS)
def a_bomb_in_a_function(folder: Path) -> Any:
    body = [
        node("Constant", [], ["s"], value=ints("", HUGE)),
        node("ConstantOfShape", ["s"], ["big"]),
        node("ReduceMax", ["big"], ["most"], keepdims=0),
        node("Add", ["a", "most"], ["b"]),
    ]
    return called(body)


@case("LimitExceeded", "ModelLimits.folding_work")
def many_constants_of_modest_size(folder: Path) -> Any:
    nodes = [node("ConstantOfShape", ["s"], [f"v{i}"]) for i in range(100)]
    total = node("Max", [f"v{i}" for i in range(100)], ["big"])
    return folded([*nodes, total], ints("s", 1 << 27))


@case("LimitExceeded", "ModelLimits.folding_work")
def a_long_chain_of_products(folder: Path) -> Any:
    names = ["w", *(f"v{i}" for i in range(199)), "big"]
    chain = [node("MatMul", [a, "w"], [b]) for a, b in itertools.pairwise(names)]
    return folded([node("ConstantOfShape", ["s"], ["w"]), *chain], ints("s", 4000, 4000))
