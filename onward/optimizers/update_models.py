"""Build update models: an optimizer's formula over one flat vector or over named tensors.

Outputs may be bound to the memory of their inputs. That is safe if every node that reads the old
values runs before the node that writes the new ones, and that node is elementwise; both functions
check it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import onnx_ir as ir

from onward.errors import OptionError
from onward.graph.graph_ops import GraphOps, extend
from onward.graph.operators import IN_PLACE, VIEWS
from onward.optimizers.clip import NORM, ClipByNorm, ClipByValue
from onward.optimizers.ema import EMA
from onward.optimizers.optimizer import Optimizer, Scalars, Shape, Slots
from onward.optimizers.slot_storage import SlotStorage
from onward.passes.deduplicate import share_expressions

OPSET, IR_VERSION = 21, 10
DTYPES = ("float32", "float64")

Specs: TypeAlias = Mapping[str, tuple[str, Sequence[int]]]


def flat_update(
    optimizer: Optimizer,
    dtype: str = "float32",
    scaled: bool = False,
    *,
    clip: ClipByValue | None = None,
    clip_norm: ClipByNorm | None = None,
    average: EMA | None = None,
) -> ir.Model:
    """The update of one vector that holds many parameters; only for elementwise optimizers.

    Inputs: `parameters` [n], `gradients` [n], each slot [n], `average` [n] with an EMA, then the
    scalars `learning_rate` (of the vector's type), `step` (int64, 1 at first) and, if scaled,
    `gradient_scale` (of that type, too). With `clip_norm`, which needs the scale, they have
    `norm_squared` (float64) as well: the sum of squares of all gradients before they are scaled.
    Outputs: `new_parameters`, `new_{slot}`, `new_average`.

    >>> from onward.optimizers.sgd import SGD
    >>> [value.name for value in flat_update(SGD()).graph.inputs]
    ['parameters', 'gradients', 'learning_rate', 'step']
    """
    if not optimizer.elementwise:
        raise OptionError(
            f"{type(optimizer).__name__} needs each parameter as a whole: it cannot update one "
            "flat vector\nuse named_update"
        )
    _check_dtype("flat_update", dtype)
    update = _UpdateBuilder(optimizer, scaled, clip, clip_norm, average)
    slots = optimizer.slots(("n",))
    tensors = {"parameters": ("n",), "gradients": ("n",), **slots}
    if average is not None:
        tensors["average"] = ("n",)
    kinds = {name: stored.dtype for name, stored in optimizer.stored_slots().items()}
    values = {
        name: update.op.input(name, kinds.get(name, dtype), shape)
        for name, shape in tensors.items()
    }
    update.scalars(dtype)
    news = update.update_one(*values.values())
    pairs = {f"new_{name}": name for name in values if name != "gradients"}
    return update.model(dict(zip(pairs, news)), pairs)


def named_update(
    optimizer: Optimizer,
    parameters: Specs,
    scaled: bool = False,
    *,
    clip: ClipByValue | None = None,
    clip_norm: ClipByNorm | None = None,
    average: EMA | None = None,
) -> ir.Model:
    """The update of tensors by name ({name: (dtype, shape)}), for any optimizer.

    Inputs: for each `{name}`, `{name}.gradient`, `{name}.{slot}`, `{name}.average` with an EMA,
    then the scalars of flat_update, in float64 if any tensor is. Outputs: `{name}.new`,
    `{name}.{slot}.new`, ...

    >>> from onward.optimizers.lamb import LAMB
    >>> model = named_update(LAMB(), {"w": ("float32", (2, 3))})
    >>> [value.name for value in model.graph.outputs]
    ['w.new', 'w.exp_sum.new', 'w.exp_sum_sq.new']
    """
    update = _UpdateBuilder(optimizer, scaled, clip, clip_norm, average)
    stored = optimizer.stored_slots()
    values: dict[str, list[ir.Value]] = {}
    for name, (dtype, shape) in parameters.items():
        _check_dtype(f"parameter {name!r}", dtype)
        inputs: dict[str, Shape] = {name: tuple(shape), f"{name}.gradient": tuple(shape)}
        other = {f"{name}.{slot}": each.dtype for slot, each in stored.items()}
        for slot, size in optimizer.slots(tuple(shape)).items():
            inputs[f"{name}.{slot}"] = size
        if average is not None:
            inputs[f"{name}.average"] = tuple(shape)
        values[name] = [
            update.input(each, other.get(each, dtype), size) for each, size in inputs.items()
        ]
    kinds = {dtype for dtype, _ in parameters.values()}
    update.scalars("float64" if "float64" in kinds else "float32")
    outputs: dict[str, ir.Value] = {}
    pairs: dict[str, str] = {}
    for inputs_of in values.values():
        p, _, *rest = inputs_of
        own = {f"{value.name}.new": str(value.name) for value in (p, *rest)}
        outputs |= zip(own, update.update_one(*inputs_of))
        pairs |= own
    return update.model(outputs, pairs)


class _UpdateBuilder:
    """Builds an update graph: clipping, the optimizer, the average."""

    def __init__(
        self,
        optimizer: Optimizer,
        scaled: bool,
        clip: ClipByValue | None,
        clip_norm: ClipByNorm | None,
        average: EMA | None,
    ) -> None:
        graph = ir.Graph((), (), nodes=(), opset_imports={"": OPSET}, name="update")
        self.op: GraphOps = extend(ir.Model(graph, ir_version=IR_VERSION))
        self.op.prefix = "update"
        self.optimizer, self.scaled, self.clip, self.average = optimizer, scaled, clip, average
        self.clip_norm = clip_norm
        self._storage = SlotStorage(self.op, optimizer.stored_slots())
        self._typed: dict[tuple[str, str], ir.Value] = {}

    def input(self, name: str, dtype: str, shape: Shape) -> ir.Value:
        """A new graph input; an error if the name is taken."""
        if any(name == value.name for value in self.op.graph.inputs):
            raise OptionError(
                f"two inputs of the update would be called {name!r}\nrename one of the parameters"
            )
        return self.op.input(name, dtype, shape)

    def scalars(self, dtype: str) -> None:
        """Add learning_rate, step and gradient_scale; they come after the tensors."""
        self.lr = self.input("learning_rate", dtype, ())
        self.step = self.input("step", "int64", ())
        self.scale = self.input("gradient_scale", dtype, ()) if self.scaled else None
        if self.clip_norm is not None:
            assert self.scale is not None
            squares = self.input(NORM, "float64", ())
            self.scale = self.clip_norm.scaled(self.op, self.scale, squares)

    def update_one(self, p: ir.Value, g: ir.Value, *state: ir.Value) -> list[ir.Value]:
        """The new parameter, its new slots and its new average."""
        assert p.shape is not None
        names = list(self.optimizer.slots(tuple(p.shape)))  # type: ignore[arg-type]
        slots: Slots = self._storage.read(dict(zip(names, state)), p)
        lr = self._like(self.lr, p)
        scale = None if self.scale is None else self._like(self.scale, p)
        if self.clip is not None:
            g = self.clip.build(self.op, g, scale)
        new, news = self.optimizer.update(self.op, p, g, slots, Scalars(lr, self.step, scale))
        news = self._storage.rounded(news, self.step)
        results = [new, *(news[name] for name in names)]
        if self.average is not None:
            results.append(self.average.build(self.op, state[-1], new, self.step))
        return results

    def _like(self, scalar: ir.Value, p: ir.Value) -> ir.Value:
        """A scalar in p's type, cast once."""
        key = (str(scalar.name), str(p.dtype))
        if key not in self._typed:
            self._typed[key] = self.op.cast_like(scalar, p)
        return self._typed[key]

    def model(self, outputs: dict[str, ir.Value], pairs: dict[str, str]) -> ir.Model:
        """The model with these outputs, without common subexpressions, checked to run in place."""
        model = self._storage.completed(self.op.model(**outputs))
        share_expressions(model)
        hazards = in_place_hazards(model, pairs)
        if hazards:
            raise OptionError(
                f"the update of {type(self.optimizer).__name__} cannot run in place: "
                f"{'; '.join(hazards)}\n"
                "the node that computes the new value must depend on every reader of the old one"
            )
        return model


def in_place_hazards(model: ir.Model, pairs: Mapping[str, str]) -> list[str]:
    """Why outputs cannot be written into the memory of their inputs; empty: they can."""
    outputs = {str(value.name): value for value in model.graph.outputs}
    inputs = {str(value.name): value for value in model.graph.inputs}
    hazards = []
    for output, source in pairs.items():
        writer = outputs[output].producer()
        if writer is None:
            hazards.append(f"no node computes {output}")
            continue
        before = _ancestors(writer)
        for reader, read in _readers(inputs[source]):
            if reader is writer:
                if writer.op_type not in IN_PLACE or read.shape != outputs[output].shape:
                    hazards.append(f"{writer.op_type} computes {output}, but not elementwise")
            elif reader not in before:
                hazards.append(f"{reader.op_type} reads {source}, but {output} does not need it")
    return hazards


def _readers(value: ir.Value) -> list[tuple[ir.Node, ir.Value]]:
    """The nodes that read a value's memory, also through views, and the value that each reads."""
    found = []
    for node in value.consumers():
        found.append((node, value))
        if node.op_type in VIEWS:
            found += _readers(node.outputs[0])
    return found


def _ancestors(node: ir.Node) -> set[ir.Node]:
    """Every node that must run before this one."""
    found: set[ir.Node] = set()
    left = [node]
    while left:
        for value in left.pop().inputs:
            producer = None if value is None else value.producer()
            if producer is not None and producer not in found:
                found.add(producer)
                left.append(producer)
    return found


def _check_dtype(what: str, dtype: str) -> None:
    if dtype not in DTYPES:
        raise OptionError(
            f"{what}: updates must be in float32 or float64, not {dtype}\n"
            "keep a float32 copy of 16-bit parameters and update that"
        )
