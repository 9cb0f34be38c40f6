"""Dropout masks are computed where they are read."""

from __future__ import annotations

import numpy as np

import onward
from onward import losses, optimizers
from onward.passes.random_functions import DROPOUT_MASK, calls
from onward.programs.build import build_program
from onward.providers.torch.training.repeated_masks import repeat_masks


def test_every_reader_has_a_mask_right_before_it() -> None:
    op = onward.OpBuilder()
    x = op.input("x", "float32", (4, 3))
    w = op.initializer("w", np.ones((3, 5), np.float32))
    y = op.Dropout(op.MatMul(x, w), np.float32(0.5), np.array(True))
    program = build_program(op.model(y=y), losses.CrossEntropy(), optimizers.SGD(), {"outputs": []})
    train = program.train
    [mask] = calls(train.graph, DROPOUT_MASK)
    readers = len(list(mask.outputs[0].uses()))
    assert readers == 2  # forward and backward
    repeat_masks(train)
    masks = calls(train.graph, DROPOUT_MASK)
    assert [len(list(each.outputs[0].uses())) for each in masks] == [1, 1]
    order = list(train.graph)
    reader, _ = next(iter(masks[1].outputs[0].uses()))
    assert order.index(reader) == order.index(masks[1]) + 1
    assert masks[0].attributes["node"].value == masks[1].attributes["node"].value
