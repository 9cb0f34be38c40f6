"""docs_page: the page at /docs in a real browser; its forms send requests to the server."""

from __future__ import annotations

import html
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from onward.serving.http.docs_page import docs_page
from tests.runner.report.browser import open_page
from tests.serving.http_fakes import running

# Opens a route of the page, sends its form, and copies the answer out of the frame.
DRIVER = """<!doctype html><iframe id="page" src="/docs"></iframe><pre id="copy"></pre><script>
const page = () => document.getElementById("page").contentDocument;
async function until(found) {
  for (let left = 200; left; left--) {
    const value = found();
    if (value) return value;
    await new Promise((later) => setTimeout(later, 10));
  }
  throw new Error("not found: " + found);
}
(async () => {
  const select = '[data-route="post /v2/models/{model}/infer"]';
  (await until(() => page() && page().querySelector(select))).open = true;
  const form = await until(() => page().querySelector(select + " form"));
  form.model.value = "MODEL";
  form.model.dispatchEvent(new Event("change"));
  form.requestSubmit();
  const answer = await until(() => page().querySelector(select + " .answer[data-status]"));
  document.getElementById("copy").textContent = answer.textContent;
})();
</script>"""


async def _drive(request: Request) -> HTMLResponse:
    return HTMLResponse(DRIVER.replace("MODEL", request.query_params["model"]))


@pytest.mark.integration
def test_the_form_of_a_model_sends_a_request_that_it_accepts(tmp_path: Path) -> None:
    with running(extra_routes=[Route("/drive", _drive)]) as server:
        address = f"http://127.0.0.1:{server.port}"
        listed = open_page(f"{address}/docs", tmp_path / "a")
        driven = open_page(f"{address}/drive?model=double", tmp_path / "b")
    assert not [line for line in listed.console + driven.console if "favicon" not in line]
    assert listed.count("<details") == 27
    assert "200 in " in driven.dom
    assert '"model_name": "double"' in html.unescape(driven.dom)
    assert [request.model for request in server.core.requests] == ["double"]


def test_the_page_asks_no_other_host() -> None:
    text = docs_page()
    assert "connect-src 'self'" in text
    assert "//" not in text.replace("// ", "")
