"""access: keys and quotas."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from onward.errors import AccessDenied, QuotaExceeded
from onward.serving.access import Access, KeyAccess, route_kind
from onward.serving.settings import ServingSettings


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def make(**settings: Any) -> tuple[Access, Clock]:
    clock = Clock()
    return Access(ServingSettings(**settings), clock), clock


def test_without_keys_everyone_is_served() -> None:
    access, _ = make()
    assert access.is_open
    access.check(None, None, kind="admin")


def test_a_key_comes_in_three_ways() -> None:
    access, _ = make(api_keys=["a", "b:c"])
    access.check(b"Bearer a", None)
    access.check(b"bearer  a ", None)
    access.check(None, b"b:c")
    access.check(b"Basic " + base64.b64encode(b"anyone:b:c"), None)
    for header, key in [
        (None, None), (b"Bearer", None), (b"Bearer x", None), (None, b""), (b"Basic ?", None),
        (b"Bearer a", b"x"), (b"Digest a", None), (b"Bearer \xff", None),
    ]:  # fmt: skip
        with pytest.raises(AccessDenied, match="no valid API key"):
            access.check(header, key)


def test_admin_routes_need_an_admin_key_if_there_are_some() -> None:
    access, _ = make(api_keys=["a"], admin_keys=["root"])
    with pytest.raises(AccessDenied, match="admin key"):
        access.check(None, b"a", kind="admin")
    access.check(None, b"root", kind="admin")
    access.check(None, b"root", kind="api")
    access, _ = make(admin_keys=["root"])
    access.check(None, None, kind="api")
    with pytest.raises(AccessDenied):
        access.check(None, None, kind="admin")
    access, _ = make(api_keys=["a"])
    access.check(None, b"a", kind="admin")


def test_health_needs_no_key_and_no_quota() -> None:
    access, _ = make(api_keys=["a"], rate_limit=1)
    for _ in range(3):
        access.check(None, None, kind="health")


def test_a_quota_is_refilled_by_time() -> None:
    access, clock = make(rate_limit=2)
    access.check(None, None, "client")
    access.check(None, None, "client")
    with pytest.raises(QuotaExceeded, match="more than 2 requests per second") as refused:
        access.check(None, None, "client")
    assert refused.value.retry_after == pytest.approx(0.5)
    access.check(None, None, "another")
    clock.now += 0.5
    access.check(None, None, "client")
    with pytest.raises(QuotaExceeded):
        access.check(None, None, "client")
    clock.now -= 50  # a clock that goes back gives nothing
    with pytest.raises(QuotaExceeded):
        access.check(None, None, "client")


def test_a_quota_belongs_to_a_key() -> None:
    access, _ = make(rate_limit=1, api_keys=["a", "b"])
    access.check(None, b"a", "client")
    access.check(None, b"b", "client")
    with pytest.raises(QuotaExceeded):
        access.check(None, b"a", "elsewhere")


def test_clients_of_grpc_without_keys_have_their_own_quotas() -> None:
    access, _ = make(rate_limit=1)
    calls = KeyAccess(access)
    calls.check(None, False, "10.0.0.1")
    calls.check(None, False, "10.0.0.2")
    with pytest.raises(QuotaExceeded):
        calls.check(None, False, "10.0.0.1")


def test_idle_clients_are_forgotten() -> None:
    access, clock = make(rate_limit=1)
    for client in range(10_000):
        access.check(None, None, str(client))
    clock.now += 10
    access.check(None, None, "last")
    assert len(access._buckets) == 1


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("GET", "/v2/health/ready", "health"),
        ("GET", "/v2/models/m/ready", "api"),
        ("POST", "/v2/models/m/infer", "api"),
        ("GET", "/metrics", "admin"),
        ("POST", "/v2/repository/models/m/load", "admin"),
        ("POST", "/v2/repository/models/m/unload", "admin"),
        ("POST", "/v2/repository/index", "api"),
        ("POST", "/v2/systemsharedmemory/region/r/register", "admin"),
        ("POST", "/v2/systemsharedmemory/unregister", "admin"),
        ("GET", "/v2/systemsharedmemory/status", "api"),
        ("GET", "/v2/logging", "api"),
        ("POST", "/v2/logging", "admin"),
    ],
)
def test_routes_have_a_kind(method: str, path: str, kind: str) -> None:
    assert route_kind(method, path) == kind
