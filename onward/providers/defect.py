"""A known defect of an engine: what it gets wrong or lacks, in which versions, on which processors.

Engines have other kernels on other processors: what OpenVINO gets wrong on ARM, its x86 plugin may
get right. So a row says where it was seen. A node is refused only where its row holds, and a test
expects a failure only there.
"""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # those who only compare versions must not pay for the import
    import onnx_ir as ir

ARM, X86 = "aarch64", "x86_64"
SURVEYED = (ARM, X86)  # on these every row was tried; on others all of them are taken to hold
_SPELLINGS = {"arm64": ARM, "amd64": X86, "x86-64": X86}


@functools.cache
def architecture() -> str:
    """This processor's architecture by one name: aarch64 (also macOS's arm64), x86_64, ..."""
    name = platform.machine().lower()
    return _SPELLINGS.get(name, name)


@dataclass(frozen=True)
class Place:
    """An engine's version and the architecture that it runs on.

    >>> Place("2026.4.1-22982", "x86_64").number
    (2026, 4, 1)
    """

    version: str
    architecture: str

    @property
    def number(self) -> tuple[int, ...]:
        return _number(self.version)


def _always(node: ir.Node) -> bool:
    return True


@dataclass(frozen=True)
class Defect:
    """What an engine gets wrong or lacks, and where that was seen.

    >>> row = Defect("Log", "openvino", "log(0) is -88", since="2026.4", architectures=("aarch64",))
    >>> row.holds(Place("2026.4.1", "aarch64")), row.holds(Place("2026.4.1", "x86_64"))
    (True, False)
    """

    subject: str  # an operator, or a node test of ONNX's
    engine: str  # the package that has it
    reason: str
    since: str  # the oldest version that it was seen in
    until: str = ""  # the first version that was tried without it; empty: there is none
    architectures: tuple[str, ...] = ()  # where it was seen; empty: on all that were surveyed
    when: Callable[[ir.Node], bool] = _always  # which nodes of the operator it is about

    def holds(self, place: Place) -> bool:
        """Whether to expect it here. What was not tried is expected to be no better."""
        if self.until and place.number >= _number(self.until):
            return False
        known = not self.architectures or place.architecture not in SURVEYED
        return known or place.architecture in self.architectures

    @property
    def bounds(self) -> str:
        """Where it holds, as the lists of gaps have it: ' [aarch64, until 1.31]', or nothing."""
        words = [*self.architectures, *([f"until {self.until}"] if self.until else [])]
        return f" [{', '.join(words)}]" if words else ""

    def is_certain(self, place: Place) -> bool:
        """Whether it was tried here, or in an older version: a test may insist on it, or on none.

        A version that is newer than those that were tried counts: that a defect is mended is to
        be noticed.
        """
        return place.architecture in SURVEYED and place.number >= _number(self.since)


def _number(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
