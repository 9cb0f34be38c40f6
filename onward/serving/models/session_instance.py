"""Serve a model file or an open session: an Instance over InferenceSession."""

from __future__ import annotations

import mmap
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onward.errors import OptionError
from onward.providers.options import RunOptions, SessionOptions
from onward.providers.ort.bound_session import stop_spinning_after_runs
from onward.providers.ort.shared_threads import are_threads_shared
from onward.serving.batching.batch_check import random_feeds
from onward.serving.compiled_shapes import CompiledShapes, may_compile
from onward.serving.models.signature import class_scores, input_specs, is_class_maps, output_spec
from onward.serving.requests import Array
from onward.serving.settings import ModelSettings
from onward.sessions.inference import InferenceSession

_SMALL = 8 << 20  # bytes of a file: a model that is opened twice for a measurement
_ROWS, _RUNS = 32, 5
_LOOP = (b"\x22\x04Loop", b"\x04\0\0\0Loop\0")  # an operator's name in .onnx and .ort files
_QUICK = 300e-6  # seconds of a batch on one thread


class SessionInstance:
    """A session that runs batches. `owned=False`: someone else closes the session."""

    def __init__(
        self, session: InferenceSession, *, owned: bool = True, has_loop: bool = False
    ) -> None:
        self.providers = session.get_providers()
        self._compiled = CompiledShapes() if may_compile(self.providers) else None
        # a quick model may run in the event loop's thread, unless a request decides how long
        self.is_computation = not has_loop and self._compiled is None
        self._has_loop, self._options = has_loop, RunOptions()
        self.inputs = input_specs(session.get_inputs(), session.get_overridable_initializers())
        self.outputs = [output_spec(arg) for arg in session.get_outputs()]
        self._class_maps = {arg.name for arg in session.get_outputs() if is_class_maps(arg.type)}
        self._is_plain = not (has_loop or self._compiled or self._class_maps)
        self.metadata: dict[str, str] = dict(session.get_modelmeta().custom_metadata_map)
        self._names = [spec.name for spec in self.outputs]
        self._session, self._owned = session, owned
        self._lock, self._is_closed = threading.Lock(), False

    def run(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Outputs by name: those asked for, or all."""
        names = self._names if outputs is None else list(outputs)
        if self._is_plain:
            return dict(zip(names, self._session.run(names, feeds), strict=True))
        if self._compiled is not None:
            return self._compiled.run(feeds, lambda: self._run(names, feeds))
        return self._run(names, feeds)

    @property
    def is_compiling(self) -> bool:
        """It runs shapes for the first time that its engine compiles for."""
        return self._compiled is not None and self._compiled.is_compiling

    def interrupt(self) -> None:
        """End the run early, after a trip of its loop; of a model without loops, it ends itself."""
        self._options.terminate = True

    def _run(self, names: list[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        options = None
        if self._has_loop:
            options = self._options = RunOptions()
            options.log_severity_level = 4  # an end by `interrupt` is no error of the engine
        found = zip(names, self._session.run(names, feeds, options), strict=True)
        return {name: class_scores(x) if name in self._class_maps else x for name, x in found}

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
    shared = are_threads_shared()
    if shared and settings.threads:
        raise OptionError(
            "threads: this model cannot have threads of its own, the server shares its threads\n"
            "leave out threads or shared_threads, or run the model in workers"
        )
    has_loop = _has_loop(path)
    if count == 1 and not (shared or settings.threads) and path.stat().st_size < _SMALL:
        single = SessionInstance(_open(path, settings, 1), has_loop=has_loop)
        if _is_quick(single):
            return [single]
        single.close()
    # each run adds the thread that calls it to the session's own threads
    threads = count * (settings.threads - 1) + 1 if settings.threads else 0
    session = _open(path, settings, threads)
    try:
        if count == 1:
            return [SessionInstance(session, has_loop=has_loop)]
        owned = _CloseLast(session, count)
        return [SessionInstance(owned, has_loop=has_loop) for _ in range(count)]  # type: ignore[arg-type]
    except BaseException:
        session.close()
        raise


def _has_loop(path: Path) -> bool:
    """Whether a model has a Loop, whose trips may be an input: found in the bytes of its file."""
    if not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return any(data.find(name) >= 0 for name in _LOOP)


def _open(path: Path, settings: ModelSettings, threads: int) -> InferenceSession:
    # between runs, its threads leave the cores to the server and to other models
    options = stop_spinning_after_runs(SessionOptions(intra_op_num_threads=threads))
    return InferenceSession(path, options, settings.providers)


def _is_quick(instance: SessionInstance) -> bool:
    """Whether a batch takes so little that a second thread would cost more than it saves.

    Sizes that are free, other than that of the batch, would make the measurement a guess.
    """
    needed = [spec for spec in instance.inputs if not spec.has_default]
    if any(-1 in spec.shape[1:] for spec in needed):
        return False
    axes = dict.fromkeys([spec.name for spec in needed if -1 in spec.shape[:1]], 0)
    feeds = random_feeds(needed, axes, _ROWS, 1, {}, 0)
    seconds = []
    try:
        for _ in range(_RUNS):
            start = time.perf_counter()
            instance.run(feeds)
            seconds.append(time.perf_counter() - start)
    except Exception:  # it cannot be run with random feeds
        return False
    return statistics.median(seconds) < _QUICK


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
