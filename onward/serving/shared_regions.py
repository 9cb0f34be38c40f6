"""The seam between transports and shared memory: regions that clients registered by name."""

from __future__ import annotations

from typing import Any, Protocol


class SharedRegions(Protocol):
    """Registered regions of system shared memory; one that does not exist raises ServingError."""

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None: ...

    def unregister(self, name: str = "") -> None:
        """Forget one region, or all of them."""
        ...

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """`[{"name", "key", "offset", "byte_size"}]` of one region, or of all."""
        ...

    def read(self, name: str, offset: int, byte_size: int) -> memoryview: ...

    def write(self, name: str, offset: int, data: Any) -> None: ...
