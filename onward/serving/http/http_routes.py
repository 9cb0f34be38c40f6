"""The routes of the HTTP server except infer, as a Starlette application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from onward.errors import (
    ModelUnavailable,
    NotSupported,
    OnwardError,
    RequestInvalid,
)
from onward.serving.core import Core
from onward.serving.http.docs_page import docs_page
from onward.serving.http.http_response import describe_error, error_body
from onward.serving.http.openapi import make_document
from onward.serving.http.route_bodies import json_response, read_json_object, read_load_parameters
from onward.serving.http.shared_memory_routes import shared_memory_routes
from onward.serving.log_control import read_log_settings, update_log_settings
from onward.serving.settings import ServingSettings
from onward.serving.shared_regions import SharedRegions

Handler = Callable[[Request], Awaitable[Response]]
Metrics = Callable[[], bytes]

_TRACE_SETTINGS = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}


@dataclass(frozen=True, slots=True)
class RouteSources:
    """What the routes read from."""

    core: Core
    settings: ServingSettings
    is_draining: Callable[[], bool]
    shared_memory: SharedRegions | None = None
    metrics: Metrics | None = None
    has_infer: bool = True  # not on the admin port
    has_admin: bool = True  # not on the main port if there is an admin port


def make_app(sources: RouteSources, extra_routes: Sequence[BaseRoute] = ()) -> ASGIApp:
    """The application. Errors are JSON, `{"error": text}`, whatever happens."""
    routes = [
        *extra_routes,
        *_health_routes(sources),
        *_model_routes(sources),
        *_repository_routes(sources),
        *shared_memory_routes(sources.shared_memory),
        *_server_routes(sources),
        *_pages(sources),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            HTTPException: _answer_http_error,
            OnwardError: _answer_error,
            Exception: _answer_unexpected,
        },
    )
    app.router.redirect_slashes = False
    return _log_unexpected(app)


def _health_routes(sources: RouteSources) -> list[Route]:
    core = sources.core

    async def live(request: Request) -> Response:
        return json_response({"live": True})

    async def ready(request: Request) -> Response:
        if sources.is_draining():
            return json_response({"ready": False, "error": "the server is shutting down"}, 503)
        if not core.is_ready:
            return json_response({"ready": False, "error": "the server is not ready"}, 503)
        return json_response({"ready": True})

    async def model_ready(request: Request) -> Response:
        name, version = _model_of(request)
        if not core.is_model_ready(name, version):
            raise ModelUnavailable(f"Model version not ready: {name!r}")
        return json_response({"name": name, "ready": True})

    return [
        Route("/v2/health/live", live),
        Route("/v2/health/ready", ready),
        *_of_model("/ready", model_ready),
    ]


def _model_routes(sources: RouteSources) -> list[Route]:
    core = sources.core

    async def server_metadata(request: Request) -> Response:
        return json_response(core.server_metadata())

    async def models(request: Request) -> Response:
        return json_response({"models": sorted({each["name"] for each in core.index(True)})})

    async def metadata(request: Request) -> Response:
        return json_response(core.model_metadata(*_model_of(request)))

    async def config(request: Request) -> Response:
        return json_response(core.model_config(*_model_of(request)))

    async def statistics(request: Request) -> Response:
        return json_response(core.statistics(*_model_of(request)))

    async def generate(request: Request) -> Response:
        core.model_metadata(*_model_of(request))  # a model that does not exist comes first
        raise NotSupported(
            "this server does not generate text: send tensors to the infer route instead"
        )

    return [
        Route("/v2", server_metadata),
        Route("/v2/", server_metadata),
        Route("/v2/models", models),
        Route("/v2/models/stats", statistics),
        *_of_model("", metadata),
        *_of_model("/config", config),
        *_of_model("/stats", statistics),
        *_of_model("/generate", generate, "POST"),
        *_of_model("/generate_stream", generate, "POST"),
    ]


def _repository_routes(sources: RouteSources) -> list[Route]:
    core = sources.core

    async def index(request: Request) -> Response:
        document = read_json_object(await request.body())
        only_ready = document.get("ready", False)
        if not isinstance(only_ready, bool):
            raise RequestInvalid("Unable to parse 'ready': it is neither true nor false")
        return json_response(core.index(only_ready))

    async def load(request: Request) -> Response:
        _check_model_control(sources)
        name = request.path_params["model"]
        await core.load(name, read_load_parameters(await request.body()))
        return json_response({"name": name, "load": True})

    async def unload(request: Request) -> Response:
        _check_model_control(sources)
        name = request.path_params["model"]
        parameters = read_json_object(await request.body()).get("parameters") or {}
        with_dependents = isinstance(parameters, dict) and parameters.get(
            "unload_dependents", False
        )
        if not isinstance(with_dependents, bool) or not isinstance(parameters, dict):
            raise RequestInvalid("Unable to parse 'unload_dependents'")
        await core.unload(name, with_dependents)
        return json_response({"name": name, "unload": True})

    routes = [Route("/v2/repository/index", index, methods=["POST"])]
    if sources.has_admin:
        routes += [
            Route("/v2/repository/models/{model}/load", load, methods=["POST"]),
            Route("/v2/repository/models/{model}/unload", unload, methods=["POST"]),
        ]
    return routes


def _server_routes(sources: RouteSources) -> list[Route]:
    async def logging_settings(request: Request) -> Response:
        if request.method == "POST":
            if not sources.has_admin:
                raise NotSupported(
                    "the log's settings cannot be changed on this port\n"
                    f"use the admin port, {sources.settings.admin_port}"
                )
            return json_response(update_log_settings(read_json_object(await request.body())))
        return json_response(read_log_settings())

    async def trace_settings(request: Request) -> Response:
        model = request.path_params.get("model", "")
        if model:
            sources.core.model_metadata(model)
        if request.method == "POST":
            changes = read_json_object(await request.body())
            if any(each != _TRACE_SETTINGS.get(name) for name, each in changes.items() if each):
                raise NotSupported(
                    "this server does not write Triton's traces\n"
                    "start it with open_telemetry=ADDRESS to send traces by OpenTelemetry"
                )
        return json_response(_TRACE_SETTINGS)

    async def metrics(request: Request) -> Response:
        assert sources.metrics is not None
        return Response(sources.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    routes = [
        Route("/v2/logging", logging_settings, methods=["GET", "POST"]),
        Route("/v2/trace/setting", trace_settings, methods=["GET", "POST"]),
        Route("/v2/models/{model}/trace/setting", trace_settings, methods=["GET", "POST"]),
    ]
    if sources.metrics is not None and sources.has_admin:
        routes.append(Route("/metrics", metrics))
    return routes


def _pages(sources: RouteSources) -> list[Route]:
    async def openapi(request: Request) -> Response:
        document = make_document(
            sources.core, has_infer=sources.has_infer, has_admin=sources.has_admin
        )
        return json_response(document)

    async def docs(request: Request) -> Response:
        return HTMLResponse(docs_page())

    async def home(request: Request) -> Response:
        return RedirectResponse("/docs")

    return [
        Route("/openapi.json", openapi),
        Route("/docs", docs),
        Route("/", home),  # reached only if the extra routes have no page of their own
    ]


def _of_model(ending: str, handler: Handler, method: str = "GET") -> list[Route]:
    """The route of a model and that of one of its versions."""
    return [
        Route(f"/v2/models/{{model}}{ending}", handler, methods=[method]),
        Route(f"/v2/models/{{model}}/versions/{{version}}{ending}", handler, methods=[method]),
    ]


def _model_of(request: Request) -> tuple[str, str]:
    return request.path_params.get("model", ""), request.path_params.get("version", "")


def _check_model_control(sources: RouteSources) -> None:
    if not sources.settings.allow_model_control:
        raise RequestInvalid(
            "explicit model load / unload is not allowed\n"
            "the server was started with allow_model_control off"
        )


async def _answer_error(request: Request, error: Exception) -> Response:
    status, text, retry_after = describe_error(error)
    headers = {"Retry-After": str(max(1, round(retry_after)))} if retry_after is not None else None
    return Response(error_body(text), status, headers, "application/json")


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = error.detail if error.status_code != 404 else f"there is no route {request.url.path}"
    return Response(error_body(text), error.status_code, error.headers, "application/json")


async def _answer_unexpected(request: Request, error: Exception) -> Response:
    text = f"internal error of the server: {type(error).__name__}"
    return Response(error_body(text), 500, media_type="application/json")


def _log_unexpected(app: ASGIApp) -> ASGIApp:
    """Starlette raises an unexpected error again after its answer: log it, and go on."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except Exception as error:
            describe_error(error)

    return call
