"""onward serve: flags, variables and files become settings; the banner is printed; errors."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onward.cli import serve as serve_module
from onward.serving.server_info import ServedModelInfo, ServerInfo
from onward.serving.settings import ModelSettings, ServingSettings
from tests.cli.conftest import Call, is_one_line
from tests.serving.signatures import DIGITS


class FakeServer:
    """Takes what the command gives, is ready at once, and ends with a code."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.calls: list[tuple[Any, ServingSettings, ModelSettings]] = []

    def run_server(
        self,
        source: Any,
        settings: ServingSettings,
        model: ModelSettings,
        *,
        on_ready: Callable[[ServerInfo], None],
    ) -> int:
        self.calls.append((source, settings, model))
        shown = ServedModelInfo("digits", "1", DIGITS, DIGITS, "up to 8 rows")
        on_ready(ServerInfo("http://127.0.0.1:8000", None, "http://127.0.0.1:8000", [shown]))
        return self.code


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    fake = FakeServer()
    monkeypatch.setattr(serve_module, "server", SimpleNamespace(run_server=fake.run_server))
    return fake


def test_flags_variables_and_file_become_settings(
    call: Call, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.toml").write_text("http_port = 1\nthreads = 3\n")
    monkeypatch.setenv("ONWARD_SERVE_HTTP_PORT", "2")
    monkeypatch.setenv("ONWARD_SERVE_GRPC_PORT", "4")
    called = call(
        "serve", "models", "--config", tmp_path / "s.toml", "--grpc-port", "none",
        "--max-batch-size", "8", "--preferred-batch-sizes", "4,8", "--no-watch",
        "--models", "digits.workers=2", "--providers", "cuda,cpu", "--batch-axes", "x=1",
        "--padding", 'ids={"mask": "m"}', "--sequence-states", '{"input": "h", "output": "o"}',
    )  # fmt: skip
    assert called.code == 0, called.err
    [(source, settings, model)] = server.calls
    assert source == Path("models")
    assert (settings.http_port, settings.grpc_port, settings.watch) == (2, None, False)
    assert settings.models == {"digits": {"workers": 2}}
    assert (model.max_batch_size, model.preferred_batch_sizes, model.threads) == (8, [4, 8], 3)
    assert model.providers == ["cuda", "cpu"] and model.batch_axes == {"x": 1}
    assert model.padding["ids"].mask == "m" and model.sequence_states[0].input == "h"


def test_banner_is_printed_when_the_server_is_ready(call: Call, server: FakeServer) -> None:
    out = call("serve", "m.onnx").out
    assert "digits, version 1" in out and "\ncurl http://127.0.0.1:8000/v2/models/digits" in out
    assert "onward.Client(" in out and "tritonclient" in out


def test_code_of_the_server_is_the_exit_code(call: Call, server: FakeServer) -> None:
    server.code = 3
    assert call("serve", "m.onnx").code == 3


def test_show_config_needs_no_model_and_starts_nothing(call: Call, server: FakeServer) -> None:
    called = call("serve", "--show-config", "--http-port", "9000", "--api-keys", "secret")
    assert called.code == 0 and not server.calls
    shown = tomllib.loads(called.out)
    assert shown["http_port"] == 9000 and "http_port = 9000  # --http-port\n" in called.out
    assert "secret" not in called.out
    assert "secret" in call("serve", "--show-config", "--show-keys", "--api-keys", "secret").out


def test_every_setting_has_a_flag(call: Call) -> None:
    out = call("serve", "--help").out
    for settings in (ServingSettings, ModelSettings):
        for name in settings.model_fields:
            assert f"--{name.replace('_', '-')}"[:22] in out, name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is no model to serve; give one: onward serve model.onnx"),
        (["m", "--http-port", "x"], "--http-port cannot be 'x'"),
        (["m", "--max-batch-size", "-1"], "--max-batch-size cannot be '-1'"),
        (["m", "--log-format", "jsn"], "did you mean 'json'"),
        (["m", "--models", "x"], "--models takes NAME.SETTING=VALUE"),
        (["m", "--config", "none.toml"], "no config at none.toml"),
        (["m", "--padding", "ids={"], "must be JSON"),
        (["m", "--grpc-port", "8000"], "are both 8000"),
    ],
)
def test_bad_input_is_one_line(call: Call, words: list[str], message: str) -> None:
    assert is_one_line(call("serve", *words), message)


def test_wrong_variable_is_one_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_SERVE_HTTP_PROT", "1")
    assert is_one_line(call("serve", "m"), "ONWARD_SERVE_HTTP_PROT", "did you mean 'http_port'")
