"""A child process that answers messages, and what is known of its end."""

from __future__ import annotations

import collections
import contextlib
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from onward.workers import messages
from onward.workers.deadline import WATCHDOG, Alarm

if sys.platform == "linux":
    import fcntl

_GRACE = 0.2  # seconds from being asked to stop to being killed
_PATIENCE = 5.0  # seconds that a dying process may take
_SHOWN_AT_MOST = 1 << 20  # bytes of what it prints that are passed on
_PIPE_BYTES = 1 << 20  # tensors pass in fewer turns than with the default of 64 KiB
_ROOT = str(Path(__file__).parents[2])
_RUN = (  # this very package, wherever it lies, without putting it before the standard library
    "import runpy, sys; root, module = sys.argv[1:]; "
    "sys.path[:0] = [root] * (root not in sys.path); "
    "runpy.run_module(module, run_name='__main__')"
)


class Child:
    """One process, its pipes, and the last lines that it printed."""

    def __init__(self, module: str) -> None:
        self._process = _start([sys.executable, "-P", "-c", _RUN, _ROOT, module])
        self._writing = threading.Lock()
        self._alarm: Alarm | None = None
        self._killed = False
        self._printed: collections.deque[bytes] = collections.deque(maxlen=20)
        self._printer = threading.Thread(
            target=_pass_on, args=(self._process.stderr, self._printed), daemon=True
        )
        self._printer.start()

    @property
    def alive(self) -> bool:
        return not self._killed and self._process.poll() is None

    def ask(
        self, header: dict[str, Any], buffers: Sequence[Any], limit: float
    ) -> tuple[dict[str, Any], Iterator[Any]]:
        """Send a request and wait for its answer: OSError, EOFError or ValueError if none comes."""
        with self._writing:
            messages.send(self._process.stdin, header, buffers)
        return messages.receive(self._process.stdout, limit)

    def interrupt(self) -> None:
        """Ask it to stop what it does, and kill it if it does not. Never waits."""
        self._alarm = WATCHDOG.after(_GRACE, self.kill)
        stdin: Any = self._process.stdin
        if sys.platform == "win32" or not self._writing.acquire(blocking=False):
            return
        try:
            if select.select([], [stdin], [], 0)[1]:  # there is room for a short message
                messages.send(stdin, {"do": "terminate"})
        except (OSError, ValueError):
            pass  # it is gone already
        finally:
            self._writing.release()

    def spare(self) -> None:
        """It answered: it need not be killed any more."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def kill(self) -> None:
        self._killed = True  # the system may take a moment to agree
        self._process.kill()

    def end(self) -> None:
        """Kill it, and clear away what is left."""
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def last_words(self) -> tuple[str, str]:
        """What ended it (a signal's name or an exit code) and the last line that it printed."""
        try:
            code = self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._printer.join(_PATIENCE)
        lines = b"".join(self._printed).decode("utf-8", "replace").strip()
        return _cause(code), lines


def _cause(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"of {signal.Signals(-code).name}"
    except ValueError:
        return f"of signal {-code}"


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start it from the watchdog's thread: Linux ends a child with the thread that started it."""
    started: list[subprocess.Popen[bytes] | OSError] = []
    done = threading.Event()

    def start() -> None:
        try:
            pipe = subprocess.PIPE
            started.append(
                subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe)
            )
        except OSError as error:
            started.append(error)
        finally:
            done.set()

    WATCHDOG.after(0, start)
    done.wait()
    (process,) = started
    if isinstance(process, OSError):
        raise process
    if sys.platform == "linux":
        for end in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # the administrator may allow less
                fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)  # type: ignore[arg-type]
    return process


def _pass_on(pipe: Any, printed: collections.deque[bytes]) -> None:
    """Show what a child prints, up to a limit, and remember the end of it."""
    shown = 0
    with pipe:
        while data := pipe.read(4096):
            printed.append(data)
            if shown < _SHOWN_AT_MOST and sys.stderr is not None:
                shown += len(data)
                sys.stderr.write(data.decode("utf-8", "replace"))
