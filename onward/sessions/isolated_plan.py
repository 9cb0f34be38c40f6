"""Isolated: a model that a process of its own opens and runs, within limits that really hold."""

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
from dataclasses import asdict, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from onward import errors
from onward.errors import (
    DeadlineExceeded,
    MemoryLimitExceeded,
    NodeFailed,
    OnwardError,
    OptionError,
    ProviderError,
    WorkerDied,
)
from onward.graph.signature import NodeArg
from onward.lazy import LazyModule
from onward.providers.cancellation import terminated_error
from onward.providers.choose import INDUCTOR, Choice
from onward.providers.options import RunOptions, SessionOptions
from onward.providers.ort.ort_values import to_numpy, to_ort
from onward.sessions.io_binding import Binding
from onward.sessions.model_metadata import ModelMetadata
from onward.workers import messages
from onward.workers.deadline import WATCHDOG, check_seconds
from onward.workers.process import Child

if TYPE_CHECKING:
    from onward.graph.files import Source
    from onward.workers import model_transfer
else:
    model_transfer = LazyModule("onward.workers.model_transfer")

_BUILTINS = ("FileNotFoundError", "KeyError", "PermissionError", "TypeError", "ValueError")
_RUN_SETTINGS = (
    "log_severity_level", "log_verbosity_level", "logid", "only_execute_path_to_fetches",
    "run_config_entries", "shrink_arena",
)  # fmt: skip
_HOW_OFTEN = 0.05  # seconds between two looks whether a waiting call was ended
_OUT_OF_MEMORY = ("bad_alloc", "allocate memory", "MemoryError", "of SIGKILL")


