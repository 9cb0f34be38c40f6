"""Known defects of engines: what is wrong or missing, in which versions, on which processors.

Engines have different kernels on different processors: OpenVINO's x86 plugin may be right where
its ARM plugin is wrong. So each row of a table of defects has the architectures where it was seen;
only there nodes are refused, and only there tests expect a failure.
"""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # comparing versions must not import onnx-ir
    import onnx_ir as ir

ARM, X86 = "aarch64", "x86_64"
TESTED_ARCHITECTURES = (
    ARM,
    X86,
)  # every row was tested on these; elsewhere all are assumed
_SPELLINGS = {"arm64": ARM, "amd64": X86, "x86-64": X86}


@functools.cache
def architecture() -> str:
    """The architecture of this processor, one name for each: aarch64 (also arm64), x86_64, ..."""
    name = platform.machine().lower()
    return _SPELLINGS.get(name, name)


@dataclass(frozen=True)
class Platform:
    """An engine's version and the architecture that it runs on.

    >>> Platform("2026.4.1-22982", "x86_64").version_tuple
    (2026, 4, 1)
    """

    version: str
    architecture: str

    @property
    def version_tuple(self) -> tuple[int, ...]:
        return _number(self.version)


def _always(node: ir.Node) -> bool:
    return True


@dataclass(frozen=True)
class Defect:
    """One defect of an engine, and where it was seen.

    >>> row = Defect("Log", "openvino", "log(0) is -88", since="2026.4", architectures=("aarch64",))
    >>> row.holds(Platform("2026.4.1", "aarch64")), row.holds(Platform("2026.4.1", "x86_64"))
    (True, False)
    """

    subject: str  # an operator, or one of ONNX's node tests
    engine: str  # the package's name
    reason: str
    since: str  # the oldest version that it was seen in
    until: str = ""  # the first version without it; empty: not fixed yet
    architectures: tuple[str, ...] = ()  # where it was seen; empty: on all that were tested
    when: Callable[[ir.Node], bool] = _always  # which nodes of the operator have it

    def holds(self, place: Platform) -> bool:
        """Whether to expect it on this platform; untested platforms are assumed to have it."""
        if self.until and place.version_tuple >= _number(self.until):
            return False
        known = not self.architectures or place.architecture not in TESTED_ARCHITECTURES
        return known or place.architecture in self.architectures

    @property
    def bounds(self) -> str:
        """Its limits as text, for lists of gaps: ' [aarch64, until 1.31]', or empty."""
        words = [*self.architectures, *([f"until {self.until}"] if self.until else [])]
        return f" [{', '.join(words)}]" if words else ""

    def is_certain(self, place: Platform) -> bool:
        """Whether it was tested on this platform, so that a test may require the failure.

        Newer versions count as tested, so that a test fails when a defect is fixed.
        """
        return place.architecture in TESTED_ARCHITECTURES and place.version_tuple >= _number(
            self.since
        )


def _number(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
