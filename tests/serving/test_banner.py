"""The banner: its addresses, its models, and programs that parse."""

from __future__ import annotations

import ast
import shlex
from dataclasses import replace

import pytest

from onward.serving.banner import banner_sections, banner_text
from onward.serving.requests import TensorSpec
from onward.serving.server_info import ServedModelInfo, ServerInfo
from tests.serving.signatures import SIGNATURES


def info(*models: ServedModelInfo, needs_key: bool = False) -> ServerInfo:
    url = "https://127.0.0.1:8000" if needs_key else "http://127.0.0.1:8000"
    return ServerInfo(url, "127.0.0.1:8001", "http://127.0.0.1:8002", list(models), needs_key)


def model(inputs: list[TensorSpec], name: str = "digits") -> ServedModelInfo:
    outputs = [TensorSpec("scores", "FP32", (-1, 10), ("batch", ""))]
    return ServedModelInfo(name, "1", inputs, outputs, "up to 32 rows")


@pytest.mark.parametrize("needs_key", [False, True])
@pytest.mark.parametrize("inputs", SIGNATURES.values(), ids=SIGNATURES)
def test_programs_are_valid(inputs: list[TensorSpec], needs_key: bool) -> None:
    sections = {
        each.title: each for each in banner_sections(info(model(inputs), needs_key=needs_key))
    }
    for title in ("with tritonclient", "with onward"):
        assert sections[title].is_code
        ast.parse("\n".join(sections[title].lines))
    [command] = sections["with curl"].lines
    words = shlex.split(command)
    assert any(word.endswith("://127.0.0.1:8000/v2/models/digits/infer") for word in words)
    assert ('-H "Authorization: Bearer $ONWARD_KEY"' in command) == needs_key
    client = "\n".join(sections["with tritonclient"].lines)
    assert ("ssl=True" in client) == needs_key


def test_programs_for_a_model_of_sequences_start_one() -> None:
    text = banner_text(info(replace(model(SIGNATURES["small"]), keeps_sequences=True)))
    assert text.count(", sequence_id=1, sequence_start=True, sequence_end=True)") == 2
    assert '"parameters":{"sequence_id":1,' in text


def test_text_has_every_address_and_the_model() -> None:
    text = banner_text(info(model(SIGNATURES["tokens"])))
    for part in (
        "digits, version 1  (batching: up to 32 rows)",
        "input_ids  INT64 [batch, time]",
        "mask  BOOL [?, ?]",
        "bias  FP16 [8]  (optional)",
        "scores  FP32 [batch, 10]",
        "HTTP     http://127.0.0.1:8000\n",
        "gRPC     127.0.0.1:8001\n",
        "http://127.0.0.1:8000/docs",
        "http://127.0.0.1:8002/metrics",
    ):
        assert part in text
    assert "\ncurl " in text  # commands begin in the first column


def test_many_models_and_tensors_stay_short() -> None:
    models = [model(SIGNATURES["many"], f"model{n}") for n in range(200)]
    text = banner_text(info(*models))
    assert "serving 200 models" in text and "and 197 more: model3, model4" in text
    assert "in  and 3 more" in text
    assert len(text.splitlines()) < 80


def test_names_in_urls_are_quoted() -> None:
    assert "/v2/models/a%2Fb%20c/infer" in banner_text(info(model(SIGNATURES["small"], "a/b c")))


def test_no_model_says_how_to_load_one() -> None:
    text = banner_text(info())
    assert "no model is ready" in text and "/load" in text and "curl" not in text
