"""The plan of an isolated session: a separate process opens and runs the model, within limits."""

from __future__ import annotations

import builtins
import math
import os
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onward.errors import (
    DeadlineExceeded,
    MemoryLimitExceeded,
    OnwardError,
    OptionError,
    WorkerDied,
)
from onward.graph.signature import NodeArg
from onward.lazy import LazyModule
from onward.providers.cancellation import terminated_error
from onward.providers.choose import INDUCTOR, ProviderChoice
from onward.providers.options import RunOptions, SessionOptions
from onward.providers.ort.ort_values import to_numpy, to_ort
from onward.sessions.io_binding import Binding
from onward.sessions.model_metadata import ModelMetadata
from onward.workers import messages
from onward.workers.deadline import check_seconds
from onward.workers.option_messages import pack_options
from onward.workers.worker import Reply, Worker

if TYPE_CHECKING:
    from onward.graph.files import Source
    from onward.workers import model_transfer
else:
    model_transfer = LazyModule("onward.workers.model_transfer")

_RUN_SETTINGS = (
    "log_severity_level", "log_verbosity_level", "logid", "only_execute_path_to_fetches",
    "run_config_entries", "shrink_arena",
)  # fmt: skip
_POLL_INTERVAL = 0.05  # seconds between two checks whether a waiting call was terminated
_OUT_OF_MEMORY = ("bad_alloc", "allocate memory", "MemoryError", "of SIGKILL")


