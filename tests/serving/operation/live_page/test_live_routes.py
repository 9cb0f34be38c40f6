"""The live page: its numbers, and the page in a real browser, with 20 models and long names."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from onward.errors import ServerOverloaded
from onward.serving.observer import RequestTimes
from onward.serving.operation.live_figures import WIDTH, LiveFigures
from onward.serving.operation.live_page.live_routes import example_input, live_routes, render_page
from onward.serving.requests import TensorSpec
from tests.runner.report.browser import OpenedPage, open_page
from tests.serving.fake_core import FakeCore
from tests.serving.signatures import SIGNATURES

EVIL = "</script><img src=x onerror=alert(1)>'\"&" + "long" * 60


def busy_figures(models: list[str]) -> LiveFigures:
    """Five minutes of requests for each model."""
    now = [0.0]
    figures = LiveFigures(lambda: now[0])
    for tick in range(120):
        now[0] = tick * WIDTH
        for place, model in enumerate(models):
            times = RequestTimes(0.001 * (place + 1), 0, 0.002 + tick * 1e-5, 0, 4)
            figures.on_queue(model, "1", tick % 7)
            figures.on_request(model, "1", "", times, None)
            figures.on_batch(model, "1", 2, 4, 0.002)
        figures.on_request(models[0], "1", "", times, ServerOverloaded("full"))
    now[0] += WIDTH
    return figures


@pytest.fixture
def core() -> FakeCore:
    long = {f"model-{n}-with-a-name-" + "that-is-long-" * 6: SIGNATURES["small"] for n in range(18)}
    return FakeCore({"digits": SIGNATURES["tokens"], EVIL: SIGNATURES["image"], **long})


@pytest.fixture
def figures(core: FakeCore) -> LiveFigures:
    return busy_figures(list(core.models))


@pytest.fixture
def client(core: FakeCore, figures: LiveFigures) -> TestClient:
    return TestClient(Starlette(routes=live_routes(core, figures, lambda: {("digits", "1"): 1})))


def test_numbers_have_a_row_for_each_model(client: TestClient) -> None:
    found = client.get("/live").json()
    assert len(found["models"]) == 20 and found["is_ready"] is True and found["memory"] > 0
    row = found["models"][0]
    assert row["name"] == "digits" and row["throughput"] == 1 / WIDTH and row["rows"] == 4
    assert found["total"]["throughput"] == 20 / WIDTH
    assert [each["joined"] for each in found["models"][:2]] == ["equal lengths", ""]
    assert client.get("/live").headers["cache-control"] == "no-store"


def test_series_are_of_one_model_on_request(client: TestClient) -> None:
    found = client.get("/live", params={"model": "digits", "version": "1"}).json()
    assert found["series"]["throughput"][-1] == 1 / WIDTH
    assert client.get("/live", params={"model": "none"}).json()["series"]["p50"][-1] is None


def test_example_has_the_inputs_of_a_model(client: TestClient) -> None:
    found = client.get("/live/example", params={"model": "digits"}).json()
    assert found["inputs"] == [example_input(spec) for spec in SIGNATURES["tokens"]]
    assert found["inputs"][0]["shape"] == [1, 1] and found["inputs"][2]["is_optional"]
    missing = client.get("/live/example", params={"model": "no"})
    assert missing.status_code == 404 and "no" in missing.json()["error"]


def test_page_needs_no_other_server(client: TestClient) -> None:
    answer = client.get("/")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert set(re.findall(r"https?://[^\s\"']+", answer.text)) == {"http://www.w3.org/2000/svg"}
    assert "__" not in re.sub(r"__\w+__ ", "", render_page()).replace("__proto__", "")


Sent = list[Any]


@contextmanager
def running(core: FakeCore, figures: LiveFigures, *more: Route) -> Iterator[tuple[str, Sent]]:
    """A real server of the page, and the bodies that its infer route got."""
    sent: Sent = []

    async def infer(request: Request) -> Response:
        sent.append(await request.json())
        outputs = [{"name": "scores", "datatype": "FP32", "shape": [1, 2], "data": [0.25, 0.75]}]
        return JSONResponse({"outputs": outputs})

    path = "/v2/models/{name:path}/versions/1/infer"
    routes = [*more, *live_routes(core, figures), Route(path, infer, methods=["POST"])]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(Starlette(routes=routes), log_level="critical", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", sent
        finally:
            server.should_exit = True
            thread.join(30)


def script_page(script: str) -> Route:
    """The page with a user's actions: they run once it has drawn itself."""
    wait = "const watch = setInterval(() => { if (!document.querySelector('#send:enabled')) return;"
    added = f"<script>{wait} clearInterval(watch); {script} }}, 50);</script></body>"

    async def show(request: Request) -> Response:
        return HTMLResponse(render_page().replace("</body>", added))

    return Route("/acted", show)


