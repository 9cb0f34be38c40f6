"""Who may call the server, and how often: API keys, admin keys and a rate limit per key."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from onward.errors import AccessDenied, QuotaExceeded
from onward.serving.settings import ServingSettings

Clock = Callable[[], float]  # seconds, never going back

RouteKind = Literal["health", "api", "admin"]

_MAX_BUCKETS = 10_000
_HEALTH = {"/v2/health/live", "/v2/health/ready"}
_ADMIN = re.compile(
    "/metrics|/v2/repository/models/[^/]+/(load|unload)"
    "|/v2/(system|cuda)sharedmemory/(region/[^/]+/)?(register|unregister)"
)
_ADMIN_IF_POST = re.compile("/v2/logging|/v2/(models/[^/]+/)?trace/setting")


def route_kind(method: str, path: str) -> RouteKind:
    """Who may call a route: anyone, those with an API key, or those with an admin key."""
    if path in _HEALTH:
        return "health"
    if _ADMIN.fullmatch(path) or (method == "POST" and _ADMIN_IF_POST.fullmatch(path)):
        return "admin"
    return "api"


class Access:
    """Checks the key of each request. `clock` gives seconds, for the rate limit.

    Keys come as `Authorization: Bearer KEY`, as `X-API-Key: KEY`, or as the password of
    `Authorization: Basic`, which is how a browser can open the pages.
    """

    def __init__(self, settings: ServingSettings, clock: Clock) -> None:
        self._keys = [key.encode() for key in settings.api_keys]
        self._admin_keys = [key.encode() for key in settings.admin_keys]
        self._rate = settings.rate_limit
        self._buckets: dict[bytes | str, _Bucket] = {}
        self._clock = clock
        self.is_open = not self._keys and not self._admin_keys and not self._rate

    def check(
        self,
        authorization: bytes | None,
        api_key: bytes | None,
        client: str = "",
        kind: RouteKind = "api",
    ) -> None:
        """Raise AccessDenied or QuotaExceeded, or count the request and return."""
        if kind == "health":
            return
        is_admin = kind == "admin"
        key = api_key if api_key is not None else _key_of(authorization)
        if is_admin and self._admin_keys:
            allowed = self._admin_keys
        else:
            allowed = self._keys + self._admin_keys if self._keys else []
        if allowed and not (key is not None and _is_one_of(key, allowed)):
            raise AccessDenied(
                (
                    "this route needs an admin key"
                    if is_admin
                    else "the request has no valid API key"
                )
                + "\nsend it as 'Authorization: Bearer KEY' or as 'X-API-Key: KEY'"
            )
        if self._rate and not is_admin:
            self._take(key if self._keys and key is not None else client)

    def _take(self, owner: bytes | str) -> None:
        now = self._clock()
        bucket = self._buckets.get(owner)
        if bucket is None:
            if len(self._buckets) >= _MAX_BUCKETS:
                self._forget_idle(now)
            bucket = self._buckets[owner] = _Bucket(max(1.0, self._rate), now)
        wait = bucket.take(self._rate, now)
        if wait:
            raise QuotaExceeded(
                f"more than {self._rate:g} requests per second: wait {wait:.2g} s",
                retry_after=wait,
            )

    def _forget_idle(self, now: float) -> None:
        """Drop the buckets that are full again: a new one would be the same."""
        size = max(1.0, self._rate)
        self._buckets = {
            owner: bucket
            for owner, bucket in self._buckets.items()
            if bucket.tokens + (now - bucket.time) * self._rate < size
        }


class KeyAccess:
    """The same checks for gRPC, whose calls have a key in their metadata."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def check(self, key: str | None, admin: bool, client: str) -> None:
        """Raise AccessDenied or QuotaExceeded, or count the call and return."""
        given = None if key is None else key.encode()
        self._access.check(None, given, client, "admin" if admin else "api")


@dataclass(slots=True)
class _Bucket:
    """A token bucket: a second's worth of requests may come at once."""

    tokens: float
    time: float

    def take(self, rate: float, now: float) -> float:
        """Take one token and return 0, or return the seconds until there is one."""
        self.tokens = min(max(1.0, rate), self.tokens + max(0.0, now - self.time) * rate)
        self.time = now
        if self.tokens < 1:
            return (1 - self.tokens) / rate
        self.tokens -= 1
        return 0.0


def _is_one_of(key: bytes, allowed: list[bytes]) -> bool:
    """Compare with all of them in constant time, so that the time shows nothing about the keys."""
    found = False
    for each in allowed:
        found |= hmac.compare_digest(key, each)
    return found


def _key_of(authorization: bytes | None) -> bytes | None:
    scheme, _, value = (authorization or b"").strip().partition(b" ")
    if scheme.lower() == b"bearer":
        return value.strip()
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except binascii.Error:
            return None
    return None