class Isolated:
    """A model in a process of its own; after that one's death, in a fresh one."""

    def __init__(
        self, source: Source, choice: Choice, options: SessionOptions, weights: Any
    ) -> None:
        _check(options)
        check_seconds("open_timeout", options.open_timeout)
        self._options, self._most = options, _most_bytes(options)
        self._opening, self._model, self._folder = _opening(source, choice, options, weights)
        self._turns = threading.Lock()
        self._background = ThreadPoolExecutor(1, "onward-async")
        self._child: Child | None = None
        with self._turns:
            self._about = self._start()

    # -- what it is ----------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        return _args(self._about["inputs"])

    def get_outputs(self) -> list[NodeArg]:
        return _args(self._about["outputs"])

    def get_overridable_initializers(self) -> list[NodeArg]:
        return _args(self._about["overridable"])

    def get_modelmeta(self) -> ModelMetadata:
        return ModelMetadata(**self._about["meta"])

    def get_providers(self) -> list[str]:
        return list(self._about["providers"])

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {name: dict(given) for name, given in self._about["provider_options"].items()}

    def get_profiling_start_time_ns(self) -> int:
        return int(self._about["profiling_start"])

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
            raise self._nonsense() from error

    def run_with_dlpack(self, names: Any, feeds: Any, run_options: Any = None) -> list[Any]:
        """Tensors reach another process through the host."""
        arrays = {name: _on_host(feed) for name, feed in feeds.items()}
        return self.run(names, arrays, run_options)

    def run_with_ort_values(self, names: Any, feeds: Any, run_options: Any) -> list[Any]:
        arrays = {name: to_numpy(value) for name, value in feeds.items()}
        return [to_ort(result) for result in self.run(names, arrays, run_options)]

    def io_binding(self) -> Binding:
        about = self._about
        return Binding([arg[0] for arg in about["inputs"]], [arg[0] for arg in about["outputs"]])

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
            except Exception as error:  # it is the callback's to read
                message = str(error)
            callback(results, user_data, message)

        self._background.submit(work)

    # -- the process ---------------------------------------------------------------------------

    def wake(self) -> None:
        """Start a fresh process, if the last one died; whoever has the turn has seen to it."""
        if self._turns.acquire(blocking=False):
            try:
                self._awake()
            finally:
                self._turns.release()

    def _awake(self) -> Child:
        if self._child is None or not self._child.alive:
            self._about = self._start()
        assert self._child is not None
        return self._child

    def _start(self) -> dict[str, Any]:
        """Open the model in a new process: what it says about itself."""
        self._child = child = Child("onward.sessions.isolated_worker")
        weakref.finalize(self, child.end)
        seconds = self._options.open_timeout
        alarm = None if seconds is None else WATCHDOG.after(seconds, child.kill)
        try:
            about, _ = self._exchange(child, self._opening, self._model, "opened the model", None)
            _check_about(about)
        except BaseException as error:
            self._child = None
            child.end()
            late = alarm is not None and alarm.cancel()
            if late and isinstance(error, (WorkerDied, MemoryLimitExceeded)):
                raise DeadlineExceeded(
                    f"opening the model took longer than its limit of {seconds:g} s\n"
                    "raise SessionOptions.open_timeout"
                ) from None
            raise
        if alarm is not None:
            alarm.cancel()
        return about

    def _call(
        self, header: dict[str, Any], buffers: list[Any], run_options: Any
    ) -> tuple[dict[str, Any], Iterator[Any]]:
        with self._turn(run_options):
            child = self._awake()
            return self._exchange(child, header, buffers, "ran the model", run_options)

    @contextmanager
    def _turn(self, run_options: Any) -> Iterator[None]:
        """One call at a time; a call that is ended while it waits for its turn does not run."""
        while not self._turns.acquire(timeout=-1 if run_options is None else _HOW_OFTEN):
            if run_options.terminate:
                raise terminated_error()
        try:
            yield
        finally:
            self._turns.release()

    def _exchange(
        self, child: Child, header: dict[str, Any], buffers: list[Any], what: str, run_options: Any
    ) -> tuple[dict[str, Any], Iterator[Any]]:
        stop = Stop(child)
        if isinstance(run_options, RunOptions):
            run_options.followed_by(stop)
        if stop.terminate:
            raise terminated_error()
        try:
            reply, data = child.ask(header, buffers, self._most)
            told = [(str(kind), str(text)) for kind, text in reply.get("warnings", ())]
        except (MemoryError, RecursionError, TypeError, ValueError) as error:
            raise self._nonsense() from error
        except (OSError, EOFError):
            raise self._death(child, what, stop) from None
        except BaseException:  # the answer would be the next call's
            child.kill()
            raise
        finally:
            stop.over()
        if "error" in reply:
            raise _error(reply)
        _tell(told)
        return reply, data

    def _death(self, child: Child, what: str, stop: Stop) -> OnwardError:
        cause, words = child.last_words()
        if stop.terminate:
            return terminated_error()
        limit = self._options.memory_limit
        if limit is not None and any(word in f"{cause} {words}" for word in _OUT_OF_MEMORY):
            return MemoryLimitExceeded(
                f"the isolated process {what} and needed more than its memory limit of "
                f"{limit:,} bytes\nraise SessionOptions.memory_limit, or feed smaller batches"
            )
        last = words.splitlines()[-1:] or ["nothing"]
        return WorkerDied(
            f"the isolated process died {cause} while it {what}; it printed: {last[0]}\n"
            "the next run starts a new one"
        )

    def _nonsense(self) -> WorkerDied:
        """What came is no answer: nothing more is believed."""
        if self._child is not None:
            self._child.kill()
        return WorkerDied(
            "the isolated process gave an answer that is none, or too large a one\n"
            "the next run starts a new one"
        )


class Stop:
    """Follows RunOptions.terminate of one call."""

    def __init__(self, child: Child) -> None:
        self._child, self._asked, self._over = child, False, False
        self._lock = threading.Lock()

    @property
    def terminate(self) -> bool:
        return self._asked

    @terminate.setter
    def terminate(self, value: bool) -> None:
        with self._lock:
            if value and not self._asked and not self._over:
                self._asked = True
                self._child.interrupt()

    def over(self) -> None:
        """The call has ended: what comes now is not for it."""
        with self._lock:
            self._over = True
            self._child.spare()


