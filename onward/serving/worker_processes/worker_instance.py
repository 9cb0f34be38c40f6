"""A model in a worker process: it may crash or leak, and the server goes on.

instance = open_worker_instance("model.onnx", settings, "digits", "1")
instance.run({"x": x})          # WorkerDied: the process ended; the next run has a new one

A new process starts at once in the background. A model whose processes keep dying is quarantined:
its runs raise ModelUnavailable until it is loaded again.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from onward.errors import DeadlineExceeded, ModelUnavailable, OnwardError, WorkerDied
from onward.graph.paths import check_readable
from onward.graph.signature import NodeArg
from onward.providers.options import SessionOptions
from onward.serving.compiled_shapes import COMPILE_FACTOR, CompiledShapes, may_compile
from onward.serving.models.signature import class_scores, input_specs, is_class_maps, output_spec
from onward.serving.requests import Array, TensorSpec
from onward.serving.settings import ModelSettings
from onward.serving.worker_processes.buffer_area import create_area
from onward.serving.worker_processes.quarantine import Quarantine
from onward.serving.worker_processes.shared_weights import (
    CPU,
    file_states,
    model_files,
    shared_model,
)
from onward.workers import messages
from onward.workers.deadline import WATCHDOG
from onward.workers.option_messages import pack_options
from onward.workers.worker import Worker

_LOG = logging.getLogger("onward.serving")
_OPEN_TIMEOUT = 600.0  # seconds; large models load slowly
_MALFORMED = (AttributeError, KeyError, TypeError, ValueError, StopIteration)


def open_worker_instances(
    path: str | os.PathLike[str], settings: ModelSettings, name: str, version: str
) -> list[WorkerInstance]:
    """All worker processes of a model (`settings.workers`), which share one quarantine."""
    opening = WorkerFactory(path, settings, name, version)
    quarantine = Quarantine(name)
    count = max(settings.workers, 1)
    with ThreadPoolExecutor(min(count, 8)) as pool:
        futures = [pool.submit(opening.open, quarantine) for _ in range(count)]
    failed = [error for each in futures if (error := each.exception()) is not None]
    if not failed:
        return [each.result() for each in futures]
    for each in futures:
        if each.exception() is None:
            each.result().close()
    raise failed[0]


def open_worker_instance(
    path: str | os.PathLike[str], settings: ModelSettings, name: str, version: str
) -> WorkerInstance:
    """Open a model in one worker process, with a quarantine of its own."""
    return WorkerFactory(path, settings, name, version).open(Quarantine(name))


class WorkerFactory:
    """Opens workers of a model: keeps the first request and the model's files for all of them."""

    def __init__(
        self, path: str | os.PathLike[str], settings: ModelSettings, name: str, version: str
    ) -> None:
        source = Path(path).absolute()
        check_readable(source)
        self._files = model_files(source)
        self._request = _open_request(source, self._files, settings)
        self._label = f"the worker process of model {name!r} version {version}"
        limit = settings.run_limit
        self._run_timeout = None if limit == math.inf else limit

    def open(self, quarantine: Quarantine) -> WorkerInstance:
        return WorkerInstance(
            self._request,
            self._label,
            quarantine,
            states=lambda: file_states(self._files),
            run_timeout=self._run_timeout,
        )


def _open_request(source: Path, files: list[Path], settings: ModelSettings) -> dict[str, Any]:
    """The first request to a worker: its options and providers, and which file it opens."""
    providers = settings.providers if isinstance(settings.providers, list) else []
    shares = settings.workers > 1 and providers in ([], CPU)
    shared = shared_model(source, files) if shares else None
    options = SessionOptions(
        intra_op_num_threads=settings.threads, memory_limit=settings.memory_limit
    )
    return {
        "do": "open",
        "options": pack_options(options, []),
        "path": str(shared or source),
        "weights": None,
        "providers": [[each, {}] for each in providers],
        "is_shared": shared is not None,
        "writes": False,
    }


