"""Serve a model file or an open session: an Instance over InferenceSession."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onward.errors import UnsupportedModel
from onward.providers.options import SessionOptions
from onward.serving.requests import Array, TensorSpec
from onward.serving.settings import ModelSettings
from onward.sessions.inference import InferenceSession

# onnxruntime's names of tensor types -> the protocol's
_DATATYPES = {
    "bool": "BOOL", "string": "BYTES",
    "float16": "FP16", "float": "FP32", "double": "FP64", "bfloat16": "BF16",
    **{f"int{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
}  # fmt: skip


class SessionInstance:
    """A session that runs batches. `owned=False`: someone else closes the session."""

    def __init__(self, session: InferenceSession, *, owned: bool = True) -> None:
        self.inputs = [tensor_spec(arg, "input") for arg in session.get_inputs()]
        self.outputs = [tensor_spec(arg, "output") for arg in session.get_outputs()]
        self.metadata: dict[str, str] = dict(session.get_modelmeta().custom_metadata_map)
        self.providers = session.get_providers()
        self._names = [spec.name for spec in self.outputs]
        self._session, self._owned = session, owned
        self._lock, self._is_closed = threading.Lock(), False

    def run(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Outputs by name: those asked for, or all."""
        names = self._names if outputs is None else list(outputs)
        return dict(zip(names, self._session.run(names, feeds), strict=True))

    def close(self) -> None:
        """Close the session after the runs of other threads. Closing twice is fine."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self._owned:
            self._session.close()


def open_session_instance(path: Path, settings: ModelSettings) -> SessionInstance:
    """Open a model's file with the providers and threads of its settings."""
    return open_session_instances(path, settings, 1)[0]


def open_session_instances(
    path: Path, settings: ModelSettings, count: int
) -> list[SessionInstance]:
    """So many instances over one session: runs are concurrent, the weights are held once."""
    # each run adds the thread that calls it to the session's own threads
    threads = count * (settings.threads - 1) + 1 if settings.threads else 0
    options = SessionOptions(intra_op_num_threads=threads)
    session = InferenceSession(path, options, settings.providers)
    try:
        if count == 1:
            return [SessionInstance(session)]
        shared = _CloseLast(session, count)
        return [SessionInstance(shared) for _ in range(count)]  # type: ignore[arg-type]
    except BaseException:
        session.close()
        raise


class _CloseLast:
    """A session of several owners, closed when the last of them closes it."""

    def __init__(self, session: InferenceSession, owners: int) -> None:
        self._session, self._owners, self._lock = session, owners, threading.Lock()
        self.run = session.run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def close(self) -> None:
        with self._lock:
            self._owners -= 1
            if self._owners:
                return
        self._session.close()


def tensor_spec(arg: Any, what: str) -> TensorSpec:
    """An input or output of a session in the protocol's terms; others than tensors are refused."""
    word = arg.type.removeprefix("tensor(").removesuffix(")")
    datatype = _DATATYPES.get(word) if arg.type.startswith("tensor(") else None
    if datatype is None:
        raise UnsupportedModel(
            f"{what} {arg.name!r} is {_describe(arg.type)}, which the protocol cannot carry\n"
            f"{_advise(arg.type)}"
        )
    sizes = arg.shape or ()
    axes = tuple("" if isinstance(size, int) or not size else str(size) for size in sizes)
    shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in sizes)
    return TensorSpec(arg.name, datatype, shape, axes)


def _describe(kind: str) -> str:
    for start, text in (
        ("seq(map(", "a sequence of maps"), ("seq(", "a sequence"), ("map(", "a map"),
        ("optional(", "an optional value"), ("sparse_tensor(", "a sparse tensor"),
    ):  # fmt: skip
        if kind.startswith(start):
            return text
    return f"a tensor of {kind.removeprefix('tensor(').removesuffix(')')}"


def _advise(kind: str) -> str:
    if "map(" in kind:
        return "export the classifier without ZipMap: options={'zipmap': False} in skl2onnx"
    if kind.startswith("tensor("):
        return "add a Cast to a type of the protocol, such as float16 or int8, and export again"
    return "export the model again with tensors as inputs and outputs"
