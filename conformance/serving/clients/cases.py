"""Run the cases of a client: `ok NAME` or `FAIL NAME reason` for each."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

CASE_SECONDS = 60.0


class Cases:
    """An ordered set of named cases; a case is a function of one argument, sync or async."""

    def __init__(self) -> None:
        self.functions: dict[str, Callable[[Any], Any]] = {}

    def __call__(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        self.functions[function.__name__] = function
        return function

    def of(self, names: Iterable[str]) -> Callable[[Callable[[Any, str], Any]], None]:
        """One case for each name: a function of the argument and the name."""

        def add(function: Callable[[Any, str], Any]) -> None:
            for name in names:
                self.functions[f"{function.__name__}_{name}"] = _bind(function, name)

        return add

    async def run(self, argument: Any) -> bool:
        passed = [await self._run_one(name, argument) for name in self.functions]
        return all(passed)

    async def _run_one(self, name: str, argument: Any) -> bool:
        try:
            found = self.functions[name](argument)
            if inspect.isawaitable(found):
                await asyncio.wait_for(found, CASE_SECONDS)
        except BaseException as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())[:400]
            print(f"FAIL {name} {_place(error)}: {text}", flush=True)
            return False
        print(f"ok {name}", flush=True)
        return True


def _place(error: BaseException) -> str:
    """The innermost line of the case itself."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if Path(each.filename).parent == Path(__file__).parent]
    found = [each for each in own if each.filename != __file__] or frames
    return f"{Path(found[-1].filename).name}:{found[-1].lineno}"


def _bind(function: Callable[[Any, str], Any], name: str) -> Callable[[Any], Any]:
    return lambda argument: function(argument, name)


def addresses() -> tuple[str, str]:
    """The hosts and ports of HTTP and gRPC. Not from flags: kserve parses them when imported."""
    return os.environ.get("SERVING_HTTP", ""), os.environ.get("SERVING_GRPC", "")


def exit_with(passed: bool) -> None:
    sys.stdout.flush()
    sys.exit(0 if passed else 1)


def equal(found: Any, expected: Any) -> None:
    if found != expected:
        raise AssertionError(f"got {found!r}, expected {expected!r}")


def contains(text: str, *parts: str) -> None:
    for part in parts:
        if part.lower() not in text.lower():
            raise AssertionError(f"{text!r} does not contain {part!r}")
