"""The parent's side of a child process: start it, ask it, and report how it ended.

with Worker("onward.measure.trial_worker", "the trial") as worker:
    reply, buffers = worker.ask({"do": "measure", "seconds": 0.5}, timeout=60)

The child's side is `onward.workers.request_loop`.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from onward import errors
from onward.errors import DeadlineExceeded, NodeFailed, OnwardError, ProviderError, WorkerDied
from onward.workers import messages
from onward.workers.deadline import WATCHDOG, TimedCall

if sys.platform == "linux":
    import fcntl

_GRACE = 0.2  # seconds between an interrupt and the kill
_EXIT_TIMEOUT = 5.0  # seconds that a dying process may take
_MAX_SHOWN = 1 << 20  # bytes of its stderr that are passed on
_PIPE_BYTES = 1 << 20  # larger than the default of 64 KiB: tensors need fewer system calls
_BUILTINS = (
    "FileNotFoundError", "KeyError", "OSError", "PermissionError", "TypeError", "ValueError"
)  # fmt: skip
_PACKAGE_PARENT = str(Path(__file__).parents[2])  # the folder that holds `onward`
_RUN = (  # import this package from where it lies, without shadowing the standard library
    "import runpy, sys; root, module = sys.argv[1:]; "
    "sys.path[:0] = [root] * (root not in sys.path); "
    "runpy.run_module(module, run_name='__main__')"
)

Reply = tuple[dict[str, Any], Iterator[Any]]  # a header, and its buffers


class Worker:
    """A child process that answers one request after another; a context that ends it.

    `module` is run by name; `arguments`, if given, are the interpreter's instead. `name` says in
    errors what died. `shows_prints` passes its stderr on to ours. `inherits` are file descriptors
    that the child has under the same numbers (not on Windows).
    """

    def __init__(
        self,
        module: str,
        name: str,
        *,
        arguments: Sequence[str] | None = None,
        shows_prints: bool = False,
        inherits: Sequence[int] = (),
    ) -> None:
        arguments = arguments or ("-P", "-c", _RUN, _PACKAGE_PARENT, module)
        self.name = name
        self._process = _start([sys.executable, *arguments], inherits)
        self._writing = threading.Lock()
        self._pending_kill: TimedCall | None = None
        self._killed = self._closed = False
        self._printed: collections.deque[bytes] = collections.deque(maxlen=20)
        self._reader = threading.Thread(
            target=_read_prints,
            args=(self._process.stderr, self._printed, shows_prints),
            daemon=True,
        )
        self._reader.start()

    @property
    def alive(self) -> bool:
        return not self._killed and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(
        self,
        request: dict[str, Any],
        buffers: Sequence[Any] = (),
        *,
        doing: str = "answered",
        limit: float = math.inf,
        timeout: float | None = None,
        progress: Callable[..., None] | None = None,
    ) -> Reply:
        """Send a request and wait for its reply of at most `limit` bytes.

        An error that the child raised is raised here. WorkerDied: it ended, or sent what is not a
        reply. DeadlineExceeded: it took longer than `timeout` seconds, and was killed.
        """
        deadline = None if timeout is None else WATCHDOG.after(timeout, self.kill)
        try:
            with self._writing:
                messages.send(self._process.stdin, request, buffers)
            reply, data = self._receive(limit)
            while "progress" in reply:
                if progress is not None:
                    progress(**reply["progress"])
                reply, data = self._receive(limit)
        except (OSError, EOFError):
            if deadline is not None and deadline.cancel():
                raise DeadlineExceeded(f"{self.name} took longer than {timeout:g} s") from None
            raise self._death(doing) from None
        except BaseException:  # the next request would get this reply
            self.kill()
            raise
        finally:
            if deadline is not None:
                deadline.cancel()
        if "error" in reply:
            raise _child_error(reply)
        return reply, data

    def _receive(self, limit: float) -> Reply:
        try:
            return messages.receive(self._process.stdout, limit)
        except (MemoryError, RecursionError, TypeError, ValueError) as error:
            raise self.invalid_reply() from error

    def interrupt(self, *, kill_after: float | None = _GRACE) -> None:
        """Ask it to stop the current request, and kill it later if it does not. Never waits."""
        if kill_after is not None:
            self._pending_kill = WATCHDOG.after(kill_after, self.kill)
        stdin: Any = self._process.stdin
        if sys.platform == "win32" or not self._writing.acquire(blocking=False):
            return
        try:
            if select.select([], [stdin], [], 0)[1]:  # a short message does not block
                messages.send(stdin, {"do": "interrupt"})
        except (OSError, ValueError):
            pass  # it has ended
        finally:
            self._writing.release()

    def cancel_kill(self) -> None:
        """The interrupted request was answered in time."""
        if self._pending_kill is not None:
            self._pending_kill.cancel()
            self._pending_kill = None

    def kill(self) -> None:
        """Kill it and the processes that it started, such as Inductor's compilers."""
        if self._closed:
            return
        self._killed = True  # poll() may still say that it runs
        if hasattr(os, "killpg"):
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def close(self) -> None:
        """Kill it, reap it and close its pipes. Closing twice does nothing."""
        if self._closed:
            return
        self.kill()
        self._closed = True
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ending(self) -> tuple[str, str]:
        """What ended it (a signal's name or an exit code), and the last lines that it printed."""
        try:
            code = self._process.wait(_EXIT_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._reader.join(_EXIT_TIMEOUT)
        return _cause(code), b"".join(self._printed).decode("utf-8", "replace").strip()

    def invalid_reply(self) -> WorkerDied:
        """The error for a reply that is not one."""
        return WorkerDied(f"{self.name} sent a reply that is malformed or too large")

    def _death(self, doing: str) -> WorkerDied:
        cause, printed = self.ending()
        last = (printed.splitlines() or ["nothing"])[-1]
        return WorkerDied(f"{self.name} died {cause} while it {doing}; it printed: {last[:300]}")


def _cause(code: int) -> str:
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"of {signal.Signals(-code).name}"
    except ValueError:
        return f"of signal {-code}"


def _child_error(reply: dict[str, Any]) -> Exception:
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
    return ProviderError(f"{name}: {text}")


def _start(command: list[str], inherits: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start it from the watchdog's thread: Linux ends a child with the thread that started it."""
    started: list[subprocess.Popen[bytes] | OSError] = []
    done = threading.Event()

    def start() -> None:
        try:
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                command,
                bufsize=0,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                start_new_session=True,  # Ctrl-C is the parent's to handle
                pass_fds=tuple(inherits),
            )
            started.append(process)
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


def _read_prints(pipe: Any, printed: collections.deque[bytes], shows: bool) -> None:
    """Remember the end of what a child prints, and pass it on up to a limit if asked."""
    shown = 0
    with pipe:
        while data := pipe.read(4096):
            printed.append(data)
            if shows and shown < _MAX_SHOWN and sys.stderr is not None:
                shown += len(data)
                sys.stderr.write(data.decode("utf-8", "replace"))
