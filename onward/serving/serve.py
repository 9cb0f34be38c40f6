"""Serve models until a signal, or in the background: `onward.serve` and `onward.Server`.

onward.serve("model.onnx")                              # until Ctrl-C

with onward.Server(lambda x: 2 * x, http_port=0) as server:
    onward.Client(server.url).infer("model", {"x": x})
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from onward.configs.check_settings import make_settings
from onward.errors import OptionError, PackageMissing
from onward.message_text import suggest_names
from onward.serving.banner import banner_text
from onward.serving.server_info import ServerInfo
from onward.serving.settings import ModelSettings, ServingSettings

try:
    from onward.serving.lifecycle import RunningServer, Source, new_event_loop
except ModuleNotFoundError as error:
    if error.name is None or error.name.split(".")[0] == "onward":
        raise
    raise PackageMissing(
        f"serving needs the package {error.name}\npip install 'onward[serve]'"
    ) from error


def serve(model: Any, *, name: str | None = None, **settings: Any) -> None:
    """Serve a model over HTTP and gRPC until Ctrl-C or SIGTERM.

    `model` is a file, a folder of models, an InferenceSession, a function of arrays, or several by
    name: {"digits": session, "twice": function}. `settings` are those of `onward serve`:
    http_port=8080, max_batch_size=32, ...
    """
    server, each = split_settings(settings)
    code = run_server(name_source(model, name), server, each, on_ready=_print_banner)
    if code:
        sys.exit(code)


def run_server(
    source: Source,
    settings: ServingSettings,
    model_settings: ModelSettings,
    *,
    on_ready: Callable[[ServerInfo], None],
) -> int:
    """Serve until SIGTERM or SIGINT; a second one does not wait. Returns the exit code."""

    async def run() -> int:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        signals: list[int] = []

        def on_signal(number: int) -> None:
            signals.append(number)
            stop.set()
            if len(signals) > 1:  # the user does not want to wait
                os._exit(128 + number)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal, number)
        server = RunningServer(source, settings, model_settings)
        starting = asyncio.ensure_future(server.start())
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
            return 0
        on_ready(starting.result())
        await stopping
        await server.stop()
        return 0

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(run())


class Server:
    """A server in a thread of this process: for tests, notebooks and programs; a context."""

    def __init__(self, model: Any, *, name: str | None = None, **settings: Any) -> None:
        server, each = split_settings(settings)
        self._server = RunningServer(name_source(model, name), server, each)
        self._started = threading.Event()
        self._error: BaseException | None = None
        self._info: ServerInfo | None = None
        self._loop = new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="onward-serve", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error

    @property
    def info(self) -> ServerInfo:
        """Addresses and models."""
        assert self._info is not None
        return self._info

    @property
    def url(self) -> str:
        """The address of HTTP."""
        return self.info.http_url

    def close(self) -> None:
        """Answer what was accepted, then stop. Closing twice is fine."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        try:
            self._info = await self._server.start()
        except BaseException as error:
            self._error = error
            return
        finally:
            self._started.set()
        await self._stop.wait()
        await self._server.stop()


def split_settings(given: Mapping[str, Any]) -> tuple[ServingSettings, ModelSettings]:
    """The server's and the models' settings out of keywords.

    >>> server, model = split_settings({"http_port": 0, "max_batch_size": 8})
    >>> server.http_port, model.max_batch_size
    (0, 8)
    """
    of_server, of_model = ServingSettings.model_fields, ModelSettings.model_fields
    for name in given:
        if name not in of_server and name not in of_model:
            known = [*of_server, *of_model]
            raise OptionError(f"there is no setting {name!r}\n{suggest_names(name, known)}")
    return (
        make_settings(ServingSettings, {k: v for k, v in given.items() if k in of_server}),
        make_settings(ModelSettings, {k: v for k, v in given.items() if k in of_model}),
    )


def name_source(model: Any, name: str | None) -> Source:
    """A file or folder as it is; sessions and functions with names."""
    if isinstance(model, Mapping):
        return dict(model)
    if isinstance(model, (str, os.PathLike)):
        return model if name is None else {name: Path(model)}
    inner = model
    while isinstance(inner, functools.partial):
        inner = inner.func
    given = getattr(inner, "__name__", "model")
    return {name or (given if given.isidentifier() else "model"): model}


def _print_banner(info: ServerInfo) -> None:
    print(banner_text(info), flush=True)
