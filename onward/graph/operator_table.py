"""OpTable: functions keyed by operator, domain and the opset since which they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar, final

Function = TypeVar("Function", bound=Callable[..., Any])
Key = tuple[str, str]  # (domain, operator)


class AbstractOpTable:
    """A value that maps operators to functions; a family fills one, `|` combines them.

    Abstract: an OpTable holds kernels and the like, a GradientTable gradient rules.
    """

    def __init__(self) -> None:
        self._entries: dict[Key, dict[int, Callable[..., Any]]] = {}

    def __call__(
        self, *operators: str, domain: str = "", since: int = 1
    ) -> Callable[[Function], Function]:
        """Enter the decorated function for these operators."""

        def enter(function: Function) -> Function:
            for operator in operators:
                self._enter((domain, operator), since, function)
            return function

        return enter

    def _enter(self, key: Key, since: int, function: Callable[..., Any]) -> None:
        versions = self._entries.setdefault(key, {})
        if since in versions:
            raise ValueError(f"{key[0] or 'ai.onnx'}::{key[1]} since {since} is entered twice")
        versions[since] = function

    def find(self, domain: str, operator: str, opset: int) -> Callable[..., Any] | None:
        """The newest function for this operator that is not newer than the opset."""
        versions = self._entries.get((_plain(domain), operator), {})
        fitting = [since for since in versions if since <= opset]
        return versions[max(fitting)] if fitting else None

    def __or__(self, other: Self) -> Self:
        """Both tables as one; the same operator and opset in both is refused."""
        both = type(self)()
        for table in (self, other):
            for key, versions in table._entries.items():
                for since, function in versions.items():
                    both._enter(key, since, function)
        return both

    def __iter__(self) -> Iterator[Key]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries


@final
class OpTable(AbstractOpTable):
    """A table of functions, such as kernels.

    >>> kernel = OpTable()
    >>> @kernel("Neg")
    ... def neg(x):
    ...     return -x
    >>> kernel.find("", "Neg", 28)(3)
    -3
    >>> kernel.find("", "Det", 28) is None
    True
    """


def _plain(domain: str) -> str:
    """The default domain as "": ONNX also writes it "ai.onnx"."""
    return "" if domain == "ai.onnx" else domain
