"""TeacherOutputs: a teacher's outputs for batches, computed once and kept in memory or on disk.

answers = TeacherOutputs("teacher.onnx", ["logits"], folder="cache")
answers.of(feeds)["logits"]
answers.runs        # how often the teacher ran
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onward.checkpoints import tensor_files
from onward.compress.calibration import Array
from onward.compress.distillation.scratch_folder import make_scratch_folder
from onward.errors import CheckpointError, DataError, OptionError
from onward.graph.files import load
from onward.graph.scopes import graphs_of
from onward.message_text import suggest_names
from onward.programs.export import export_model
from onward.providers.choose import Asked
from onward.providers.options import SessionOptions
from onward.sessions.inference import InferenceSession

if TYPE_CHECKING:
    from onward.graph.files import Source

MEMORY = 256 << 20  # bytes of answers that stay in memory; the others go to disk


class TeacherOutputs:
    """A teacher's outputs for each batch; it runs once for a batch.

    Args:
        teacher: the model that answers
        names: the outputs to keep, or inner values; None: the outputs that are tensors
        providers: the providers that run it
        folder: where answers stay for later calls, by the content of the teacher and of the batch;
            None: they are forgotten with this object
        memory: bytes of answers that stay in memory; the others go to disk
    """

    def __init__(
        self,
        teacher: Source,
        names: Sequence[str] | None = None,
        *,
        providers: Asked = None,
        folder: str | os.PathLike[str] | None = None,
        memory: int = MEMORY,
    ) -> None:
        self.model = load(teacher, any_domain=True)
        self.names = (
            list(names) if names is not None else [str(v.name) for v in _tensors(self.model)]
        )
        self.runs = 0
        self._providers = providers
        self._session: InferenceSession | None = None
        self._space = memory
        self._kept: dict[str, dict[str, Array]] = {}
        self._folder = Path(folder) if folder is not None else None
        self._scratch: Path | None = None
        self._digest: str | None = None
        _check_names(self.model, self.names)

    def of(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """The teacher's outputs for these feeds, by name."""
        key = self._key(feeds)
        if key in self._kept:
            return self._kept[key]
        found = self._read(key)
        if found is None:
            found = self._compute(feeds)
            self._write(key, found)
        size = sum(array.nbytes for array in found.values())
        if size <= self._space:
            self._space -= size
            self._kept[key] = found
        return found

    def input_names(self) -> list[str]:
        """The inputs that the teacher takes."""
        return [arg.name for arg in self._open().get_inputs()]

    def _open(self) -> InferenceSession:
        if self._session is None:
            outputs = [str(value.name) for value in self.model.graph.outputs]
            model = self.model
            if not set(self.names) <= set(outputs):
                model = export_model(model, {}, [*outputs, *self.names])
            options = SessionOptions(log_severity_level=4)
            self._session = InferenceSession(model, options, self._providers)
        return self._session

    def _compute(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        session = self._open()
        known = {arg.name for arg in session.get_inputs()}
        given = {name: np.asarray(feed) for name, feed in feeds.items() if name in known}
        self.runs += 1
        parts = [session.run(self.names, part) for part in _fitting(given, session.get_inputs())]
        outputs = parts[0] if len(parts) == 1 else [np.concatenate(ys) for ys in zip(*parts)]
        found = {n: np.ascontiguousarray(y) for n, y in zip(self.names, outputs, strict=True)}
        for name, array in found.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise DataError(
                    f"the teacher's output {name!r} has NaN or infinite numbers\n"
                    "check the teacher on this data: nothing can be learned from them"
                )
        return found

    # -- disk ----------------------------------------------------------------------------------

    def _key(self, feeds: Mapping[str, Any]) -> str:
        """The hash of the teacher, of the wanted outputs and of the batch."""
        if self._digest is None:
            named = "\n".join(self.names)
            self._digest = f"{model_digest(self.model)}\n{named}"
        found = hashlib.sha256(self._digest.encode())
        for name in sorted(feeds):
            array = np.ascontiguousarray(feeds[name])
            found.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            found.update(
                array.tobytes() if array.dtype.kind in "OUS" else array.view(np.uint8).data
            )
        return found.hexdigest()[:40]

    def _path(self, key: str) -> Path:
        folder = self._folder or self._scratch
        if folder is None:
            folder = self._scratch = make_scratch_folder(self, "onward-answers-")
        return folder / f"{key}.safetensors"

    def _read(self, key: str) -> dict[str, Array] | None:
        if self._folder is None and self._scratch is None:
            return None
        path = self._path(key)
        with contextlib.suppress(CheckpointError):  # missing or damaged: the teacher runs again
            found = tensor_files.read(path).tensors
            return {name: found[f"{place}"] for place, name in enumerate(self.names)}
        return None

    def _write(self, key: str, found: Mapping[str, Array]) -> None:
        size = sum(array.nbytes for array in found.values())
        if self._folder is None and size <= self._space:
            return
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        tensor_files.write(path, {f"{place}": found[n] for place, n in enumerate(self.names)}, {})


def model_digest(model: ir.Model) -> str:
    """The hash of a model: operators, attributes, names and weights."""
    found = hashlib.sha256(f"{sorted(model.opset_imports.items())}".encode())
    for function in model.functions.values():
        _hash_graph(found, function.graph)
    for graph in graphs_of(model):
        _hash_graph(found, graph)
    return found.hexdigest()


def _hash_graph(found: Any, graph: ir.Graph) -> None:
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is not None:
            found.update(f"{value.name} {tensor.dtype} {tensor.shape}\n".encode())
            found.update(tensor.tobytes())
    for node in graph:
        names = [[value and value.name for value in side] for side in (node.inputs, node.outputs)]
        attributes = sorted(map(_attribute_text, node.attributes.values()))
        found.update(f"{node.domain} {node.op_type} {names} {attributes}\n".encode())
    ends = [[value.name for value in side] for side in (graph.inputs, graph.outputs)]
    found.update(f"{ends}\n".encode())


def _attribute_text(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
        tensor = attribute.as_tensor()
        data = hashlib.sha256(tensor.tobytes()).hexdigest()
        return f"{attribute.name} {tensor.dtype} {tensor.shape} {data}"
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return attribute.name  # the graphs are hashed, too
    return f"{attribute.name} {attribute.ref_attr_name or attribute.value}"


def _fitting(feeds: Mapping[str, Array], inputs: Sequence[Any]) -> list[dict[str, Array]]:
    """The feeds in parts of as many rows as a teacher takes that fixes its first dimension."""
    fixed = {arg.shape[0] for arg in inputs if len(arg.shape) and isinstance(arg.shape[0], int)}
    rows = {len(feed) for feed in feeds.values() if feed.ndim}
    size, count = next(iter(fixed), 0), next(iter(rows), 0)
    if len(fixed) != 1 or len(rows) != 1 or size in (0, count) or count % size:
        return [dict(feeds)]
    starts = range(0, count, size)
    return [{n: x[at : at + size] if x.ndim else x for n, x in feeds.items()} for at in starts]


def _tensors(model: ir.Model) -> list[ir.Value]:
    """The outputs that are tensors."""
    return [v for v in model.graph.outputs if v.type is None or isinstance(v.type, ir.TensorType)]


def _check_names(model: ir.Model, names: Sequence[str]) -> None:
    graph = model.graph
    made = {str(value.name) for node in graph for value in node.outputs if value.name}
    made |= {str(value.name) for value in graph.outputs}
    for name in names:
        if name not in made:
            raise OptionError(
                f"the teacher has no value {name!r}\n{suggest_names(name, sorted(made))}"
            )