class IsolatedPlan:
    """A model in a separate process; if that dies, the next run starts a new one."""

    native = None

    def __init__(
        self, source: Source, choice: ProviderChoice, options: SessionOptions, weights: Any
    ) -> None:
        _check(options)
        check_seconds("open_timeout", options.open_timeout)
        self._options, self._max_bytes = options, _max_reply_bytes(options)
        self._request, self._model, self._folder = _open_request(source, choice, options, weights)
        self._turns = threading.Lock()
        self._background = ThreadPoolExecutor(1, "onward-async")
        self._worker: Worker | None = None
        with self._turns:
            self._description = self._start()

    # -- what it is ----------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        return _args(self._description["inputs"])

    def get_outputs(self) -> list[NodeArg]:
        return _args(self._description["outputs"])

    def get_overridable_initializers(self) -> list[NodeArg]:
        return _args(self._description["overridable"])

    def get_modelmeta(self) -> ModelMetadata:
        return ModelMetadata(**self._description["meta"])

    def get_providers(self) -> list[str]:
        return list(self._description["providers"])

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {name: dict(given) for name, given in self._description["provider_options"].items()}

    def get_profiling_start_time_ns(self) -> int:
        return int(self._description["profiling_start"])

    def end_profiling(self) -> str:
        reply, _ = self._call({"do": "end_profiling"}, [], None)
        return str(reply["file"])

    # -- running -------------------------------------------------------------------------------

    def run(self, names: Any, feeds: Mapping[str, Any], run_options: Any = None) -> list[Any]:
        buffers: list[Any] = []
        packed = [[name, messages.pack(feed, buffers)] for name, feed in feeds.items()]
        header = {
            "do": "run",
            "names": None if names is None else list(names),
            "feeds": packed,
            "run_options": {
                name: getattr(run_options, name)
                for name in _RUN_SETTINGS
                if hasattr(run_options, name)
            },
        }
        reply, data = self._call(header, buffers, run_options)
        try:
            return [messages.unpack(result, data) for result in reply["results"]]
        except (KeyError, TypeError, ValueError, StopIteration) as error:
            raise self._invalid_reply() from error

    def run_with_dlpack(self, names: Any, feeds: Any, run_options: Any = None) -> list[Any]:
        """Tensors of devices are copied to the host, and from there to the process."""
        arrays = {name: _on_host(feed) for name, feed in feeds.items()}
        return self.run(names, arrays, run_options)

    def run_with_ort_values(self, names: Any, feeds: Any, run_options: Any) -> list[Any]:
        arrays = {name: to_numpy(value) for name, value in feeds.items()}
        return [to_ort(result) for result in self.run(names, arrays, run_options)]

    def io_binding(self) -> Binding:
        return Binding(
            [arg.name for arg in self.get_inputs()], [arg.name for arg in self.get_outputs()]
        )

    def run_with_iobinding(self, binding: Binding, run_options: Any) -> None:
        names = binding.output_names() or [arg.name for arg in self.get_outputs()]
        binding.receive(names, self.run_with_ort_values(names, binding.feeds(), run_options))

    def run_async(
        self, names: Any, feeds: Any, callback: Callable[..., None], user_data: Any, options: Any
    ) -> None:
        def work() -> None:
            results, message = [], ""
            try:
                results = self.run(names, feeds, options)
            except Exception as error:  # the callback gets it
                message = str(error)
            callback(results, user_data, message)

        self._background.submit(work)

    # -- the process ---------------------------------------------------------------------------

    def ensure_ready(self) -> None:
        """Start a new process if the last one died, unless another call has the turn."""
        if self._turns.acquire(blocking=False):
            try:
                self._living_worker()
            finally:
                self._turns.release()

    def close(self) -> None:
        """End the process."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
        self._background.shutdown(wait=False)
        if self._folder is not None:
            self._folder.cleanup()

    def _living_worker(self) -> Worker:
        if self._worker is None or not self._worker.alive:
            self._description = self._start()
        assert self._worker is not None
        return self._worker

    def _start(self) -> dict[str, Any]:
        """Open the model in a new process, and return its description."""
        module = "onward.sessions.isolated_worker"
        worker = self._worker = Worker(module, "the isolated process", shows_prints=True)
        weakref.finalize(self, worker.close)
        seconds = self._options.open_timeout
        try:
            description, _ = self._exchange(
                worker, self._request, self._model, "opened the model", None, seconds
            )
            _check_description(description)
        except BaseException as error:
            self._worker = None
            worker.close()
            if isinstance(error, DeadlineExceeded):
                raise DeadlineExceeded(
                    f"opening the model took longer than its limit of {seconds:g} s\n"
                    "raise SessionOptions.open_timeout"
                ) from None
            raise
        return description

    def _call(self, request: dict[str, Any], buffers: list[Any], run_options: Any) -> Reply:
        with self._turn(run_options):
            worker = self._living_worker()
            return self._exchange(worker, request, buffers, "ran the model", run_options)

    @contextmanager
    def _turn(self, run_options: Any) -> Iterator[None]:
        """One call at a time; a call that is terminated while it waits does not run."""
        while not self._turns.acquire(timeout=-1 if run_options is None else _POLL_INTERVAL):
            if run_options.terminate:
                raise terminated_error()
        try:
            yield
        finally:
            self._turns.release()

    def _exchange(
        self,
        worker: Worker,
        request: dict[str, Any],
        buffers: list[Any],
        doing: str,
        run_options: Any,
        timeout: float | None = None,
    ) -> Reply:
        stop = Terminator(worker)
        if isinstance(run_options, RunOptions):
            run_options.followed_by(stop)
        if stop.terminate:
            raise terminated_error()
        try:
            reply, data = worker.ask(
                request, buffers, doing=doing, limit=self._max_bytes, timeout=timeout
            )
        except WorkerDied as death:
            raise self._explain_death(worker, doing, stop, death) from death.__cause__
        finally:
            stop.finish()
        try:
            raised = [(str(kind), str(text)) for kind, text in reply.get("warnings", ())]
        except (TypeError, ValueError) as error:
            raise self._invalid_reply() from error
        _warn(raised)
        return reply, data

    def _explain_death(
        self, worker: Worker, doing: str, stop: Terminator, death: WorkerDied
    ) -> OnwardError:
        if stop.terminate:
            return terminated_error()
        cause, printed = worker.ending()
        limit = self._options.memory_limit
        if limit is not None and any(word in f"{cause} {printed}" for word in _OUT_OF_MEMORY):
            return MemoryLimitExceeded(
                f"the isolated process {doing} and needed more than its memory limit of "
                f"{limit:,} bytes\nraise SessionOptions.memory_limit, or feed smaller batches"
            )
        return WorkerDied(f"{death}\nthe next run starts a new process")

    def _invalid_reply(self) -> WorkerDied:
        """Kill a process whose reply is malformed: no other reply of it is read."""
        assert self._worker is not None
        self._worker.kill()
        return WorkerDied(f"{self._worker.invalid_reply()}\nthe next run starts a new process")


class Terminator:
    """Interrupts the process when RunOptions.terminate is set during a call."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._is_set, self._is_finished = worker, False, False
        self._lock = threading.Lock()

    @property
    def terminate(self) -> bool:
        return self._is_set

    @terminate.setter
    def terminate(self, value: bool) -> None:
        with self._lock:
            if value and not self._is_set and not self._is_finished:
                self._is_set = True
                self._worker.interrupt()

    def finish(self) -> None:
        """The call has ended: interrupt it no more."""
        with self._lock:
            self._is_finished = True
            self._worker.cancel_kill()


