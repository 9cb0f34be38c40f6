"""The pages of serving: their tables equal the settings and metrics; the manifests are sound."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from onward.serving.observer import RequestTimes
from onward.serving.operation.metrics import Metrics
from onward.serving.settings import ModelSettings, Padding, ServingSettings
from onward.serving.settings_sources import environment_layer, file_layer, merge_layers

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/serving.md"
OPERATIONS = ROOT / "docs/serving-operations.md"
MANIFESTS = ROOT / "examples/kubernetes"


def settings_table(settings: type[BaseModel]) -> str:
    """The table of a settings class, as docs/serving.md has it."""
    lines = [f"| {'key' if settings is Padding else 'setting'} | default | |", "|---|---|---|"]
    for name, field in settings.model_fields.items():
        default = field.default
        text = default if isinstance(default, str) else json.dumps(default)
        shown = "" if default in (None, [], {}) else f"`{text}`"
        lines.append(f"| `{name}` | {shown} | {field.description} |")
    return "\n".join(lines)


@pytest.mark.parametrize("settings", [ServingSettings, ModelSettings, Padding])
def test_table_has_every_setting(settings: type[BaseModel]) -> None:
    """To write it again: print(settings_table(ServingSettings))."""
    assert settings_table(settings) in PAGE.read_text("utf-8")


def test_every_metric_is_explained() -> None:
    metrics = Metrics(triton_names=True)
    metrics.on_request("m", "1", "", RequestTimes(), None)
    names = set(re.findall(r"^# TYPE (\w+) ", metrics.text().decode(), re.M))
    page = OPERATIONS.read_text("utf-8")
    assert {name for name in names if not name.startswith("process_")} <= set(
        re.findall(r"`(\w+)`", page)
    )
    used = set(re.findall(r"\b((?:onward|nv_inference)_\w+)", page))
    known = {f"{name}{end}" for name in names for end in ("", "_bucket", "_sum", "_count")}
    assert used - known <= {"onward_serve"}


def manifests() -> list[dict[str, Any]]:
    return [
        part
        for file in sorted(MANIFESTS.glob("*.yaml"))
        for part in yaml.safe_load_all(file.read_text())
    ]


def of_kind(kind: str) -> dict[str, Any]:
    [found] = [part for part in manifests() if part["kind"] == kind]
    return found


def test_manifests_have_what_kubernetes_needs() -> None:
    assert all({"apiVersion", "kind", "metadata"} <= set(part) for part in manifests())
    deployment = of_kind("Deployment")
    template = deployment["spec"]["template"]
    assert deployment["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    assert of_kind("Service")["spec"]["selector"] == template["metadata"]["labels"]
    scaled = of_kind("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert (scaled["kind"], scaled["name"]) == ("Deployment", deployment["metadata"]["name"])


def test_settings_of_the_manifests_are_valid(tmp_path: Path) -> None:
    [settings] = [part for part in manifests() if part["metadata"]["name"] == "onward-settings"]
    (tmp_path / "serve.toml").write_text(settings["data"]["serve.toml"])
    merged = merge_layers(file_layer(tmp_path / "serve.toml"))
    pod = of_kind("Deployment")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {
        "http": merged.server.http_port,
        "grpc": merged.server.grpc_port,
        "admin": merged.server.admin_port,
    }
    waited = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > waited + merged.server.drain_timeout
    [runtime] = of_kind("ServingRuntime")["spec"]["containers"]
    variables = {each["name"]: each["value"] for each in runtime["env"]}
    assert merge_layers(environment_layer(variables)).server.http_port == 8080
