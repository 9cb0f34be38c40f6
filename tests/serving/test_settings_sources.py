"""Settings of serve: which source wins, how each is read, and what their errors say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onward.errors import OptionError
from onward.serving.settings import ModelSettings, ServingSettings
from onward.serving.settings_sources import (
    MergedSettings,
    environment_layer,
    file_layer,
    flag_layer,
    merge_layers,
    settings_of_model,
)


def write(folder: Path, text: str, name: str = "serve.toml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def from_variables(**variables: str) -> MergedSettings:
    return merge_layers(environment_layer({f"ONWARD_SERVE_{k}": v for k, v in variables.items()}))


def test_no_name_is_a_setting_of_both_classes() -> None:
    assert not set(ServingSettings.model_fields) & set(ModelSettings.model_fields)


def test_flags_replace_variables_and_these_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "\nhttp_port = 1\ngrpc_port = 2\nmax_batch_size = 3\nthreads = 4\n")
    variables = {"ONWARD_SERVE_GRPC_PORT": "20", "ONWARD_SERVE_MAX_BATCH_SIZE": "30", "OTHER": "x"}
    merged = merge_layers(
        file_layer(path), environment_layer(variables), flag_layer({"max_batch_size": 300})
    )
    assert (merged.server.http_port, merged.server.grpc_port) == (1, 20)
    assert (merged.model.max_batch_size, merged.model.threads) == (300, 4)
    assert merged.model.model_fields_set == {"max_batch_size", "threads"}
    assert merged.places == {
        ("http_port",): f"{path}, line 2",
        ("grpc_port",): "ONWARD_SERVE_GRPC_PORT",
        ("max_batch_size",): "--max-batch-size",
        ("threads",): f"{path}, line 5",
    }


def test_nothing_given_is_the_defaults() -> None:
    merged = merge_layers()
    assert merged.server == ServingSettings() and merged.model == ModelSettings()


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("HTTP_PORT", "0", 0),
        ("GRPC_PORT", "none", None),
        ("WATCH", "false", False),
        ("MAX_BATCH_SIZE", "auto", "auto"),
        ("BATCH_DELAY", "0.002", 0.002),
        ("API_KEYS", "one,two", ["one", "two"]),
        ("API_KEYS", '["a,b"]', ["a,b"]),
        ("PREFERRED_BATCH_SIZES", "4, 8", [4, 8]),
        ("PROVIDERS", "auto", "auto"),
        ("PROVIDERS", "cuda,cpu", ["cuda", "cpu"]),
        ("PROVIDERS", "none", None),
        ("BATCH_AXES", "x=1,y=0", {"x": 1, "y": 0}),
        ("BATCH_AXES", '{"a=b": 1}', {"a=b": 1}),
        ("LABELS", "scores=labels.txt", {"scores": "labels.txt"}),
        ("VERSION_POLICY", '{"all": {}}', {"all": {}}),
        ("OPEN_TELEMETRY", "none", "none"),  # any text is an address
    ],
)
def test_variables_are_read_by_the_type_of_their_setting(
    variable: str, text: str, value: Any
) -> None:
    merged = from_variables(**{variable: text})
    name = variable.lower()
    owner = merged.server if name in ServingSettings.model_fields else merged.model
    assert getattr(owner, name) == value


def test_tables_are_read_from_json() -> None:
    merged = from_variables(
        PADDING='{"ids": {"mask": "attention"}}',
        SEQUENCE_STATES='[{"input": "h", "output": "h_out"}]',
    )
    assert merged.model.padding["ids"].mask == "attention"
    assert merged.model.sequence_states[0].output == "h_out"


def test_empty_variable_is_not_given() -> None:
    assert from_variables(HTTP_PORT="") == merge_layers()


def test_variables_of_a_kubernetes_service_are_ignored() -> None:
    merged = from_variables(
        SERVICE_HOST="10.0.0.1",
        SERVICE_PORT="8000",
        SERVICE_PORT_HTTP="8000",
        PORT="tcp://10.0.0.1:8000",
        PORT_8000_TCP="tcp://10.0.0.1:8000",
        PORT_8000_TCP_ADDR="10.0.0.1",
    )
    assert merged == merge_layers()


def test_settings_of_a_model_are_merged_one_by_one(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "threads = 2\ntimeout = 5\n[models.Digits]\nmax_batch_size = 4\ntimeout = 'none'\n"
        '[models."a.b"]\nworkers = 1\n',
    )
    variables = {"ONWARD_SERVE_MODELS__DIGITS__MAX_BATCH_SIZE": "8"}
    flags = ["a.b.workers=2", "new.preferred_batch_sizes=2,4"]
    merged = merge_layers(file_layer(path), environment_layer(variables), flag_layer({}, flags))
    digits = settings_of_model("Digits", merged.server, merged.model)
    assert (digits.max_batch_size, digits.threads, digits.timeout) == (8, 2, None)
    assert digits.model_fields_set == {"threads", "timeout", "max_batch_size"}
    assert settings_of_model("a.b", merged.server, merged.model).workers == 2
    assert merged.server.models["new"] == {"preferred_batch_sizes": [2, 4]}
    assert settings_of_model("other", merged.server, merged.model).timeout == 5
    assert merged.places["models", "Digits", "timeout"] == f"{path}, line 5"
    assert merged.places["models", "Digits", "max_batch_size"].endswith("MAX_BATCH_SIZE")


def test_toml_and_yaml_are_equal(tmp_path: Path) -> None:
    toml = "http_port = 1\n[padding.ids]\nmask = 'm'\n[models.a]\nthreads = 1\n"
    yaml = "http_port: 1\npadding: {ids: {mask: m}}\nmodels:\n  a:\n    threads: 1\n"
    read = [file_layer(write(tmp_path, toml)), file_layer(write(tmp_path, yaml, "s.yaml"))]
    one, other = map(merge_layers, read)
    assert one.server == other.server and one.model == other.model
    assert other.places["models", "a", "threads"].endswith("s.yaml, line 5")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nhttp_prt = 1", r"serve\.toml, line 2: there is no setting 'http_prt'\n.*'http_port'"),
        ("http_port = 70000", r"line 1: http_port cannot be 70000: .*less than or equal to 65535"),
        ("log_format = 'jsn'", r"line 1: log_format cannot be 'jsn'\ndid you mean 'json'"),
        ("[models.a]\nthread = 1", r"line 2: there is no setting 'thread'\ndid you .*'threads'"),
        ("[models.a]\nhttp_port = 1", r"line 2: there is no setting 'http_port'"),
        ("models = 3", r"line 1: models has no table for a model, but 3\n"),
        ("[padding.ids]\naxs = 1", r"no setting 'axs' in padding\.ids\ndid you mean 'axis'"),
        ("[[sequence_states]]\ninput = 'a'", r"sequence_states\.0\.output is missing\n"),
        ("api_keys = 'secret'", r"line 1: api_keys must be a list of keys\n(?!.*secret)"),
        ("api_keys = ['(hidden)']", r"line 1: api_keys is hidden, .*\n.*ONWARD_SERVE_API_KEYS"),
        ("tls_key = 'k.pem'", r"line 1: tls_key is given without tls_certificate\ngive both"),
        ("admin_port = 8000", r"admin_port and http_port are both 8000\n.*--admin-port 8001"),
    ],
)
def test_error_of_a_file_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message) as error:
        merge_layers(file_layer(write(tmp_path, text)))
    assert len(str(error.value).splitlines()) <= 2 and "secret'" not in str(error.value)


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("PORT", "8000", r"^ONWARD_SERVE_PORT: there is no setting 'port'\ndid you .*http_port"),
        ("HTTP_PORT", "x", r"^ONWARD_SERVE_HTTP_PORT: http_port cannot be 'x': it must be a valid"),
        ("PADDING", "{", r"^ONWARD_SERVE_PADDING: padding cannot be '{': it must be JSON"),
        ("BATCH_AXES", "x", r"batch_axes takes NAME=VALUE"),
        ("MODELS__A", "x", r"ONWARD_SERVE_MODELS__A names no setting of a model\n.*MODELS__NAME__"),
        ("MODELS__A__THREAD", "1", r"MODELS__A__THREAD: there is no setting 'thread'\n.*threads"),
    ],
)
def test_error_of_a_variable_names_it(variable: str, text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message) as error:
        from_variables(**{variable: text})
    assert len(str(error.value).splitlines()) <= 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("digits=1", r"--models takes NAME\.SETTING=VALUE, not 'digits=1'\n"),
        ("digits.threads=x", r"--models: threads cannot be 'x'"),
        ("digits.thread=1", r"--models: there is no setting 'thread'\ndid you mean 'threads'"),
    ],
)
def test_error_of_the_flag_of_models(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        flag_layer({}, [text])


def test_hidden_keys_may_be_given_elsewhere(tmp_path: Path) -> None:
    path = write(tmp_path, "api_keys = ['(hidden)']")
    merged = merge_layers(file_layer(path), environment_layer({"ONWARD_SERVE_API_KEYS": "k"}))
    assert merged.server.api_keys == ["k"]
