"""--show-config: every setting, its place, and TOML that reads back equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.errors import OptionError
from onward.serving.settings import ModelSettings, ServingSettings
from onward.serving.settings_sources import (
    MergedSettings,
    environment_layer,
    file_layer,
    flag_layer,
    merge_layers,
)
from onward.serving.shown_settings import show_settings

VARIABLES = {
    "ONWARD_SERVE_GRPC_PORT": "none",
    "ONWARD_SERVE_PADDING": '{"ids \\"x\\"": {"axis": 2, "value": "[PAD]"}}',
    "ONWARD_SERVE_SEQUENCE_STATES": '[{"input": "h", "output": "o"}]',
    "ONWARD_SERVE_MODELS__DIGITS__TIMEOUT": "none",
    "ONWARD_SERVE_MODELS__a b__LABELS": "y=labels.txt",
    "ONWARD_SERVE_TIMEOUT": "2.5",
}


def read_back(text: str, folder: Path) -> MergedSettings:
    (folder / "shown.toml").write_text(text)
    return merge_layers(file_layer(folder / "shown.toml"))


def test_every_setting_is_shown_with_its_place(tmp_path: Path) -> None:
    merged = merge_layers(environment_layer(VARIABLES), flag_layer({"http_port": 9000}))
    text = show_settings(merged)
    for settings in (ServingSettings, ModelSettings):
        for name, field in settings.model_fields.items():
            assert f"# {field.description}\n" in text
            assert name == "models" or f"{name} = " in text, name
    assert 'host = "127.0.0.1"  # default\n' in text
    assert "http_port = 9000  # --http-port\n" in text
    assert 'grpc_port = "none"  # ONWARD_SERVE_GRPC_PORT\n' in text
    assert "# tls_key =  # default\n" in text
    assert '[models.digits]\ntimeout = "none"  # ONWARD_SERVE_MODELS__DIGITS__TIMEOUT\n' in text


def test_shown_settings_read_back_equal(tmp_path: Path) -> None:
    for merged in (
        merge_layers(),
        merge_layers(environment_layer(VARIABLES), flag_layer({"api_keys": ['k"\n']})),
    ):
        again = read_back(show_settings(merged, show_keys=True), tmp_path)
        assert again.server == merged.server and again.model == merged.model


def test_keys_are_hidden_and_a_file_with_hidden_keys_is_refused(tmp_path: Path) -> None:
    merged = merge_layers(flag_layer({"api_keys": ["abc-1", "abc-2"]}))
    text = show_settings(merged)
    assert "abc" not in text and "--show-keys prints them" in text
    with pytest.raises(OptionError, match="api_keys is hidden"):
        read_back(text, tmp_path)
