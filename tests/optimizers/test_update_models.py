"""Update graphs: their names, their types, and outputs that lie on their inputs' memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import onward
from onward.errors import OptionError
from onward.graph.builder import OpBuilder
from onward.optimizers.adafactor import Adafactor
from onward.optimizers.adagrad import Adagrad
from onward.optimizers.adam import Adam, AdamW
from onward.optimizers.clip import ClipByValue
from onward.optimizers.ema import EMA
from onward.optimizers.lamb import LAMB
from onward.optimizers.lion import Lion
from onward.optimizers.muon import Muon
from onward.optimizers.optimizer import Optimizer, Scalars, Shape
from onward.optimizers.rmsprop import RMSprop
from onward.optimizers.sgd import SGD
from onward.optimizers.update_models import (
    flat_update,
    in_place_hazards,
    named_update,
)
from tests.optimizers.case import Tensors, session

ELEMENTWISE: list[Optimizer] = [
    SGD(),
    SGD(weight_decay=0.1),
    SGD(momentum=0.9, dampening=0.5),
    SGD(momentum=0.9, nesterov=True, weight_decay=0.1, maximize=True),
    Adam(),
    Adam(weight_decay=0.1, amsgrad=True),
    AdamW(),
    AdamW(style="transformers", amsgrad=True),
    RMSprop(),
    RMSprop(centered=True, momentum=0.9, weight_decay=0.1),
    Adagrad(lr_decay=0.1),
    Lion(),
    Lion(weight_decay=0.1, betas=(0.0, 0.9)),
]
WHOLE: list[Optimizer] = [
    LAMB(),
    LAMB(weight_decay=0.1),
    Adafactor(),
    Adafactor(weight_decay=0.1),
    Muon(),
    Muon(nesterov=False, weight_decay=0.0),
]
each_optimizer = pytest.mark.parametrize("optimizer", [*ELEMENTWISE, *WHOLE], ids=repr)


def names(values: Any) -> list[str]:
    return [value.name for value in values]


def fed(model: ir.Model, n: int = 1000) -> Tensors:
    """Feeds for an update graph; slots are positive, as second moments are."""
    rng = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.inputs:
        assert value.name and value.shape is not None and value.dtype is not None
        shape = [size if isinstance(size, int) else n for size in value.shape]
        feeds[value.name] = np.array(rng.uniform(0.1, 1.0, shape), value.dtype.numpy())
    return feeds | {"step": np.array(3)}


def run_in_place(run: onnxruntime.InferenceSession, feeds: Tensors, pairs: dict[str, str]) -> None:
    """Run with each output bound onto its input's memory; the feeds then hold the new values."""
    binding = run.io_binding()
    for name, array in feeds.items():
        place = array.ctypes.data
        binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, place)
    for output, name in pairs.items():
        array = feeds[name]
        binding.bind_output(output, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    run.run_with_iobinding(binding)


@pytest.mark.sampled("optimizer")
@pytest.mark.sampled("average", "scaled")
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("average", [None, EMA(decay=0.5)], ids=repr)
@each_optimizer
def test_updates_in_place_match_updates_out_of_place(
    optimizer: Optimizer, scaled: bool, average: EMA | None
) -> None:
    clip = ClipByValue(limit=0.5) if scaled else None
    if optimizer.elementwise:
        model = flat_update(optimizer, scaled=scaled, clip=clip, average=average)
        pairs = {name: name.removeprefix("new_") for name in names(model.graph.outputs)}
    else:
        specs = {"a": ("float32", (30, 40)), "b": ("float32", (50, 20))}
        model = named_update(optimizer, specs, scaled, clip=clip, average=average)
        pairs = {name: name.removesuffix(".new") for name in names(model.graph.outputs)}
    assert not in_place_hazards(model, pairs)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    run, feeds = session(model), fed(model)
    apart = dict(zip(names(run.get_outputs()), run.run(None, feeds)))
    run_in_place(run, feeds, pairs)
    for output, name in pairs.items():
        np.testing.assert_array_equal(feeds[name], apart[output])


@pytest.mark.sampled("optimizer")
@pytest.mark.sampled("provider")
@pytest.mark.parametrize("provider", ["TorchExecutionProvider", "ReferenceExecutionProvider"])
@each_optimizer
def test_every_provider_matches_stock_onnxruntime(optimizer: Optimizer, provider: str) -> None:
    specs = {"a": ("float32", (6, 4)), "b": ("float64", (3, 5))}
    model = named_update(optimizer, specs, scaled=True, average=EMA(warm_up=True))
    feeds = fed(model)
    expected = session(model).run(None, feeds)
    found = onward.InferenceSession(model, providers=[provider]).run(None, feeds)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ELEMENTWISE, ids=repr)
