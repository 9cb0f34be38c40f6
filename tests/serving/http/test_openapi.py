"""openapi: the document is valid, its examples work, and no request that it allows is a 500."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from onward.serving.http.openapi import example_body
from onward.serving.requests import TensorSpec
from tests.serving.http_fakes import Running, running


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as found:
        del found.core.models["bug"]  # its 500 is on purpose
        del found.core.models["hold"]
        yield found


def test_the_examples_of_the_document_are_answered(server: Running) -> None:
    _, document = server.ask_json("GET", "/openapi.json")
    body = document["paths"]["/v2/models/{model}/infer"]["post"]["requestBody"]
    examples = body["content"]["application/json"]["examples"]
    assert set(examples) == set(server.core.models) == set(document["x-models"])
    assert [each["value"] for each in document["x-models"]["text"]] == ["text"]
    for model, example in examples.items():
        path = f"/v2/models/{model.replace(' ', '%20')}/infer"
        assert server.ask_json("POST", path, example["value"])[0] == 200


def test_an_example_has_no_large_tensor() -> None:
    assert example_body([TensorSpec("x", "FP32", (-1, 3, 224, 224))]) is None
    assert example_body([TensorSpec("x", "INT64", (2,), is_optional=True)]) == {"inputs": []}


def test_all_operations_have_a_route(server: Running) -> None:
    _, document = server.ask_json("GET", "/openapi.json")
    values = {"model": "double", "version": "1", "region": "r"}
    for path, methods in document["paths"].items():
        for method in methods:
            url = re.sub(r"\{(\w+)\}", lambda found: values[found[1]], path)
            status, _, body = server.ask(method.upper(), url)
            assert status != 405
            assert b"there is no route" not in body


@pytest.mark.parametrize(
    ("mode", "count"),
    [
        ("POSITIVE", 2),
        pytest.param("POSITIVE", 40, marks=pytest.mark.slow),
        pytest.param("NEGATIVE", 20, marks=pytest.mark.slow),
    ],
)
def test_schemathesis_finds_no_server_error(server: Running, mode: str, count: int) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{server.port}/openapi.json")
    statuses: list[int] = []

    def check(case: Any) -> None:
        response = case.call()
        assert response.status_code < 500, (case, response.text)
        statuses.append(response.status_code)

    quiet = settings(
        max_examples=count,
        deadline=None,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    for result in schema.get_all_operations():
        cases = result.ok().as_strategy(generation_mode=schemathesis.GenerationMode[mode])
        with suppress(Unsatisfiable):  # nothing can be wrong with a route without parameters
            quiet(given(case=cases)(check))()
    assert {400, 404} <= set(statuses)


def test_an_example_has_elements_that_the_input_takes() -> None:
    spec = TensorSpec("city", "BYTES", (-1,), samples=("Bern", "Rome"))
    body = example_body([spec])
    assert body is not None and body["inputs"][0]["data"] == ["Bern"]