def _on_host(feed: Any) -> Any:
    return to_numpy(feed) if hasattr(feed, "__dlpack__") else feed


def _check(options: SessionOptions) -> None:
    if options.memory_limit is not None and sys.platform != "linux":
        raise OptionError(
            f"memory_limit: an isolated session cannot hold it on {sys.platform}, only on Linux\n"
            "leave it out; run_timeout and open_timeout hold everywhere"
        )
    if options.memory_limit is not None and options.memory_limit <= 0:
        raise OptionError(f"memory_limit is a number of bytes above 0, not {options.memory_limit}")
    if getattr(options, "shared", None) is not None:
        raise OptionError("an isolated session shares no memory\nleave out shared or isolated")


def _most_bytes(options: SessionOptions) -> float:
    """What an answer may hold: no more than the model may, or than this machine has."""
    if options.memory_limit is not None:
        return options.memory_limit
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):
        return math.inf


def _opening(
    source: Source, choice: Choice, options: SessionOptions, weights: Any
) -> tuple[dict[str, Any], list[Any], tempfile.TemporaryDirectory[str] | None]:
    """The first message: options, providers and the model, by its path or with its bytes."""
    buffers: list[Any] = []
    settings: dict[str, Any] = {}
    for setting in fields(options):
        value = getattr(options, setting.name)
        if setting.name == "initializers":
            value = [[name, messages.pack(to_numpy(v), buffers)] for name, v in value.items()]
        elif is_dataclass(value) and not isinstance(value, type):
            value = asdict(value, dict_factory=_plain)
        if setting.name not in ("native", "isolated", "run_timeout", "shared"):
            settings[setting.name] = value
    path, folder = None, None
    if isinstance(source, (str, os.PathLike)):
        path = os.path.abspath(source)
    else:
        data, folder = (source, None) if isinstance(source, bytes) else model_transfer.ship(source)
        if data is not None:
            buffers.append(data)
        else:
            assert folder is not None
            path = os.path.join(folder.name, "model.onnx")
    listed = [[name, dict(given)] for name, given in choice.listed] if choice.named else []
    writes = bool(options.enable_profiling or options.optimized_model_filepath)
    header = {
        "do": "open",
        "options": settings,
        "path": path,
        "weights": None if weights is None else os.path.abspath(weights),
        "providers": listed,
        "writes": writes or any(name == INDUCTOR for name, _ in listed),
    }
    return header, buffers, folder


def _plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Settings as JSON has them."""
    return {k: sorted(v) if isinstance(v, (set, frozenset)) else v for k, v in pairs}


def _check_about(about: dict[str, Any]) -> None:
    """A description of the right form: the child is not trusted to give one."""
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
        raise WorkerDied("the isolated process gave a description that is none") from error


def _args(listed: list[Any]) -> list[NodeArg]:
    return [NodeArg(name, spelling, list(shape)) for name, spelling, shape in listed]


def _error(reply: dict[str, Any]) -> Exception:
    """The error that the child raised, of the same class and with the same text."""
    name, text = str(reply["error"]), str(reply.get("text", ""))
    if name == NodeFailed.__name__:
        return NodeFailed(text, str(reply.get("op_type", "")))
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, OnwardError):
        return kind(text)
    if name in _BUILTINS:
        found: Exception = getattr(builtins, name)(text)
        return found
    return ProviderError(f"the isolated process failed: {name}: {text}")


def _tell(told: list[tuple[str, str]]) -> None:
    for name, text in told:
        kind = getattr(builtins, name, UserWarning)
        is_warning = isinstance(kind, type) and issubclass(kind, Warning)
        warnings.warn(text, kind if is_warning else UserWarning, stacklevel=6)