class WorkerInstance:
    """A model in a process; `run` is for one thread at a time, and waits for a new process."""

    def __init__(
        self,
        request: dict[str, Any],
        label: str,
        quarantine: Quarantine,
        *,
        states: Callable[[], Any],
        run_timeout: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request, self._label, self._quarantine = request, label, quarantine
        self._states, self._run_timeout, self._clock = states, run_timeout, clock
        self._opened_states = states()
        self._area = create_area()
        self._turn = threading.Lock()
        self._worker: Worker | None = None
        self._is_closed = False
        self._compiled: CompiledShapes | None = None  # of the process that lives
        self._class_maps: set[str] = set()
        self._inputs: list[TensorSpec] = []
        self._outputs: list[TensorSpec] = []
        try:
            with self._turn:
                self._start()
        except BaseException:
            self.close()
            raise

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        return self._inputs

    @property
    def outputs(self) -> Sequence[TensorSpec]:
        return self._outputs

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        worker = self._worker
        return worker.pid if worker is not None and worker.alive else None

    @property
    def is_compiling(self) -> bool:
        """It runs shapes for the first time that its engine compiles for."""
        compiled = self._compiled
        return compiled is not None and compiled.is_compiling

    def run(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Outputs by name: those asked for, or all."""
        names = [each.name for each in self._outputs] if outputs is None else list(outputs)
        buffers: list[Any] = []
        packed = [[name, messages.pack(feed, buffers)] for name, feed in feeds.items()]
        request = {"do": "run", "names": names, "feeds": packed, "run_options": None}
        with self._turn:
            worker = self._living_worker()
            try:
                if self._compiled is None:
                    results = self._ask(worker, request, buffers)
                else:
                    with self._report_compiling():
                        results = self._compiled.run(
                            feeds, lambda: self._ask(worker, request, buffers)
                        )
            except WorkerDied as death:
                self._on_death(worker, death)
                raise
            except OnwardError:
                self._quarantine.on_success()  # it refused the feeds, and lives
                raise
        self._quarantine.on_success()
        return dict(zip(names, results, strict=True))

    def close(self) -> None:
        """End the process. Closing twice does nothing."""
        self._is_closed = True
        worker = self._worker
        if worker is not None:
            worker.kill()  # a run that waits for it ends now
        with self._turn:
            if self._worker is not None:
                self._worker.close()
                self._worker = None
            if self._area is not None:
                self._area.close()
                self._area = None

    def _ask(self, worker: Worker, request: dict[str, Any], buffers: list[Any]) -> list[Any]:
        if self._area is not None:
            places, buffers = self._area.put(buffers)
            request = {**request, "do": "run_in_area", "area": self._area.file, "places": places}
        try:
            timeout = self._run_timeout
            if timeout is not None and self.is_compiling:
                timeout *= COMPILE_FACTOR
            reply, data = worker.ask(request, buffers, doing="ran the model", timeout=timeout)
        except DeadlineExceeded as error:
            raise WorkerDied(f"{error}; its process was ended") from None
        try:
            if self._area is not None:
                data = self._area.take(reply["places"], data)
            results = [messages.unpack(result, data) for result in reply["results"]]
            assert len(results) == len(request["names"])
            for number, name in enumerate(request["names"] if self._class_maps else ()):
                if name in self._class_maps:
                    results[number] = class_scores(results[number])
        except (AssertionError, *_MALFORMED) as error:
            worker.kill()
            raise worker.invalid_reply() from error
        return results

    @contextlib.contextmanager
    def _report_compiling(self) -> Iterator[None]:
        """Say that a run takes long; of one that does not compile, its death says so."""
        if self._run_timeout is None:
            yield
            return
        report = WATCHDOG.after(self._run_timeout, self._log_compiling)
        try:
            yield
        finally:
            report.cancel()

    def _log_compiling(self) -> None:
        if self.is_compiling and self._run_timeout is not None:
            _LOG.warning(
                "%s: a run has not ended after %g s: its engine may compile for these shapes; its "
                "process is not ended before %g s",
                self._label, self._run_timeout, COMPILE_FACTOR * self._run_timeout,
            )  # fmt: skip

    # -- the process ---------------------------------------------------------------------------

    def _living_worker(self) -> Worker:
        """The process, a new one if it ended; the caller has the turn."""
        if self._is_closed:
            raise ModelUnavailable(f"{self._label} was closed: the model is being unloaded")
        if self._quarantine.reason is not None:
            raise ModelUnavailable(self._quarantine.reason)
        if self._worker is None or not self._worker.alive:
            self._restart()
        assert self._worker is not None
        return self._worker

    def _restart(self) -> None:
        if self._states_now() != self._opened_states:  # a new process would answer as another model
            raise ModelUnavailable(
                f"{self._label} died, and the model's file has changed since it was opened\n"
                "load the model again"
            )
        try:
            self._start()
        except WorkerDied as death:
            self._quarantine.on_death(self._clock(), str(death))
            raise
        except OnwardError as error:
            raise ModelUnavailable(f"{self._label} cannot be started again: {error}") from error
        _LOG.info("%s was started again", self._label)

    def _states_now(self) -> Any:
        with contextlib.suppress(OSError):
            return self._states()
        return None

    def _start(self) -> None:
        if self._worker is not None:
            self._worker.close()
        inherits = () if self._area is None else (self._area.file,)
        worker = Worker(
            "onward.serving.worker_processes.worker_process", self._label, inherits=inherits
        )
        self._worker = worker
        try:
            wanted = [name for name, _ in self._request["providers"]]
            timeout = _OPEN_TIMEOUT * (COMPILE_FACTOR if may_compile(wanted) else 1)
            about, _ = worker.ask(self._request, doing="opened the model", timeout=timeout)
            compiles = may_compile([str(each) for each in about["providers"]])
            inputs = input_specs(_args(about["inputs"]), _args(about["overridable"]))
            results = _args(about["outputs"])
            outputs = [output_spec(arg) for arg in results]
            class_maps = {arg.name for arg in results if is_class_maps(arg.type)}
        except BaseException as error:
            self._worker = None
            worker.close()
            if isinstance(error, _MALFORMED) and not isinstance(error, OnwardError):
                raise worker.invalid_reply() from error
            raise
        self._inputs, self._outputs = inputs, outputs
        self._compiled = CompiledShapes() if compiles else None
        self._class_maps = class_maps
        if self._is_closed:  # while it started
            worker.close()

    def _on_death(self, worker: Worker, death: WorkerDied) -> None:
        """Count the death, and start a new process in the background."""
        worker.close()
        if self._is_closed:
            return
        self._quarantine.on_death(self._clock(), str(death))
        _LOG.warning("%s", " ".join(str(death).split()))
        if self._quarantine.reason is not None:
            _LOG.error("%s", " ".join(self._quarantine.reason.split()))
        else:
            threading.Thread(target=self._restart_ahead, name="onward-respawn", daemon=True).start()

    def _restart_ahead(self) -> None:
        """Start the next process before a run asks for it; that run gets the error, if any."""
        with self._turn, contextlib.suppress(OnwardError, OSError):
            self._living_worker()


def _args(listed: Any) -> list[NodeArg]:
    """Inputs or outputs from a worker's description, which is not trusted."""
    found = []
    for name, kind, shape in listed:
        if not isinstance(name, str) or not isinstance(kind, str):
            raise ValueError("a name or a type is not text")
        found.append(NodeArg(name, kind, list(shape)))
    return found
