"""Settings of the server and of each model, checked; filled by files, the environment and flags.

The command line reads them (`onward serve --show-config`); nothing here reads the environment.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
_MOST_INSTANCES = 1024  # a number that is larger is a mistake, and would take all memory
Port = Annotated[int, Field(ge=0, le=65535)]  # 0: a free one

_CLOSED = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


def _setting(group: str, default: Any, explanation: str, **checks: Any) -> Any:
    """A field; `group` is its heading in the help."""
    return Field(default, description=explanation, json_schema_extra={"group": group}, **checks)


BATCH, QUEUE, RUN, AROUND = "Batching", "Queue", "Engine", "Around the model"
NETWORK, SECURITY, LIMITS, OBSERVE, MODELS = "Network", "Security", "Limits", "Metrics", "Models"


class Padding(BaseModel):
    """An input whose length varies: requests are padded to one length and cut back afterwards."""

    model_config = _CLOSED

    axis: int = Field(1, description="The axis that varies, counted with the batch axis.")
    value: float | str = Field(0.0, description="What is filled in.")
    sizes: list[Count] = Field([], description="Lengths to pad to; none: the longest of the batch.")
    mask: str | None = Field(None, description="The input that is 1 where there is data, 0 else.")
    outputs: dict[str, int] | None = Field(
        None,
        description="Outputs to cut back, and along which axis; none: those whose axis has the "
        "name of the input's.",
    )


class SequenceState(BaseModel):
    """A state tensor that the server keeps between the requests of a sequence."""

    model_config = _CLOSED

    input: str
    output: str
    initial: float = Field(0.0, description="The value that a new sequence starts with.")


class ModelSettings(BaseModel):
    """How one model is served."""

    model_config = _CLOSED
    help_command: ClassVar[str] = "onward serve --help"

    max_batch_size: Annotated[int, Field(ge=0)] | Literal["auto"] = _setting(
        BATCH, "auto", "The largest batch; 0: requests are never joined."
    )
    batch_delay: Seconds | Literal["auto"] = _setting(
        BATCH,
        "auto",
        "Seconds to wait for a fuller batch; auto: learned from the model's latency, as is whether "
        "to join at all.",
    )
    preferred_batch_sizes: list[Count] = _setting(
        BATCH, [], "Sizes that are sent without waiting longer."
    )
    padded_batch_sizes: list[Count] = _setting(
        BATCH, [], "Fixed sizes: a batch is filled up to the next of them."
    )
    batch_axes: dict[str, int] = _setting(
        BATCH, {}, "The batch axis of inputs and outputs where it is not the first."
    )
    padding: dict[str, Padding] = _setting(BATCH, {}, "Inputs whose length varies.")
    length_buckets: list[Count] = _setting(
        BATCH, [], "Requests are joined with others of the same bucket of lengths."
    )
    check_batching: bool = _setting(
        BATCH, True, "Compare batched with single answers when the model is loaded."
    )
    max_queue_size: Count = _setting(QUEUE, 1024, "Requests that may wait; more are refused.")
    timeout: Seconds | None = _setting(QUEUE, None, "Seconds that a request may take at most.")
    allow_timeout_override: bool = _setting(QUEUE, True, "Clients may give a shorter timeout.")
    priority_levels: int = _setting(QUEUE, 0, "Number of priorities; 0: one for all.", ge=0)
    default_priority: int = _setting(QUEUE, 0, "The priority of requests that give none.", ge=0)
    sequence_states: list[SequenceState] = _setting(
        BATCH, [], "State that is kept between the requests of a sequence."
    )
    sequence_controls: dict[str, Literal["start", "end", "ready", "correlation_id"]] = _setting(
        BATCH, {}, "Inputs that the server fills for sequences."
    )
    sequence_idle_timeout: Seconds = _setting(
        BATCH, 60.0, "Seconds after which a silent sequence is forgotten."
    )
    instances: Annotated[int, Field(ge=1, le=_MOST_INSTANCES)] | Literal["auto"] = _setting(
        RUN, 1, "Batches that run at the same time."
    )
    workers: int = _setting(
        RUN, 0, "Worker processes; 0: run in the server's process.", ge=0, le=_MOST_INSTANCES
    )
    stuck_after: Annotated[float, Field(gt=0)] | Literal["auto"] | None = _setting(
        RUN,
        "auto",
        "Seconds after which a run counts as stuck; none: never; auto: 300, with a timeout twice "
        "that and at least 30.",
    )
    providers: list[str] | Literal["auto"] | None = _setting(
        RUN, None, "Execution providers, best first; auto: measured."
    )
    threads: int = _setting(RUN, 0, "Threads of each instance; 0: the engine's choice.", ge=0)
    memory_limit: int | None = _setting(RUN, None, "Bytes that a worker process may use.")
    warm_up: bool = _setting(RUN, True, "Run the model once before it is ready.")
    result_cache_bytes: int = _setting(RUN, 0, "Size of the cache of answers; 0: none.", ge=0)
    preprocess: str | None = _setting(AROUND, None, "A Python function, as module:function.")
    postprocess: str | None = _setting(AROUND, None, "A Python function, as module:function.")
    labels: dict[str, str] = _setting(AROUND, {}, "Files with the labels of outputs, one a line.")
    version_policy: dict[str, Any] = _setting(
        MODELS, {"latest": {"num_versions": 1}}, "Which versions are served, as in Triton."
    )

    @property
    def run_limit(self) -> float:
        """Seconds that a run may take before it counts as stuck; infinite: any."""
        if self.stuck_after == "auto":
            return 300.0 if not self.timeout else max(30.0, 2 * self.timeout)
        return math.inf if self.stuck_after is None else self.stuck_after


class ServingSettings(BaseModel):
    """The server's own settings."""

    model_config = _CLOSED
    help_command: ClassVar[str] = "onward serve --help"

    host: str = _setting(NETWORK, "127.0.0.1", "The address to listen on; '': all, IPv4 and IPv6.")
    http_port: Port = _setting(NETWORK, 8000, "The port of HTTP; 0: a free one.")
    grpc_port: Port | None = _setting(NETWORK, 8001, "The port of gRPC; none: no gRPC.")
    admin_port: Port | None = _setting(
        NETWORK, None, "A port of its own for metrics and for loading models; none: the HTTP port."
    )
    tls_certificate: str | None = _setting(SECURITY, None, "The certificate's file (PEM).")
    tls_key: str | None = _setting(SECURITY, None, "The private key's file (PEM).")
    api_keys: list[str] = _setting(
        SECURITY, [], "Keys that clients must send; none: everyone is served."
    )
    admin_keys: list[str] = _setting(SECURITY, [], "Keys for the admin routes; none: the API keys.")
    allow_model_control: bool = _setting(SECURITY, True, "Clients may load and unload models.")
    rate_limit: float = _setting(LIMITS, 0, "Requests per second and key; 0: no limit.", ge=0)
    max_body_bytes: Count = _setting(LIMITS, 64 << 20, "The largest request.")
    max_connections: Count = _setting(LIMITS, 4096, "Connections at the same time.")
    header_timeout: Seconds = _setting(LIMITS, 10.0, "Seconds in which a request must arrive.")
    keep_alive: Seconds = _setting(LIMITS, 75.0, "Seconds that an idle connection stays open.")
    drain_timeout: Seconds = _setting(LIMITS, 30.0, "Seconds to finish requests after SIGTERM.")
    total_memory_limit: Count | None = _setting(
        LIMITS,
        None,
        "The most bytes of the server's process; models that exceed it are refused.",
    )
    watch: bool = _setting(MODELS, True, "Reload models when their files change.")
    shared_threads: int = _setting(
        MODELS, 0, "Threads that models in the server's process share; 0: each has its own.", ge=0
    )
    triton_metrics: bool = _setting(OBSERVE, False, "Metrics under Triton's names too.")
    log_format: Literal["text", "json", "none"] = _setting(OBSERVE, "text", "The log's form.")
    access_log: bool = _setting(OBSERVE, False, "One line for each request.")
    open_telemetry: str | None = _setting(OBSERVE, None, "The address that traces are sent to.")
    models: dict[str, dict[str, Any]] = _setting(MODELS, {}, "Settings of models, by their names.")
