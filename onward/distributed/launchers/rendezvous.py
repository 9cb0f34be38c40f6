"""Where the machines of a run meet, how long they wait, and which address they are reached at."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass

from onward.errors import OptionError
from onward.settings import check_fields, explain_frozen, explain_keywords, integer

_PORT = 29400  # that of torchrun


@explain_keywords
@explain_frozen
@dataclass(frozen=True, kw_only=True)
class RendezvousTimes:
    """How long the machines of a run wait for each other, in seconds.

    A machine counts as gone after `keep_alive` * `attempts` seconds without a sign. Too short, and
    a machine that was only busy is replaced while it still runs; many attempts at short
    intervals forgive single late ones.

    Attributes:
        keep_alive: between two signs that a machine is there
        attempts: signs that may be missing before a machine counts as gone
        last_call: that more machines are waited for when there are enough
        store: that one question to the machine at which all meet may take
        join: that the machines have to come together, at the start and after a failure
    """

    keep_alive: int = 1
    attempts: int = 10
    last_call: int = 5
    store: int = 30
    join: int = 600

    def __post_init__(self) -> None:
        every = dict.fromkeys(("keep_alive", "attempts", "store", "join"), integer(1))
        check_fields(self, **every, last_call=integer(0))

    def to_torch(self) -> dict[str, int]:
        """As --rdzv-conf of torchrun takes them."""
        return {
            "keep_alive_interval": self.keep_alive,
            "keep_alive_max_attempt": self.attempts,
            "last_call_timeout": self.last_call,
            "read_timeout": self.store,
            "join_timeout": self.join,
        }


def read_endpoint(text: str) -> tuple[str, int]:
    """HOST or HOST:PORT; an address of IPv6 stands in brackets.

    >>> read_endpoint("node1"), read_endpoint("[::1]:5000")
    (('node1', 29400), ('::1', 5000))
    """
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(_PORT)
    host = host.removeprefix("[").removesuffix("]")
    good_port = port.isascii() and port.isdigit() and int(port) < 1 << 16
    if not host or not good_port or (":" in host and "[" not in text):
        raise OptionError(f"{text!r} is not HOST:PORT\nwrite it like node1:{_PORT}")
    return host, int(port)


def show_endpoint(host: str, port: int) -> str:
    """HOST:PORT, as torch reads it.

    >>> show_endpoint("::1", 5000)
    '[::1]:5000'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def own_address(host: str, port: int) -> str:
    """The address of this machine that others on the way to `host` see it with."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as found:
            found.connect(target)  # it sends nothing
            return str(found.getsockname()[0])
    except OSError as error:
        raise OptionError(
            f"cannot reach {host}, where the machines of the run meet: {error.strerror}\n"
            "check its name and the network of this machine"
        ) from error


def hosts_store(host: str, port: int) -> bool:
    """Whether this machine is `host`, and nothing listens at the port yet."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(target)
    except OSError:  # an address of another machine, or a port in use
        return False
    return True


def limit_silence(port: int, seconds: int) -> None:
    """Let Linux end the connections of this process to a port when the other side is silent.

    A question of torch's agent to its store waits for as long as TCP sends it again: 15 minutes
    after a link was cut, even when the link is back.
    """
    if sys.platform != "linux" or not port:
        return
    for entry in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(entry))) as found:
            if found.type == socket.SOCK_STREAM and found.getpeername()[1] == port:
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * seconds)
