"""One way to run a model, measured in a process of its own.

Engines' thread pools fight inside one process, memory is a process's own, and an engine that
crashes takes only its trial with it. The child stays and can be asked again, so that rivals take
turns and what the machine does meanwhile hits them alike.

    with Trial(path, Candidate("CPUExecutionProvider"), feeds) as trial:
        opening = trial.open()          # time to the first result, and the result
        times = trial.measure(0.5)      # seconds of each call
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from onward.errors import DeadlineExceeded, FeedError, ProviderError

BARE = "onnxruntime alone"  # a Candidate's provider: no Onward in between


@dataclass(frozen=True)
class Candidate:
    """One way to run a model."""

    provider: str
    threads: int = 0  # 0: as many as the engine finds right
    provider_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    own_passes: bool = False  # Onward's passes before the engine's own

    def __str__(self) -> str:
        words = [self.provider.removesuffix("ExecutionProvider")]
        words += [f"{name}={value}" for name, value in self.provider_options.items()]
        words += [f"{self.threads} thread{'s' * (self.threads > 1)}"] if self.threads else []
        words += ["own passes"] if self.own_passes else []
        return ", ".join(words)


@dataclass(frozen=True)
class Opening:
    """What the first run showed."""

    seconds: float  # from nothing loaded to the first result
    outputs: list[Any]


@dataclass(frozen=True)
class Timing:
    """Times of single calls, in seconds, and the process's memory at its fullest, in bytes."""

    times: list[float]
    memory: int

    @property
    def median(self) -> float:
        return float(np.median(self.times))

    @property
    def p99(self) -> float:
        return float(np.quantile(self.times, 0.99))

    @property
    def throughput(self) -> float:
        """Calls a second, one after the other."""
        return len(self.times) / sum(self.times)


class Trial:
    """A candidate in its own process; a context that ends it."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        candidate: Candidate,
        feeds: Mapping[str, Any],
        *,
        weights: str | os.PathLike[str] | None = None,
        settings: Mapping[str, Any] | None = None,
        child: Sequence[str] = ("-m", "onward.measure.trial_worker"),
    ) -> None:
        self.candidate, self._command = candidate, [sys.executable, *child]
        self._request: dict[str, Any] = {
            "model": str(Path(model).resolve()),
            "weights": None if weights is None else str(Path(weights).resolve()),
            "candidate": asdict(candidate),
            "settings": dict(settings or {}),
        }
        self._feeds = feeds
        self._folder = Path(tempfile.mkdtemp(prefix="onward-trial-"))
        self._child: subprocess.Popen[str] | None = None

    def open(self, timeout: float = 600.0) -> Opening:
        """Start the child, open the model there and run it once."""
        dtypes = write_tensors(self._folder / "feeds.npz", self._feeds)
        errors = (self._folder / "stderr").open("w")
        self._child = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )
        errors.close()
        request = {**self._request, "folder": str(self._folder), "dtypes": dtypes}
        answer = self._ask(request, timeout)
        path = self._folder / "outputs.npz"
        outputs = list(read_tensors(path, answer["dtypes"]).values()) if path.exists() else []
        return Opening(answer["seconds"], outputs)

    def measure(self, seconds: float, *, most: int = 10_000, timeout: float = 600.0) -> Timing:
        """Call again and again for about so many seconds, three times at least."""
        answer = self._ask({"seconds": seconds, "most": most}, timeout)
        return Timing(answer["times"], answer["memory"])

    def _ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        child = self._child
        assert child is not None and child.stdin is not None and child.stdout is not None
        watchdog = threading.Timer(timeout, _kill, [child])
        watchdog.daemon = True
        watchdog.start()
        try:
            child.stdin.write(json.dumps(request) + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            expired = not watchdog.is_alive()
            watchdog.cancel()
        if not line and expired:
            raise DeadlineExceeded(f"{self.candidate} took longer than {timeout:g} s")
        if not line:
            raise ProviderError(self._how_it_ended())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ProviderError(answer["error"])
        return answer

    def _how_it_ended(self) -> str:
        assert self._child is not None
        lines = (self._folder / "stderr").read_text(errors="replace").splitlines()
        last = next((line for line in reversed(lines) if line.strip()), "without a word")
        return f"{self.candidate} ended with code {self._child.wait()}: {last[:300]}"

    def close(self) -> None:
        """End the child and remove what it wrote."""
        if self._child is not None:
            _kill(self._child)
            self._child.communicate()
            self._child = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Trial:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _kill(child: subprocess.Popen[str]) -> None:
    """End a child and the processes that it started, such as Inductor's compilers."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):  # the child leads a session of its own
            os.killpg(child.pid, signal.SIGKILL)
    child.kill()


def run_trial(
    model: str | os.PathLike[str],
    candidate: Candidate,
    feeds: Mapping[str, Any],
    *,
    seconds: float = 1.0,
    weights: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> tuple[Opening, Timing]:
    """Open and measure a candidate once. A ProviderError says why it could not run.

    `settings` are fields of SessionOptions, such as `free_dimensions`.
    """
    with Trial(model, candidate, feeds, weights=weights, settings=settings) as trial:
        return trial.open(), trial.measure(seconds)


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Save tensors under numbers, and return their names and types, which the file cannot hold."""
    arrays, described = {}, []
    for number, (name, tensor) in enumerate(tensors.items()):
        if not isinstance(tensor, (np.ndarray, np.generic)):
            raise FeedError(f"{name!r} is a {type(tensor).__name__}: trials take numpy arrays")
        text = tensor.dtype == np.object_
        arrays[str(number)] = np.asarray(tensor).astype(np.str_) if text else np.asarray(tensor)
        described.append((name, tensor.dtype.name))
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return described


def read_tensors(path: Path, described: Sequence[Sequence[str]]) -> dict[str, Any]:
    """What `write_tensors` saved, with the types that the file could not hold."""
    with np.load(path, allow_pickle=False) as arrays:
        return {
            name: _typed(arrays[str(number)], dtype)
            for number, (name, dtype) in enumerate(described)
        }


def _typed(array: Any, dtype: str) -> Any:
    if array.dtype.kind == "V":  # one of ml_dtypes', which registers its names
        return array.view(np.dtype(dtype))
    return array.astype(np.object_) if dtype == "object" else array
