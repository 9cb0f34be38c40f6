"""A core without models: answers of its own, for the tests of what is around it."""

from __future__ import annotations

from dataclasses import dataclass, field

from onward.errors import ModelNotFound
from onward.serving.core import Json
from onward.serving.requests import Cancel, Done, InferRequest, InferResponse, TensorSpec


@dataclass
class FakeCore:
    """Answers each request with its inputs."""

    models: dict[str, list[TensorSpec]]
    requests: list[InferRequest] = field(default_factory=list)
    is_ready: bool = True
    refused: list[tuple[str, str, str]] = field(default_factory=list)

    def count_refused(
        self, name: str, version: str, error: Exception, request_id: str = ""
    ) -> None:
        self.refused.append((name, version, str(error)))

    def submit(self, request: InferRequest, done: Done) -> Cancel:
        self.requests.append(request)
        done(InferResponse(request.model, "1", request.inputs, request.id))
        return lambda: None

    def signature(self, name: str, version: str = "") -> tuple[list[TensorSpec], list[TensorSpec]]:
        if name not in self.models:
            raise ModelNotFound(f"there is no model {name!r}")
        return self.models[name], self.models[name]

    def labels(self, name: str, version: str, output: str) -> list[str]:
        return []

    def is_model_ready(self, name: str, version: str = "") -> bool:
        return name in self.models

    def server_metadata(self) -> Json:
        return {}

    def model_metadata(self, name: str, version: str = "") -> Json:
        return {}

    def model_config(self, name: str, version: str = "") -> Json:
        return {}

    def statistics(self, name: str = "", version: str = "") -> Json:
        return {"model_stats": []}

    def index(self, only_ready: bool = False) -> list[Json]:
        return [{"name": name, "version": "1", "state": "READY"} for name in self.models]

    async def load(self, name: str, parameters: Json) -> None: ...

    async def unload(self, name: str, with_dependents: bool = False) -> None: ...
