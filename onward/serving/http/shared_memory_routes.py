"""The routes that register regions of shared memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onward.errors import ModelNotFound, NotSupported, RequestInvalid
from onward.serving.http.route_bodies import json_response, read_json_object
from onward.serving.shared_regions import SharedRegions

Handler = Callable[[Request], Awaitable[Response]]


def shared_memory_routes(shared_memory: SharedRegions | None) -> list[Route]:
    """The routes of system shared memory; those of CUDA say that there is none."""
    return [
        *_routes("/v2/systemsharedmemory", *_system_handlers(shared_memory)),
        *_routes("/v2/cudasharedmemory", _cuda_status, _cuda_register, _cuda_unregister),
    ]


def _routes(folder: str, status: Handler, register: Handler, unregister: Handler) -> list[Route]:
    region = f"{folder}/region/{{region}}"
    return [
        Route(f"{folder}/status", status),
        Route(f"{region}/status", status),
        Route(f"{region}/register", register, methods=["POST"]),
        Route(f"{region}/unregister", unregister, methods=["POST"]),
        Route(f"{folder}/unregister", unregister, methods=["POST"]),
    ]


def _system_handlers(shared_memory: SharedRegions | None) -> tuple[Handler, Handler, Handler]:
    def regions() -> SharedRegions:
        if shared_memory is None:
            raise NotSupported("this server has no shared memory")
        return shared_memory

    async def status(request: Request) -> Response:
        return json_response(regions().status(request.path_params.get("region", "")))

    async def register(request: Request) -> Response:
        document = read_json_object(await request.body())
        key, size = document.get("key"), document.get("byte_size")
        offset = document.get("offset", 0)
        if not isinstance(key, str) or type(size) is not int or type(offset) is not int:
            raise RequestInvalid("a region needs 'key' (text), 'byte_size' and 'offset' (integers)")
        if size < 0 or offset < 0 or max(size, offset) >= 1 << 62:
            raise RequestInvalid("'byte_size' and 'offset' of a region must be 0 or more")
        regions().register(request.path_params["region"], key, offset, size)
        return json_response({})

    async def unregister(request: Request) -> Response:
        regions().unregister(request.path_params.get("region", ""))
        return json_response({})

    return status, register, unregister


async def _cuda_status(request: Request) -> Response:
    region = request.path_params.get("region", "")
    if region:
        raise ModelNotFound(f"Unable to find cuda shared memory region: '{region}'")
    return json_response([])


async def _cuda_register(request: Request) -> Response:
    raise NotSupported("CUDA shared memory is not supported: use system shared memory")


async def _cuda_unregister(request: Request) -> Response:
    return json_response({})  # there is none; Triton's own examples call it before they start
