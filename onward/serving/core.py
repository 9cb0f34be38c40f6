"""The seam between transports and models: what HTTP and gRPC call.

HTTP, gRPC -> Core.submit(request, done) -> repository -> model's queue -> batch -> instance
                done(response or error)  <- split outputs <- run
"""

from __future__ import annotations

from typing import Any, Protocol

from onward.serving.requests import Cancel, Done, InferRequest, TensorSpec

Json = dict[str, Any]


class Core(Protocol):
    """A server without its transports. All methods are called in the event loop's thread.

    Dictionaries are in the JSON form of Triton's HTTP API; gRPC parses them into its messages.
    A name or version that does not exist raises ModelNotFound.
    """

    def submit(self, request: InferRequest, done: Done) -> Cancel:
        """Queue a request. A request that cannot be accepted is answered with `done(error)`."""
        ...

    def count_refused(
        self, name: str, version: str, error: Exception, request_id: str = ""
    ) -> None:
        """Count and log an infer request that its transport refused: it is not submitted."""
        ...

    def signature(self, name: str, version: str = "") -> tuple[list[TensorSpec], list[TensorSpec]]:
        """The inputs and outputs of a model that is ready."""
        ...

    def labels(self, name: str, version: str, output: str) -> list[str]:
        """The labels of an output's classes; empty without them."""
        ...

    @property
    def is_ready(self) -> bool:
        """Loaded, not draining, no model stuck, queues below 90 % of their limits."""
        ...

    def is_model_ready(self, name: str, version: str = "") -> bool: ...

    def server_metadata(self) -> Json: ...

    def model_metadata(self, name: str, version: str = "") -> Json: ...

    def model_config(self, name: str, version: str = "") -> Json: ...

    def statistics(self, name: str = "", version: str = "") -> Json:
        """`{"model_stats": [...]}` of one model, or of all."""
        ...

    def index(self, only_ready: bool = False) -> list[Json]: ...

    async def load(self, name: str, parameters: Json) -> None:
        """Load or reload a model; parameters: "config" (JSON), "file:1/model.onnx" (bytes)."""
        ...

    async def unload(self, name: str, with_dependents: bool = False) -> None: ...
