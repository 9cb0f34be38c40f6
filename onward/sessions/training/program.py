"""TrainingProgram: what a model, a loss and an optimizer were compiled into, as plain data.

Graphs as bytes, tensors as arrays, settings as words and numbers: a program made here trains on a
machine that has numpy, onnxruntime and safetensors alone.

    train     feeds, parameters, state, noise -> loss, outputs, gradients, new state
    evaluate  feeds, parameters, state -> loss, outputs
    predict   the model's own inputs, parameters, state -> its own outputs
    updates   parameters, gradients, slots, learning rate, step -> new parameters, new slots
    step      train, then updates, in one run; or as branches, where runs gather gradients
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onward.errors import InvalidModel
from onward.graph.paths import to_path, writing
from onward.lazy import LazyModule
from onward.optimizers.rows import Blocks
from onward.sessions.checkpoint import files
from onward.sessions.training.ranges import LabelRange

if TYPE_CHECKING:
    from onward.graph import files as models
else:  # it loads onnx, which a device may not have
    models = LazyModule("onward.graph.files")

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

LOSS = "loss"  # what the loss is called among the outputs
NOISE = "onward.noise"
PHASE = "onward.phase"  # of a step: true while gradients are computed, false for the update
UPDATED = "onward.updated"  # of a step in one run: whether the updates were made
UPDATE = "update_{}/"  # before the names of an update's inputs and outputs in `step`
SCALE = "onward.loss_scale"
MEASURE = "onward.measure"  # of all gradients together: the sum of their squares, or of them
GRADIENT = "_grad"

VERSION = 2
_MANIFEST, _TENSORS, _MODEL = "program.json", "initial.safetensors", "model.onnx"
_OPTIONAL = ("noise_size", "step")
_GRAPHS = ("train", "evaluate", "predict", "noise_size", "step", "probe")


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A tensor that is trained: in float32 or float64, whatever type the model has it in."""

    name: str
    shape: Shape
    gradient: str  # the train graph's output

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, kw_only=True)
class Update:
    """One update graph, for parameters that share type, optimizer and learning rate."""

    graph: bytes
    bound: bytes  # the same in fewer passes, for memory that stays where it is: see `blocks`
    dtype: str
    parameters: tuple[str, ...]
    flat: bool  # whether it sees them as one vector, or each by its name
    slots: dict[str, dict[str, Shape]]  # slot -> parameter -> shape; of all parameters where flat
    initial: dict[str, float]  # what slots hold at first, where that is not 0
    learning_rate: float
    optimizer: str  # in words, for those who look
    blocks: Blocks  # vectors that lie one behind the other


@dataclass(frozen=True, kw_only=True)
class TrainingProgram:
    """Everything that a training session runs, and what it starts from."""

    train: bytes
    evaluate: bytes
    predict: bytes
    probe: bytes  # a small step in one run, whose result is known
    step: bytes | None  # None: a graph gives what is no tensor, so that branches cannot have it
    noise_size: bytes | None  # a graph: how many random numbers these feeds need
    updates: tuple[Update, ...]
    parameters: tuple[Parameter, ...]
    state: dict[str, str]  # tensor that training changes by itself -> output that renews it
    frozen: tuple[str, ...]  # tensors that the graphs take as inputs and nobody changes
    inputs: tuple[str, ...]  # the model's own
    targets: tuple[str, ...]  # what the loss takes beside them
    outputs: tuple[str, ...]  # beside the loss, of `train` and `evaluate`
    labels: tuple[LabelRange, ...]
    settings: dict[str, Any]  # one_run, accumulate, clip_norm, seed, average ...
    initial: dict[str, Array] = field(repr=False)
    model: Any = field(default=None, repr=False)  # what `export` starts from: a model, or its path

    @property
    def names(self) -> list[str]:
        return [parameter.name for parameter in self.parameters]

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write it to a folder, from which `TrainingSession` and `load_program` read it."""
        where = to_path(folder)
        with writing(where):
            self._write(where)
        return where

    def _write(self, where: Path) -> None:
        where.mkdir(parents=True, exist_ok=True)
        if self.model is not None:
            models.save(models.load(self.model, any_domain=True), where / _MODEL)
        for name in _GRAPHS:
            graph = getattr(self, name)
            if graph is not None:
                (where / f"{name}.onnx").write_bytes(graph)
        for i, update in enumerate(self.updates):
            (where / f"update_{i}.onnx").write_bytes(update.graph)
            (where / f"update_{i}_bound.onnx").write_bytes(update.bound)
        files.write(where / _TENSORS, self.initial, {})
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name in (*_GRAPHS, "initial", "model"):
            plain.pop(name)
        plain["updates"] = [_without_graphs(update) for update in self.updates]
        plain["parameters"] = [dataclasses.asdict(each) for each in self.parameters]
        plain["labels"] = [dataclasses.asdict(each) for each in self.labels]
        from_model = None if self.model is None else _MODEL
        manifest = {"version": VERSION, "model": from_model, **plain}
        (where / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


_UNREADABLE = (KeyError, TypeError, AttributeError, RecursionError, UnicodeDecodeError,
               json.JSONDecodeError)  # fmt: skip


def load_program(folder: str | os.PathLike[str]) -> TrainingProgram:
    """A program that `TrainingProgram.save` wrote."""
    where = Path(folder)
    try:
        plain = json.loads((where / _MANIFEST).read_text(encoding="utf-8"))
        if plain.pop("version") != VERSION:
            raise InvalidModel(f"the program in {str(where)!r} is of another version of Onward")
        graphs = {name: _graph(where, name) for name in _GRAPHS}
        updates = tuple(
            Update(
                **_tuples(each),
                graph=_graph(where, f"update_{i}"),
                bound=_graph(where, f"update_{i}_bound"),
            )
            for i, each in enumerate(plain.pop("updates"))
        )
        parameters = tuple(Parameter(**_tuples(each)) for each in plain.pop("parameters"))
        labels = tuple(LabelRange(**each) for each in plain.pop("labels"))
        model = plain.pop("model")
        for name in ("frozen", "inputs", "targets", "outputs"):
            plain[name] = tuple(plain[name])
        return TrainingProgram(
            **graphs,
            **plain,
            updates=updates,
            parameters=parameters,
            labels=labels,
            initial=files.read(where / _TENSORS).tensors,
            model=where.absolute() / _MODEL if model else None,
        )
    except (OSError, *_UNREADABLE) as error:
        raise InvalidModel(
            f"{str(where)!r} holds no training program: {error}\n"
            "make one with compile_training(...).save(folder)"
        ) from error


def is_program(source: Any) -> bool:
    """Whether this is a folder that a program was saved to."""
    return isinstance(source, (str, os.PathLike)) and (Path(source) / _MANIFEST).is_file()


def _graph(where: Path, name: str) -> Any:
    path = where / f"{name}.onnx"
    return path.read_bytes() if path.exists() or name not in _OPTIONAL else None


def _without_graphs(update: Update) -> dict[str, Any]:
    plain = {f.name: getattr(update, f.name) for f in dataclasses.fields(update)}
    del plain["graph"], plain["bound"]
    return plain


def _tuples(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Lists of a JSON file as the tuples that they were."""
    return {name: _tuple(value) for name, value in plain.items()}


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
