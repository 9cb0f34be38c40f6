"""What all connections of one HTTP server share."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from onward.serving.access import Access
from onward.serving.core import Core
from onward.serving.http.connection_limits import Connections
from onward.serving.http.repeated_requests import RepeatedRequests
from onward.serving.settings import ServingSettings
from onward.serving.shared_regions import SharedRegions


@dataclass(slots=True)
class HttpService:
    """The core, the settings, the application and the open connections."""

    core: Core
    settings: ServingSettings
    access: Access
    connections: Connections
    loop: asyncio.AbstractEventLoop
    app: Any  # the ASGI application of all routes but infer
    shared_memory: SharedRegions | None = None
    has_infer: bool = True
    executor: Executor | None = None  # None: the loop's own
    repeated: RepeatedRequests = field(default_factory=RepeatedRequests)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # of the application
