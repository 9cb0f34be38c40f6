"""Write a program to a folder, so that another process can read it.

A program that is saved for a device is another thing: `providers/ort/training/lowered.py`.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from onward.checkpoints import tensor_files
from onward.passes.fed_uniform_count import UniformCount
from onward.passes.random_draws import Draws
from onward.programs.layout_json import layout_from_json, layout_to_json, to_tuple
from onward.programs.program import Program

_MANIFEST, _TENSORS = "program.json", "initial.safetensors"
_FLOATS = {int(each) for each in ir.DataType if each.is_floating_point()}
_RATES = ("seed", "learning_rate", "schedule")  # settings that change no graph


def write_program(program: Program, folder: Path) -> None:
    """Write a program, its model for `export` left out."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, graph in _graphs(program).items():
        (folder / f"{name}.onnx").write_bytes(_to_bytes(graph))
    manifest = {"layout": layout_to_json(program.layout), "draws": _draws_to_json(program.draws)}
    (folder / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    tensor_files.write(folder / _TENSORS, program.layout.initial, {})


def read_program(folder: Path) -> Program:
    """A program that `write_program` wrote."""
    manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    initial = tensor_files.read(folder / _TENSORS).tensors
    layout = layout_from_json(manifest["layout"], initial)

    def read(name: str) -> ir.Model:
        return ir.from_proto(onnx.load_model_from_string((folder / f"{name}.onnx").read_bytes()))

    draws = manifest["draws"]
    return Program(
        layout=layout,
        train=read("train"),
        evaluate=read("evaluate"),
        predict=read("predict"),
        updates=tuple(read(f"update_{i}") for i in range(len(layout.updates))),
        draws=draws
        and Draws(
            draws["input"],
            tuple(UniformCount(**{**c, "factors": to_tuple(c["factors"])}) for c in draws["calls"]),
            read("noise_size"),
        ),
    )


def step_description(program: Program) -> tuple[list[bytes], dict[str, Any]]:
    """What the speed of a step depends on: its graphs and its layout, without any weights.

    The seed, learning rates and schedules are left out: they change neither.
    """
    layout = layout_to_json(program.layout)
    for name in _RATES:
        del layout["settings"][name]
    for update in layout["updates"]:
        del update["learning_rate"], update["optimizer"]  # the graphs have the optimizer
    return [_without_weights(graph) for graph in (program.train, *program.updates)], layout


def _without_weights(model: ir.Model) -> bytes:
    """A model as bytes, the numbers of its weights left out: those that are not trained."""
    proto = ir.to_proto(model)
    for tensor in proto.graph.initializer:
        if tensor.data_type in _FLOATS and tensor.dims:
            tensor.CopyFrom(
                onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            )
    data: bytes = proto.SerializeToString(deterministic=True)
    return data


def _graphs(program: Program) -> dict[str, ir.Model]:
    graphs = {name: getattr(program, name) for name in ("train", "evaluate", "predict")}
    graphs |= {f"update_{i}": graph for i, graph in enumerate(program.updates)}
    return graphs if program.draws is None else graphs | {"noise_size": program.draws.size}


def _draws_to_json(draws: Draws | None) -> dict[str, Any] | None:
    if draws is None:
        return None
    return {"input": draws.input, "calls": [dataclasses.asdict(call) for call in draws.calls]}


def _to_bytes(model: ir.Model) -> bytes:
    data: bytes = ir.to_proto(model).SerializeToString(deterministic=True)
    return data
