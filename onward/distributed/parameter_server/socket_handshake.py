"""Prove to each other that both ends of a socket know the same token, without sending it.

server: magic, 32 random bytes     client: 32 random bytes, proof of them all     server: its proof

All lengths are fixed, so a stranger can make neither side read or allocate more. What follows is
neither encrypted nor signed: use a private network, a VPN or an SSH tunnel.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket

from onward.errors import DistributedError, OptionError

_MAGIC = b"onwardPS1"
_RANDOM = 32
_PROOF = hashlib.sha256().digest_size
_SHORTEST = 8  # characters of a token


def check_token(token: str) -> bytes:
    """A token as bytes; an error if it is easily guessed."""
    if not isinstance(token, str) or len(token) < _SHORTEST:
        raise OptionError(
            f"the token of a parameter server must be a text of {_SHORTEST} characters or more\n"
            "make one of at least 16 random characters, such as the output of: openssl rand -hex 32"
        )
    return token.encode()


def greet_client(connection: socket.socket, token: bytes) -> bool:
    """The server's side; whether the client knows the token."""
    own = secrets.token_bytes(_RANDOM)
    connection.sendall(_MAGIC + own)
    reply = _read(connection, _RANDOM + _PROOF)
    other, proof = reply[:_RANDOM], reply[_RANDOM:]
    if not hmac.compare_digest(proof, _prove(token, b"client", own + other)):
        return False
    connection.sendall(_prove(token, b"server", own + other))
    return True


def greet_server(connection: socket.socket, token: bytes, address: str) -> None:
    """The client's side; DistributedError if the server does not know the token, or refuses."""
    start = _read(connection, len(_MAGIC) + _RANDOM)
    if not start.startswith(_MAGIC):
        raise DistributedError(
            f"{address} is not a parameter server\ngive the address that its `listen` returned"
        )
    other, own = start[len(_MAGIC) :], secrets.token_bytes(_RANDOM)
    connection.sendall(own + _prove(token, b"client", other + own))
    proof = _read(connection, _PROOF, b"")
    if not hmac.compare_digest(proof, _prove(token, b"server", other + own)):
        raise DistributedError(
            f"the parameter server at {address} has another token\n"
            "give the worker the token that the server was started with"
        )


def _prove(token: bytes, side: bytes, randoms: bytes) -> bytes:
    return hmac.digest(token, _MAGIC + side + randoms, "sha256")


def _read(connection: socket.socket, size: int, at_end: bytes | None = None) -> bytes:
    """So many bytes; `at_end` if the other side closes instead."""
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece and at_end is not None:
            return at_end
        if not piece:
            raise ConnectionError("the connection was closed")
        data += piece
    return data
