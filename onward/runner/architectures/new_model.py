"""The architectures by name, and `new_model`, which builds an untrained model of one.

model = new_model("resnet", depth=18, classes=10, image=(3, 32, 32))
onward.save(model, "resnet.onnx")
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from onward.programs.select import likely_parameters, weights
from onward.runner.architectures.architecture_options import (
    Architecture,
    check_options,
    options_of,
    unknown_architecture,
)
from onward.runner.architectures.autoencoder import autoencoder
from onward.runner.architectures.bert import bert
from onward.runner.architectures.cnn import cnn
from onward.runner.architectures.gpt2 import gpt2
from onward.runner.architectures.lstm import lstm
from onward.runner.architectures.mlp import mlp
from onward.runner.architectures.mobilenet import mobilenet
from onward.runner.architectures.network import NetworkBuilder
from onward.runner.architectures.resnet import resnet
from onward.runner.architectures.squeezenet import squeezenet
from onward.runner.architectures.transformer import transformer
from onward.runner.architectures.unet import unet
from onward.runner.architectures.vit import vit
from onward.settings import integer

ARCHITECTURES: dict[str, Architecture] = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet": resnet,
    "squeezenet": squeezenet,
    "mobilenet": mobilenet,
    "unet": unet,
    "transformer": transformer,
    "vit": vit,
    "bert": bert,
    "gpt2": gpt2,
    "lstm": lstm,
    "autoencoder": autoencoder,
}


def new_model(name: str, seed: int = 0, **options: Any) -> ir.Model:
    """Build an untrained model of an architecture, initialised as its paper says.

    Weights are drawn when they are first read, from the seed and their names.

    >>> model = new_model("mlp", features=4, hidden=(8,), classes=3)
    >>> [value.name for value in model.graph.inputs], count_parameters(model)
    (['x'], 67)
    """
    if name not in ARCHITECTURES:
        raise unknown_architecture(name, ARCHITECTURES)
    architecture = ARCHITECTURES[name]
    given = check_options(name, options_of(architecture), options)
    return architecture(NetworkBuilder(name, integer(0)(f"{name}: seed", seed)), **given)


def count_parameters(model: ir.Model) -> int:
    """How many numbers training changes; running statistics and constants are not among them."""
    names = likely_parameters(model, weights(model), model.graph.outputs)
    shapes = (model.graph.initializers[name].shape for name in names)
    return sum(math.prod(shape.numpy()) for shape in shapes if shape is not None)
