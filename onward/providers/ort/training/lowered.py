"""LoweredProgram: a training program for stock onnxruntime, as plain data that can be saved.

Graphs are bytes, tensors arrays, settings strings and numbers: a saved program trains on a machine
that has only numpy and onnxruntime.

    train     feeds, parameters, state, noise -> loss, outputs, gradients, new state, measure
    evaluate  feeds, parameters, state -> loss, outputs
    predict   the model's own inputs, parameters, state -> its own outputs
    step      train, then the updates, in one run
    updates   parameters, gradients, slots, learning rate, step -> new parameters, new slots

The graphs run on any processor. `faster` has train and step again, in forms for one kind of
processor (processors.py); they are saved in a folder of its name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onward.checkpoints import tensor_files
from onward.errors import InvalidModel
from onward.graph.paths import to_path, writing
from onward.lazy import LazyModule
from onward.optimizers.vector_pair_names import Blocks
from onward.programs.layout_json import layout_from_json, layout_to_json, to_tuple
from onward.programs.program import Layout
from onward.providers.ort.processors import PROCESSORS, find_processor

if TYPE_CHECKING:
    from onward.graph import files as models
else:  # it loads onnx, which a device may not have
    models = LazyModule("onward.graph.files")

NOISE = "onward.noise"  # the input that holds uniform random numbers
MEASURE = "onward.measure"  # the sum of all gradients, or of their squares
UPDATED = "onward.updated"  # whether a fused step has made the updates
UPDATE = "update_{}/"  # the prefix of an update's inputs and outputs in `step`

VERSION = 3
_MANIFEST, _TENSORS, _MODEL = "program.json", "initial.safetensors", "model.onnx"
_OPTIONAL = ("noise_size", "step")
_GRAPHS = ("train", "evaluate", "predict", "noise_size", "step", "probe")


@dataclass(frozen=True, kw_only=True)
class LoweredUpdate:
    """One update graph, for the memory of `UpdateLayout`."""

    graph: bytes
    bound: bytes  # the same in fewer operations, for vectors in the memory of `blocks`
    blocks: Blocks  # vectors that are adjacent in memory


@dataclass(frozen=True, kw_only=True)
class FasterGraphs:
    """Graphs of a program in forms for one kind of processor, and the probe that detects it."""

    probe: bytes
    train: bytes
    step: bytes | None


_FASTER = tuple(each.name for each in fields(FasterGraphs))


@dataclass(frozen=True, kw_only=True)
class LoweredProgram:
    """The graphs of a training run, for stock onnxruntime, and their layout."""

    layout: Layout
    train: bytes
    evaluate: bytes
    predict: bytes
    probe: bytes  # a small fused step with a known result
    step: bytes | None  # None: gradients are accumulated, or an output is not a tensor
    noise_size: bytes | None  # a graph that computes how many random numbers feeds need
    noise_by_shape: bool  # whether feeds of the same shapes need the same number
    plans_memory: bool  # whether to use onnxruntime's memory pattern for `step`
    updates: tuple[LoweredUpdate, ...]
    keeps_order: bool = False  # whether nodes run in the graph's order: it takes the least memory
    faster: Mapping[str, FasterGraphs] = field(default_factory=dict)  # by processor

    def for_this_processor(self) -> LoweredProgram:
        """The same with the graphs that are fastest on this machine."""
        for processor, own in self.faster.items():
            if find_processor(own.probe) == processor:
                return replace(self, train=own.train, step=own.step, faster={})
        return self

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write it to a folder, from which `load_lowered` reads it."""
        where = to_path(folder)
        with writing(where):
            self._write(where)
        return where

    def _write(self, where: Path) -> None:
        where.mkdir(parents=True, exist_ok=True)
        layout = self.layout
        if layout.model is not None:
            models.save(models.load(layout.model, any_domain=True), where / _MODEL)
        _write_graphs(where, self, _GRAPHS)
        for processor, graphs in self.faster.items():
            (where / processor).mkdir(exist_ok=True)
            _write_graphs(where / processor, graphs, _FASTER)
        for i, update in enumerate(self.updates):
            (where / f"update_{i}.onnx").write_bytes(update.graph)
            (where / f"update_{i}_bound.onnx").write_bytes(update.bound)
        tensor_files.write(where / _TENSORS, layout.initial, {})
        manifest = {
            "version": VERSION,
            "processors": list(self.faster),
            "noise_by_shape": self.noise_by_shape,
            "plans_memory": self.plans_memory,
            "keeps_order": self.keeps_order,
            "blocks": [update.blocks for update in self.updates],
            **layout_to_json(layout, model=None if layout.model is None else _MODEL),
        }
        (where / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


_UNREADABLE = (KeyError, TypeError, AttributeError, RecursionError, UnicodeDecodeError,
               json.JSONDecodeError)  # fmt: skip


def load_lowered(folder: str | os.PathLike[str]) -> LoweredProgram:
    """A program that `LoweredProgram.save` wrote."""
    where = Path(folder)
    try:
        plain = json.loads((where / _MANIFEST).read_text(encoding="utf-8"))
        if plain.pop("version") != VERSION:
            raise InvalidModel(
                f"the program in {str(where)!r} was written by another version of Onward\n"
                "make it again with compile_training(...).save(folder)"
            )
        updates = tuple(
            LoweredUpdate(
                graph=_graph(where, f"update_{i}"),
                bound=_graph(where, f"update_{i}_bound"),
                blocks=to_tuple(blocks),
            )
            for i, blocks in enumerate(plain.pop("blocks"))
        )
        return LoweredProgram(
            **{name: _graph(where, name) for name in _GRAPHS},
            noise_by_shape=plain.pop("noise_by_shape"),
            plans_memory=plain.pop("plans_memory"),
            keeps_order=plain.pop("keeps_order", False),
            updates=updates,
            faster={
                processor: FasterGraphs(
                    **{name: _graph(where / processor, name) for name in _FASTER}
                )
                for processor in plain.pop("processors", [])
                if processor in PROCESSORS  # another version may know more of them
            },
            layout=layout_from_json(
                plain,
                initial=tensor_files.read(where / _TENSORS).tensors,
                model=where.absolute() / _MODEL if plain["model"] else None,
            ),
        )
    except (OSError, *_UNREADABLE) as error:
        raise InvalidModel(
            f"{str(where)!r} holds no training program: {error}\n"
            "make one with compile_training(...).save(folder)"
        ) from error


def is_saved_program(source: Any) -> bool:
    """Whether this is a folder that a program was saved to."""
    return isinstance(source, (str, os.PathLike)) and (Path(source) / _MANIFEST).is_file()


def _write_graphs(where: Path, graphs: Any, names: Sequence[str]) -> None:
    for name in names:
        graph = getattr(graphs, name)
        if graph is not None:
            (where / f"{name}.onnx").write_bytes(graph)


def _graph(where: Path, name: str) -> Any:
    path = where / f"{name}.onnx"
    return path.read_bytes() if path.exists() or name not in _OPTIONAL else None