MEASURE = (
    "document.documentElement.setAttribute('data-overflow',"
    " document.documentElement.scrollWidth - document.documentElement.clientWidth);"
)
SEND = "document.getElementById('send').click();"
CHOSEN = json.dumps([EVIL, "1"], separators=(",", ":"))
SEND_RANDOM = f"""
const tried = document.getElementById('tried'); tried.value = {json.dumps(CHOSEN)};
tried.dispatchEvent(new Event('change'));
const again = setInterval(() => {{
  const text = document.querySelector('#fields textarea');
  if (!text || text.value !== '0' || !document.querySelector('#send:enabled')) return;
  clearInterval(again); text.value = 'random'; {SEND}
}}, 50);""".replace("</", "<\\/")


def check_drawn(page: OpenedPage) -> None:
    assert 'data-drawn="yes"' in page.dom and "data-error" not in page.dom
    assert page.console == []
    assert page.count(r'<td class="name">') == 20
    assert page.count(r'<path d="M[^"]+" class="curve"') == 8
    assert 'data-overflow="0"' in page.dom  # nothing is wider than the screen
    assert "<img" not in page.dom and "onerror" in page.dom
    assert "p99" in page.dom and "model-17-with-a-name" in page.dom


@pytest.mark.integration
def test_page_draws_twenty_models_and_sends_a_request(
    core: FakeCore, figures: LiveFigures, tmp_path: Path
) -> None:
    with running(core, figures, script_page(MEASURE + SEND)) as (url, sent):
        page = open_page(f"{url}/acted", tmp_path / "browser")
    check_drawn(page)
    ids = {"name": "input_ids", "shape": [1, 1], "datatype": "INT64", "data": [0]}
    mask = {"name": "mask", "shape": [1, 1], "datatype": "BOOL", "data": [False]}
    assert sent == [{"inputs": [ids, mask]}]  # the optional one is left out
    assert re.search(r"200 in .*scores  FP32 \[1, 2\]\s+0.25,0.75", page.dom, re.S)


@pytest.mark.integration
def test_page_on_a_phone_sends_a_large_input(
    core: FakeCore, figures: LiveFigures, tmp_path: Path
) -> None:
    with running(core, figures, script_page(MEASURE + SEND_RANDOM)) as (url, sent):
        page = open_page(f"{url}/acted", tmp_path / "browser", "--window-size=360,800")
    check_drawn(page)
    [tensor] = sent[0]["inputs"]
    assert tensor["shape"] == [1, 3, 224, 224] and len(tensor["data"]) == 3 * 224 * 224
    assert -1 <= min(tensor["data"]) < max(tensor["data"]) <= 1
    assert "150,528 in all" in page.dom


@pytest.mark.integration
def test_page_asks_for_a_key(core: FakeCore, figures: LiveFigures, tmp_path: Path) -> None:
    async def refuse(request: Request) -> Response:
        return JSONResponse({"error": "a key is missing"}, 401)

    with running(core, figures, Route("/live", refuse)) as (url, _):
        page = open_page(f"{url}/", tmp_path / "browser")
    assert "key needed" in page.dom and "data-error" not in page.dom
    assert re.search(r'id="key-card"(?! hidden)', page.dom)


@pytest.mark.integration
def test_script_errors_fail_the_tests_above(
    core: FakeCore, figures: LiveFigures, tmp_path: Path
) -> None:
    async def broken(request: Request) -> Response:
        return JSONResponse({"models": []})

    with running(core, figures, Route("/live", broken)) as (url, _):
        page = open_page(f"{url}/", tmp_path / "browser")
    assert re.search(r'data-error="TypeError', page.dom)


def test_large_and_optional_inputs() -> None:
    spec = TensorSpec("x", "BYTES", (-1, 3), ("batch", ""), is_optional=True)
    assert example_input(spec) == {
        "name": "x", "datatype": "BYTES", "declared": [-1, 3], "axes": ["batch", ""],
        "shape": [1, 3], "value": "text", "elements": 3, "is_optional": True,
    }  # fmt: skip
