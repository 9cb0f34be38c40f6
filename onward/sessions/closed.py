"""What a closed session holds instead of its engine: every use of it is an error."""

from __future__ import annotations

from typing import Any, NoReturn

from onward.errors import SessionClosed


class _Closed:
    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # how tools look at objects
            raise AttributeError(name)
        raise SessionClosed("this session has been closed\nopen the model again")


CLOSED: Any = _Closed()
