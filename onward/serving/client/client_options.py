"""The options of a client, checked, and what both clients make of them."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onward.errors import OptionError
from onward.serving.client.call_attempts import RetryPolicy
from onward.serving.client.server_choice import ServerChoice, ServerEndpoint, parse_url


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """Options of Client and AsyncClient, in addition to the servers' addresses."""

    api_key: str | None
    timeout: float | None  # seconds of a call, with its retries
    retries: int  # after the first attempt
    ca_file: str | None  # certificates (PEM) that are trusted; None: the system's
    certificate: tuple[str, str] | None  # this client's own: files of it and of its key
    verify: bool  # False: any certificate of the server is taken
    clock: Callable[[], float]
    random: Callable[[], float]

    def __post_init__(self) -> None:
        if self.timeout is not None and not self.timeout > 0:
            raise OptionError(f"timeout must be a number of seconds above 0, not {self.timeout}")
        if self.retries < 0:
            raise OptionError(f"retries must be 0 or more, not {self.retries}")
        if self.api_key is not None and not self.api_key.isprintable():
            raise OptionError("api_key has a character that a header cannot carry")

    @property
    def headers(self) -> str:
        """The headers of every request."""
        key = "" if self.api_key is None else f"Authorization: Bearer {self.api_key}\r\n"
        return f"User-Agent: onward\r\nAccept: */*\r\n{key}"

    @property
    def policy(self) -> RetryPolicy:
        return RetryPolicy(retries=self.retries)

    def tls_context(self) -> ssl.SSLContext:
        """How the servers' certificates are checked."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if not self.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self.certificate is not None:
            context.load_cert_chain(*self.certificate)
        return context


def choose_among(urls: Sequence[str | Sequence[str]]) -> ServerChoice:
    """The servers of a client, from addresses or lists of them."""
    flat = [url for each in urls for url in ([each] if isinstance(each, str) else each)]
    if not flat:
        raise OptionError("a client needs the address of a server\nsuch as http://localhost:8000")
    servers: list[ServerEndpoint] = [parse_url(url) for url in flat]
    return ServerChoice(servers)
