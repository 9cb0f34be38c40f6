"""onward.serve and onward.Server: a whole server, with real sockets."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onward
from onward.errors import InvalidModel, OptionError
from onward.serving.serve import name_source, split_settings

DOUBLE = """
    <ir_version: 10, opset_import: ["" : 21]>
    double (float[n,3] x) => (float[n,3] y) { y = Add(x, x) }"""
QUIET: dict[str, Any] = {"http_port": 0, "grpc_port": 0, "log_format": "none"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "double.onnx"
    onnx.save(onnx.parser.parse_model(DOUBLE), path)
    return path


def test_a_file_a_session_and_a_function_are_served(model: Path) -> None:
    def thrice(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return 3 * x

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    sources = {"file": model, "session": onward.InferenceSession(model), "thrice": thrice}
    with onward.Server(sources, **QUIET) as server, onward.Client(server.url) as client:
        for name, factor in (("file", 2), ("session", 2), ("thrice", 3)):
            (y,) = client.infer(name, {"x": x}).values()
            np.testing.assert_array_equal(y, factor * x)


def test_a_server_knows_its_addresses_and_models(model: Path) -> None:
    with onward.Server(model, admin_port=0, **QUIET) as server:
        info = server.info
        assert info.http_url == server.url != info.admin_url
        assert info.grpc_address is not None and info.grpc_address.startswith("127.0.0.1:")
        assert [(each.name, each.version) for each in info.models] == [("double", "1")]
        assert info.models[0].batching == "up to 32 rows"


def test_a_model_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    with pytest.raises((InvalidModel, OptionError), match=r"bad"):
        onward.Server(tmp_path / "bad.onnx", **QUIET)


def test_settings_of_a_model_that_is_not_there_are_named(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with onward.Server(model, models={"duoble": {"threads": 1}, "*": {"warm_up": False}}, **QUIET):
        pass
    [warning] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert warning == (
        "settings are given for model 'duoble', which is not there: did you mean 'double'?"
    )


def test_closing_twice_is_fine(model: Path) -> None:
    server = onward.Server(model, **QUIET)
    server.close()
    server.close()


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(OptionError, match="there is no setting 'http_prt'\ndid you mean"):
        split_settings({"http_prt": 1})


def test_sources_get_names() -> None:
    def twice(x: Any) -> Any:
        return 2 * x

    assert name_source("models", None) == "models"
    assert name_source("m.onnx", "net") == {"net": Path("m.onnx")}
    assert name_source(twice, None) == {"twice": twice}
    assert list(name_source(functools.partial(twice), None)) == ["twice"]  # type: ignore[arg-type]
    assert list(name_source(lambda x: x, None)) == ["model"]  # type: ignore[arg-type]


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_with_exit_code_0(model: Path, number: int) -> None:
    command = [sys.executable, "-m", "onward", "serve", str(model)]
    command += ["--http-port", "0", "--grpc-port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        lines = iter(child.stdout)
        next(line for line in lines if "HTTP" in line)
        child.send_signal(number)
        assert child.wait(60) == 0