def test_flat_and_named_agree(optimizer: Optimizer) -> None:
    flat, named = flat_update(optimizer), named_update(optimizer, {"w": ("float32", (1000,))})
    feeds = fed(flat)
    rename = {"parameters": "w", "gradients": "w.gradient", "learning_rate": "learning_rate"}
    rename |= {"step": "step"} | {slot: f"w.{slot}" for slot in optimizer.slots(())}
    one = session(flat).run(None, feeds)
    other = session(named).run(None, {rename[name]: value for name, value in feeds.items()})
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_names_and_types_of_a_flat_update() -> None:
    model = flat_update(AdamW(), "float64", scaled=True, average=EMA())
    assert names(model.graph.inputs) == [
        "parameters",
        "gradients",
        "exp_sum",
        "exp_sum_sq",
        "average",
        "learning_rate",
        "step",
        "gradient_scale",
    ]
    kinds = [str(value.dtype) for value in model.graph.inputs]
    assert kinds == ["DOUBLE"] * 6 + ["INT64", "DOUBLE"]
    assert names(model.graph.outputs) == [
        "new_parameters",
        "new_exp_sum",
        "new_exp_sum_sq",
        "new_average",
    ]
    assert model.ir_version == 10 and model.opset_imports == {"": 21}


def test_the_names_of_a_named_update() -> None:
    specs = {"w": ("float32", (2, 3)), "b": ("float64", (3,))}
    model = named_update(Adafactor(), specs, scaled=True, average=EMA())
    assert names(model.graph.inputs) == [
        "w",
        "w.gradient",
        "w.row_var",
        "w.col_var",
        "w.average",
        "b",
        "b.gradient",
        "b.variance",
        "b.average",
        "learning_rate",
        "step",
        "gradient_scale",
    ]
    assert names(model.graph.outputs) == [
        "w.new",
        "w.row_var.new",
        "w.col_var.new",
        "w.average.new",
        "b.new",
        "b.variance.new",
        "b.average.new",
    ]


def test_scalars_are_computed_once_for_all_parameters() -> None:
    one = named_update(LAMB(), {"w0": ("float32", (3,))})
    many = named_update(LAMB(), {f"w{i}": ("float32", (3,)) for i in range(10)})
    powers = [sum(node.op_type == "Pow" for node in model.graph) for model in (one, many)]
    assert powers == [2, 2]


def test_updates_may_have_no_parameters() -> None:
    assert not named_update(Adafactor(), {}).graph.outputs


def test_an_optimizer_of_whole_parameters_has_no_flat_update() -> None:
    law = "LAMB needs each parameter as a whole: it cannot update one flat vector\nuse named_update"
    with pytest.raises(OptionError, match=law):
        flat_update(LAMB())


def test_sixteen_bits_are_refused() -> None:
    law = (
        "updates must be in float32 or float64, not float16\n"
        "keep a float32 copy of 16-bit parameters"
    )
    with pytest.raises(OptionError, match=f"flat_update: {law}"):
        flat_update(SGD(), "float16")
    with pytest.raises(OptionError, match=f"parameter 'w': {law}"):
        named_update(SGD(), {"w": ("float16", (3,))})


@pytest.mark.parametrize("other", ["w.gradient", "learning_rate"])
def test_two_inputs_of_one_name_are_refused(other: str) -> None:
    specs = {"w": ("float32", (3,)), other: ("float32", (3,))}
    law = f"two inputs of the update would be called '{other}'\nrename one of the parameters"
    with pytest.raises(OptionError, match=law):
        named_update(SGD(), specs)


class Careless(Optimizer):
    """Reads the old slot for the parameter, apart from what makes the new slot."""

    def slots(self, shape: Shape) -> dict[str, Shape]:
        return {"m": shape}

    def update(self, op: Any, p: Any, g: Any, slots: Any, by: Scalars) -> Any:
        return op.Sub(p, op.Mul(op.Add(slots["m"], g), by.lr)), {"m": op.Mul(slots["m"], 0.9)}


def test_an_optimizer_that_cannot_run_in_place_is_refused() -> None:
    law = (
        "the update of Careless cannot run in place: Add reads m, but new_m does not need it\n"
        "the node that computes the new value must depend on every reader of the old one"
    )
    with pytest.raises(OptionError, match=law):
        flat_update(Careless())


def test_readers_through_views_are_checked() -> None:
    op = OpBuilder(opset=21)
    x = op.input("x", "float32", (6,))
    other = op.Add(op.Reshape(x, [2, 3]), 1.0)
    model = op.model(y=op.Mul(x, 2.0), z=other)
    assert in_place_hazards(model, {"y": "x"}) == [
        "Reshape reads x, but y does not need it",
        "Add reads x, but y does not need it",
    ]


def test_the_node_of_an_output_in_place_must_be_elementwise() -> None:
    op = OpBuilder(opset=21)
    x = op.input("x", "float32", (6,))
    model = op.model(y=op.CumSum(x, 0), z=op.Identity(x))
    assert in_place_hazards(model, {"y": "x"}) == [
        "CumSum computes y, but not elementwise",
        "Identity reads x, but y does not need it",
    ]
    op = OpBuilder(opset=21)
    x = op.input("x", "float32", (1, 3))
    model = op.model(y=op.Add(x, op.input("w", "float32", (2, 3))))
    assert in_place_hazards(model, {"y": "x"})  # broadcast: read again after it was written


def test_an_output_without_a_node_cannot_be_in_place() -> None:
    x = ir.val("x", ir.DataType.FLOAT, (3,))
    model = ir.Model(ir.Graph([x], [x], nodes=[], opset_imports={"": 21}), ir_version=10)
    assert in_place_hazards(model, {"x": "x"}) == ["no node computes x"]
