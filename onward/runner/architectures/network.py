"""NetworkBuilder: a model that is being built, with named weights that a seed decides."""

from __future__ import annotations

from functools import partial
from typing import final

import numpy as np
import onnx_ir as ir

from onward.graph.builder import OpBuilder
from onward.runner.architectures.initial_weights import Initialization, Shape


@final
class NetworkBuilder:
    """A model that is being built: `op` adds its nodes, `weight` its parameters.

    A weight is a function of the seed, its name and its shape, and is drawn when it is first read:
    a large model is built, and its parameters are counted, without drawing one.

    >>> from onward.runner.architectures.initial_weights import ones
    >>> network = NetworkBuilder("scaled", seed=0)
    >>> x = network.op.input("x", "float32", ("batch", 4))
    >>> scale = network.weight("scale", (4,), ones)
    >>> network.op.model(y=network.op.Mul(x, scale)).graph.initializers["scale"].shape
    Shape([4])
    """

    def __init__(self, name: str, seed: int = 0) -> None:
        self.op = OpBuilder(name=name)
        self._seed = seed

    def weight(self, name: str, shape: Shape, draw: Initialization) -> ir.Value:
        """A parameter, or the initial state of a layer such as a running mean."""
        make = partial(_draw, self._seed, name, shape, draw)
        sizes = ir.Shape(shape)
        tensor = ir.LazyTensor(make, ir.DataType.FLOAT, sizes, cache=True, name=name)
        return self.op.initializer(name, tensor)


def _draw(seed: int, name: str, shape: Shape, draw: Initialization) -> ir.TensorProtocol:
    rng = np.random.default_rng([seed, *name.encode()])
    return ir.Tensor(np.ascontiguousarray(draw(rng, shape), np.float32), name=name)
