"""The methods of the gRPC service other than inference.

Each takes the request's message and returns the response in JSON form.
"""

from __future__ import annotations

from typing import Any

from onward.errors import ModelNotFound, NotSupported, RequestInvalid
from onward.serving.core import Core, Json
from onward.serving.grpc.grpc_messages import Message, parameter_value, parameter_values
from onward.serving.log_control import read_log_settings, update_log_settings
from onward.serving.settings import ServingSettings
from onward.serving.shared_memory import SharedMemoryRegions

# What Triton's clients read: its tracing is off. OpenTelemetry is set when the server starts.
TRACE_SETTINGS = {
    "trace_level": ["OFF"],
    "trace_rate": ["1000"],
    "trace_count": ["-1"],
    "log_frequency": ["0"],
    "trace_file": [""],
    "trace_mode": ["triton"],
}


class GrpcControl:
    """Health, metadata, statistics, the repository, shared memory and settings."""

    OPEN = frozenset({"ServerLive", "ServerReady"})  # need no key: probes call them
    ADMIN = frozenset(
        {"RepositoryModelLoad", "RepositoryModelUnload"}
        | {f"SystemSharedMemory{verb}" for verb in ("Register", "Unregister")}
        | {f"CudaSharedMemory{verb}" for verb in ("Register", "Unregister")}
    )

    def __init__(
        self, core: Core, settings: ServingSettings, shared_memory: SharedMemoryRegions
    ) -> None:
        self._core = core
        self._settings = settings
        self._shared_memory = shared_memory

    def needs_admin(self, method: str, message: Message) -> bool:
        """Whether a call needs an admin key, as its HTTP route does."""
        if method in ("TraceSetting", "LogSettings"):
            return bool(message.settings)
        return method in self.ADMIN

    def ServerLive(self, message: Message) -> Json:
        return {"live": True}

    def ServerReady(self, message: Message) -> Json:
        return {"ready": self._core.is_ready}

    def ModelReady(self, message: Message) -> Json:
        try:
            return {"ready": self._core.is_model_ready(message.name, message.version)}
        except ModelNotFound:  # a model that is not there is not ready, as in Triton
            return {"ready": False}

    def ServerMetadata(self, message: Message) -> Json:
        return self._core.server_metadata()

    def ModelMetadata(self, message: Message) -> Json:
        return self._core.model_metadata(message.name, message.version)

    def ModelConfig(self, message: Message) -> Json:
        return {"config": self._core.model_config(message.name, message.version)}

    def ModelStatistics(self, message: Message) -> Json:
        return self._core.statistics(message.name, message.version)

    def RepositoryIndex(self, message: Message) -> Json:
        return {"models": self._core.index(message.ready)}

    async def RepositoryModelLoad(self, message: Message) -> Json:
        name = self._controlled_model(message)
        await self._core.load(name, parameter_values(message.parameters))
        return {"model_name": name, "isLoaded": True}

    async def RepositoryModelUnload(self, message: Message) -> Json:
        name = self._controlled_model(message)
        dependents = parameter_values(message.parameters).get("unload_dependents", False)
        await self._core.unload(name, bool(dependents))
        return {"model_name": name, "isUnloaded": True}

    def SystemSharedMemoryStatus(self, message: Message) -> Json:
        return {
            "regions": {each["name"]: each for each in self._shared_memory.status(message.name)}
        }

    def SystemSharedMemoryRegister(self, message: Message) -> Json:
        self._shared_memory.register(message.name, message.key, message.offset, message.byte_size)
        return {}

    def SystemSharedMemoryUnregister(self, message: Message) -> Json:
        self._shared_memory.unregister(message.name)
        return {}

    def CudaSharedMemoryStatus(self, message: Message) -> Json:
        if message.name:
            raise RequestInvalid(f"Unable to find cuda shared memory region: '{message.name}'")
        return {}

    def CudaSharedMemoryRegister(self, message: Message) -> Json:
        raise NotSupported(
            f"failed to register CUDA shared memory region: '{message.name}', not supported\n"
            "register system shared memory instead"
        )

    def CudaSharedMemoryUnregister(self, message: Message) -> Json:
        return {}  # no region is left; Triton's examples begin with this call

    def TraceSetting(self, message: Message) -> Json:
        for name, setting in message.settings.items():
            if name not in TRACE_SETTINGS:
                raise RequestInvalid(f"unknown trace setting '{name}'")
            if list(setting.value) not in ([], TRACE_SETTINGS[name]):
                raise NotSupported(
                    f"the trace setting '{name}' cannot be changed on this server\n"
                    "start it with --open-telemetry ADDRESS to trace requests"
                )
        return {"settings": {name: {"value": value} for name, value in TRACE_SETTINGS.items()}}

    def LogSettings(self, message: Message) -> Json:
        changes = {name: parameter_value(each) for name, each in message.settings.items()}
        if changes and self._settings.admin_port is not None:
            raise NotSupported(
                "the log's settings cannot be changed on this port\n"
                f"use the HTTP route of the admin port, {self._settings.admin_port}"
            )
        found = update_log_settings(changes) if changes else read_log_settings()
        return {"settings": {name: _log_value(value) for name, value in found.items()}}

    def _controlled_model(self, message: Message) -> str:
        """The model to load or unload, if clients may do so here."""
        if not self._settings.allow_model_control:
            raise NotSupported("explicit model load / unload is not allowed on this server")
        if self._settings.admin_port is not None:
            raise NotSupported(
                "explicit model load / unload is not allowed on this port\n"
                f"use the HTTP routes of the admin port, {self._settings.admin_port}"
            )
        name: str = message.model_name or message.repository_name  # KServe's field 1
        if not name:
            raise RequestInvalid("the request does not name a model")
        return name


def _log_value(value: Any) -> Json:
    if isinstance(value, bool):
        return {"bool_param": value}
    return {"uint32_param" if isinstance(value, int) else "string_param": value}
