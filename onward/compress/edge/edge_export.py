"""export_for_edge: write a model as a folder that a target takes.

report = export_for_edge("model.onnx", "web", "out")
report.files        # model.onnx, loader.mjs, required_operators_and_types.config, sizes.md
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onward.compress.calibration import Calibration
from onward.compress.edge.loaders import Port, write_loader
from onward.compress.edge.node_timing import NodeTime, find_package, package_version, time_in_node
from onward.compress.edge.ort_format import (
    CONFIG,
    convert_to_ort,
    operators_of,
    write_operator_config,
)
from onward.compress.edge.targets import Target, check_target, find_target
from onward.compress.progress_steps import Progress, no_progress
from onward.errors import FileExists, OptionError, UnsupportedModel
from onward.formatting import show_bytes, show_seconds
from onward.graph.dtypes import numpy_type
from onward.graph.files import Source, load, save
from onward.graph.int8_weights import marked_processors
from onward.graph.node_args import describe
from onward.graph.paths import writing
from onward.graph.random_feeds import check_sizes, dynamic_names

MakeCandidates = Callable[[ir.Model], Mapping[str, ir.Model]]
ORIGINAL = "original"
_LEAST_GAIN = 1.03  # a candidate must be this many times as fast to be preferred
_MEASURED = ("web",)  # targets whose runtime Node runs


@dataclass(frozen=True, kw_only=True)
class EdgeReport:
    """What was written for a target.

    Attributes:
        target: its name
        folder: where the files are
        files: sizes in bytes, by name
        runtime: sizes in bytes of the target's runtime, by part
        operators: what a reduced build must have: "ai.onnx::Conv"
        chosen: the candidate that was written; "original" is the model as it was given
        times: how each candidate ran in Node; empty if nothing was measured
        notes: sentences for the user
    """

    target: str
    folder: str
    files: Mapping[str, int]
    runtime: Mapping[str, int]
    operators: list[str]
    chosen: str
    times: Mapping[str, NodeTime] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def speedup(self) -> float | None:
        """How many times as fast in Node the chosen model is as the original."""
        first, chosen = self.times.get(ORIGINAL), self.times.get(self.chosen)
        if first is None or chosen is None or not first.seconds or not chosen.seconds:
            return None
        return first.seconds / chosen.seconds

    def to_json(self) -> dict[str, Any]:
        """The report as values that JSON has."""
        return {**asdict(self), "speedup": self.speedup}

    def __str__(self) -> str:
        rows = [(name, show_bytes(size)) for name, size in self.files.items()]
        rows += [(f"runtime: {name}", show_bytes(size)) for name, size in self.runtime.items()]
        for name, time in self.times.items():
            rows.append((f"in Node: {name}", time.error or show_seconds(time.seconds or 0.0)))
        width = max(len(name) for name, _ in rows)
        lines = [f"{name.ljust(width)}  {text}" for name, text in rows]
        return "\n".join([*lines, *self.notes])


def export_for_edge(
    model: Source,
    target: str,
    folder: str | os.PathLike[str],
    *,
    candidates: Mapping[str, Source] | MakeCandidates | None = None,
    measure: bool = False,
    data: Any = None,
    batch: int = 1,
    sizes: Mapping[str, int] | None = None,
    webgpu: bool = False,
    node_modules: str | os.PathLike[str] | None = None,
    seconds: float = 1.0,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> EdgeReport:
    """Write a model, a loader, the list of its operators and its sizes for a target.

    Args:
        model: the model; the original is not changed
        target: "web", "node", "android", "ios" or "minimal"
        folder: where the files go; it is made
        candidates: other forms of the model by name, such as int8; or a function that makes them.
            With `measure`, the fastest is written; without it, the first
        measure: time the candidates with onnxruntime-web in Node (target web)
        data: rows for the measuring; None: random
        batch: rows of the timed batch
        sizes: sizes of dynamic dimensions, for random rows
        webgpu: for web: the model must also run on WebGPU
        node_modules: where onnxruntime-web is installed
        seconds: how long to measure each candidate
        overwrite: replace files that exist
        progress: called with what begins now, how much is done, and of how much
    """
    place = find_target(target)
    show = progress or no_progress
    if measure and target not in _MEASURED:
        raise OptionError(
            f"only {', '.join(_MEASURED)} can be measured here, not {target}\nleave measure out"
        )
    if measure:
        find_package(node_modules)
    where = Path(folder)
    _check_folder(where, overwrite)
    show("reading the model", 0, None)
    original = load(model)
    inputs = [describe(value) for value in _inputs(original)]
    check_sizes(sizes or (), dynamic_names((arg.name, arg.shape) for arg in inputs))
    check_target(original, place, webgpu=webgpu)
    models = {ORIGINAL: original, **_candidates(candidates, original, place, webgpu, show)}
    times: Mapping[str, NodeTime] = {}
    chosen = next((name for name in models if name != ORIGINAL), ORIGINAL)
    notes: list[str] = []
    if measure:
        show("measuring in Node", 0, None)
        feeds = Calibration(data, inputs, batch=batch, sizes=sizes).first()
        times = time_in_node(models, feeds, seconds=seconds, node_modules=node_modules)
        chosen, notes = _pick(times, package_version(find_package(node_modules)))
    show("writing", 0, None)
    return _write(models[chosen], place, where, chosen, times, notes)


def _check_folder(where: Path, overwrite: bool) -> None:
    if where.is_file():
        raise FileExists(f"{where} is a file\ngive the name of a folder")
    if where.is_dir() and any(where.iterdir()) and not overwrite:
        raise FileExists(f"the folder {where} is not empty\ngive another one, or overwrite=True")


def _candidates(
    given: Mapping[str, Source] | MakeCandidates | None,
    original: ir.Model,
    target: Target,
    webgpu: bool,
    show: Progress,
) -> dict[str, ir.Model]:
    if given is None:
        return {}
    if callable(given):
        show("making candidates", 0, None)
        given = given(original)
    found = {}
    for name, source in given.items():
        if name == ORIGINAL:
            raise OptionError(f"a candidate cannot have the name {ORIGINAL!r}")
        candidate = load(source)
        check_target(candidate, target, webgpu=webgpu)
        found[name] = candidate
    return found


def _pick(times: Mapping[str, NodeTime], version: str) -> tuple[str, list[str]]:
    """The fastest candidate; the original unless one is faster by more than noise."""
    first = times[ORIGINAL]
    if first.seconds is None:
        raise UnsupportedModel(
            f"onnxruntime-web {version} cannot run this model: {first.error}\n"
            "replace what it names, or choose another target"
        )
    chosen, best = ORIGINAL, first.seconds / _LEAST_GAIN
    notes = []
    for name, time in times.items():
        if time.error:
            notes.append(f"{name} does not run in onnxruntime-web {version}: {time.error}")
        elif name != ORIGINAL and time.seconds is not None:
            ratio = first.seconds / time.seconds
            notes.append(f"{name}: {ratio:.2f} times as fast as the original in Node")
            if time.seconds < best:
                chosen, best = name, time.seconds
    notes.append(f"written: {chosen} (onnxruntime-web {version}, one thread, CPU time)")
    return chosen, notes


def _write(
    model: ir.Model,
    target: Target,
    where: Path,
    chosen: str,
    times: Mapping[str, NodeTime],
    notes: list[str],
) -> EdgeReport:
    name = f"model{target.suffix}"
    with writing(where):
        where.parent.mkdir(parents=True, exist_ok=True)
        aside = tempfile.TemporaryDirectory(dir=where.parent, prefix=".onward-edge-")
    with aside as made, writing(where):
        folder = Path(made)
        save(model, folder / "model.onnx")
        convert_to_ort(folder / "model.onnx", folder / "model.ort", is_arm=target.is_arm)
        config = write_operator_config(folder / "model.ort", folder / CONFIG)
        _remove_other(folder, target)
        loader, text = write_loader(
            target.name, name, _ports(_inputs(model)), _ports(model.graph.outputs)
        )
        (folder / loader).write_text(text, "utf-8")
        processors = marked_processors(model)
        if processors is not None:
            notes = [*notes, f"its int8 products are exact on these processors: {processors}"]
        sizes = {each.name: each.stat().st_size for each in sorted(folder.iterdir())}
        (folder / "sizes.md").write_text(_size_table(sizes, target), "utf-8")
        where.mkdir(exist_ok=True)
        for each in sorted(folder.iterdir()):
            os.replace(each, where / each.name)
    return EdgeReport(
        target=target.name,
        folder=str(where),
        files=sizes,
        runtime=dict(target.downloads),
        operators=operators_of(config),
        chosen=chosen,
        times=times,
        notes=notes,
    )


def _remove_other(folder: Path, target: Target) -> None:
    """Keep the one file of the model that the target takes."""
    if target.suffix == ".onnx":
        (folder / "model.ort").unlink()
        return
    for each in folder.glob("model.onnx*"):
        each.unlink()


def _size_table(sizes: Mapping[str, int], target: Target) -> str:
    rows = ["| file | size |", "|---|---|"]
    rows += [f"| {name} | {show_bytes(size)} |" for name, size in sizes.items()]
    rows += [
        f"| {target.runtime}: {part} | {show_bytes(size)} |"
        for part, size in target.downloads.items()
    ]
    return "\n".join(rows) + "\n"


def _inputs(model: ir.Model) -> list[ir.Value]:
    """The inputs that must be fed: those without a default."""
    return [value for value in model.graph.inputs if not value.is_initializer()]


def _ports(values: Any) -> list[Port]:
    return [_port(value) for value in values]


def _port(value: ir.Value) -> Port:
    arg = describe(value)
    dtype = numpy_type(arg.type)
    if dtype is None:
        raise UnsupportedModel(
            f"{value.name!r} is a {arg.type}: loaders feed only tensors\nchoose another target"
        )
    kind = "string" if dtype.kind == "O" else dtype.name
    sizes = tuple(
        size if isinstance(size, (int, str)) else f"d{place}"
        for place, size in enumerate(arg.shape or ())
    )
    return Port(name=str(value.name), type=kind, shape=sizes)
