"""The routes of the live page: `/`, its numbers, and an example request of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from onward.errors import ServingError
from onward.measure.memory.resident_memory import MEASURABLE, resident
from onward.measure.page_style import page_style
from onward.serving.core import Core
from onward.serving.example_request import example_shape, example_value
from onward.serving.operation.live_figures import LiveFigures
from onward.serving.requests import TensorSpec

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


Joining = Callable[[], Mapping[tuple[str, str], int]]  # the JoinRule of models that have one
_JOINED = ("alone", "equal lengths", "all")


def live_routes(core: Core, figures: LiveFigures, joining: Joining = dict) -> list[Route]:
    """GET / (the page), /live (its numbers), /live/example (the inputs of a model)."""
    page = render_page()

    async def show_page(request: Request) -> Response:
        return HTMLResponse(page, headers=_HEADERS)

    async def show_numbers(request: Request) -> Response:
        name = request.query_params.get("model")
        version = request.query_params.get("version", "")
        chosen = None if name is None else (name, version)
        return _json(live_data(core, figures, chosen, joining))

    async def show_example(request: Request) -> Response:
        name = request.query_params.get("model", "")
        version = request.query_params.get("version", "")
        try:
            inputs, _ = core.signature(name, version)
        except ServingError as error:
            return _json({"error": str(error)}, error.status)
        return _json({"inputs": [example_input(spec) for spec in inputs]})

    return [
        Route("/", show_page),
        Route("/live", show_numbers),
        Route("/live/example", show_example),
    ]


def render_page() -> str:
    """The page with its style and its script: it needs no other file."""
    folder = files("onward.serving.operation.live_page")
    text = folder.joinpath("live_page.html").read_text("utf-8")
    script = folder.joinpath("live_page.js").read_text("utf-8")
    return text.replace("__STYLE__", page_style()).replace("__SCRIPT__", script)


def live_data(
    core: Core,
    figures: LiveFigures,
    chosen: tuple[str, str] | None = None,
    joining: Joining = dict,
) -> dict[str, Any]:
    """What the page shows: a row for each model of the index, with its numbers if it has some."""
    found = figures.snapshot(resident() if MEASURABLE else 0, chosen)
    numbers = found.pop("models")
    found["is_ready"] = core.is_ready
    rules = {key: _JOINED[rule] for key, rule in joining().items()}
    found["models"] = [
        {
            "name": row["name"],
            "version": row.get("version", ""),
            "state": row.get("state", ""),
            "reason": row.get("reason", ""),
            "joined": rules.get((row["name"], row.get("version", "")), ""),
            **numbers.get((row["name"], row.get("version", "")), {}),
        }
        for row in core.index()
    ]
    return found


def example_input(spec: TensorSpec) -> dict[str, Any]:
    """An input as the form fills it in: a shape, and one value for all elements."""
    shape = example_shape(spec)
    return {
        "name": spec.name,
        "datatype": spec.datatype,
        "declared": list(spec.shape),
        "axes": list(spec.axes),
        "shape": shape,
        "value": example_value(spec),
        "elements": math.prod(shape),
        "is_optional": spec.is_optional,
    }


def _json(data: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(data), status, {"cache-control": "no-store"}, "application/json")
