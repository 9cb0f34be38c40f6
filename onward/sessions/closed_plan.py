"""The plan of a closed session: every use of it is an error."""

from __future__ import annotations

from typing import Any, NoReturn, cast

from onward.errors import SessionClosed
from onward.sessions.plan import Plan


class _ClosedPlan:
    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # how tools look at objects
            raise AttributeError(name)
        raise SessionClosed("this session has been closed\nopen the model again")


CLOSED: Plan = cast(Any, _ClosedPlan())