def _on_host(feed: Any) -> Any:
    return to_numpy(feed) if hasattr(feed, "__dlpack__") else feed


def _check(options: SessionOptions) -> None:
    if options.memory_limit is not None and sys.platform != "linux":
        raise OptionError(
            f"memory_limit: an isolated session cannot hold it on {sys.platform}, only on Linux\n"
            "leave it out; run_timeout and open_timeout hold everywhere"
        )
    if options.memory_limit is not None and options.memory_limit <= 0:
        raise OptionError(
            f"memory_limit must be a number of bytes above 0, not {options.memory_limit}"
        )
    if getattr(options, "shared", None) is not None:
        raise OptionError("an isolated session cannot share memory\nleave out shared or isolated")


def _max_reply_bytes(options: SessionOptions) -> float:
    """The largest reply that is read: the memory limit, or this machine's memory."""
    if options.memory_limit is not None:
        return options.memory_limit
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):
        return math.inf


def _open_request(
    source: Source, choice: ProviderChoice, options: SessionOptions, weights: Any
) -> tuple[dict[str, Any], list[Any], tempfile.TemporaryDirectory[str] | None]:
    """The first request: options, providers and the model, by its path or as bytes."""
    buffers: list[Any] = []
    settings = pack_options(options, buffers)
    path, folder = None, None
    if isinstance(source, (str, os.PathLike)):
        path = os.path.abspath(source)
    elif (data := model_transfer.model_bytes(source)) is not None:
        buffers.append(data)
    else:
        folder = tempfile.TemporaryDirectory(prefix="onward-")
        path = str(model_transfer.write_model(source, Path(folder.name)))
    listed = [[name, dict(given)] for name, given in choice.listed] if choice.named else []
    writes = bool(options.enable_profiling or options.optimized_model_filepath)
    request = {
        "do": "open",
        "options": settings,
        "path": path,
        "weights": None if weights is None else os.path.abspath(weights),
        "providers": listed,
        "writes": writes or any(name == INDUCTOR for name, _ in listed),
    }
    return request, buffers, folder


def _check_description(about: dict[str, Any]) -> None:
    """Refuse a malformed description: the process is not trusted."""
    try:
        for kind in ("inputs", "outputs", "overridable"):
            for name, spelling, shape in about[kind]:
                assert isinstance(name, str) and isinstance(spelling, str)
                assert all(size is None or isinstance(size, (int, str)) for size in shape)
        assert isinstance(about["meta"]["custom_metadata_map"], dict)
        ModelMetadata(**about["meta"])
        assert all(isinstance(name, str) for name in about["providers"])
        assert all(isinstance(given, dict) for given in about["provider_options"].values())
        int(about["profiling_start"])
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise WorkerDied("the isolated process sent a malformed description") from error


def _args(listed: list[Any]) -> list[NodeArg]:
    return [NodeArg(name, spelling, list(shape)) for name, spelling, shape in listed]


def _warn(raised: list[tuple[str, str]]) -> None:
    """Raise the warnings of the process in this one."""
    for name, text in raised:
        kind = getattr(builtins, name, UserWarning)
        is_warning = isinstance(kind, type) and issubclass(kind, Warning)
        warnings.warn(text, kind if is_warning else UserWarning, stacklevel=6)
