"""TLS and API keys of a whole server, with HTTP and gRPC clients of our own."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

x509 = pytest.importorskip("cryptography.x509")
from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402

import onward  # noqa: E402
from onward.errors import AccessDenied, OptionError, ServerUnreachable  # noqa: E402

X = np.arange(3, dtype=np.float32).reshape(1, 3)
DAY = datetime.timedelta(days=1)


def double(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return 2 * x


def write_certificate(folder: Path) -> tuple[str, str]:
    """A certificate that signs itself, for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(private)
    return str(folder / "cert.pem"), str(folder / "key.pem")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[onward.Server, str]]:
    certificate, key = write_certificate(tmp_path_factory.mktemp("tls"))
    settings: dict[str, Any] = {"http_port": 0, "grpc_port": 0, "log_format": "none"}
    settings |= {"tls_certificate": certificate, "tls_key": key}
    with onward.Server(double, api_keys=["s3cret"], **settings) as server:
        yield server, certificate


def addresses(server: onward.Server) -> list[str]:
    return [server.url, f"grpcs://{server.info.grpc_address}"]


def test_clients_trust_the_certificate(served: tuple[onward.Server, str]) -> None:
    server, ca = served
    assert server.url.startswith("https://")
    for url in addresses(server):
        with onward.Client(url, ca_file=ca, api_key="s3cret") as client:
            np.testing.assert_array_equal(client.infer("double", {"x": X})["output"], 2 * X)


def test_async_clients_trust_the_certificate(served: tuple[onward.Server, str]) -> None:
    server, ca = served

    async def main() -> None:
        for url in addresses(server):
            async with onward.AsyncClient(url, ca_file=ca, api_key="s3cret") as client:
                found = await client.infer("double", {"x": X})
                np.testing.assert_array_equal(found["output"], 2 * X)

    asyncio.run(main())


def test_a_certificate_that_is_not_trusted_is_refused(served: tuple[onward.Server, str]) -> None:
    server, _ = served
    for url in addresses(server):
        client = onward.Client(url, api_key="s3cret", retries=0, timeout=30)
        with client, pytest.raises(ServerUnreachable) as raised:
            client.infer("double", {"x": X})
        if url.startswith("https"):
            assert str(raised.value).endswith("\ngive the certificate to trust as ca_file")


def test_a_wrong_key_is_refused(served: tuple[onward.Server, str]) -> None:
    server, ca = served
    for url in addresses(server):
        for key in (None, "other"):
            client = onward.Client(url, ca_file=ca, api_key=key, retries=0)
            with client, pytest.raises(AccessDenied):
                client.infer("double", {"x": X})


def test_a_server_without_keys_ignores_credentials_of_any_kind() -> None:
    """Proxies add their own: HTTP and gRPC have to agree that nobody asks for them."""
    settings: dict[str, Any] = {"http_port": 0, "grpc_port": 0, "log_format": "none"}
    with onward.Server(double, **settings) as server:
        asked = urllib.request.Request(f"{server.url}/v2", headers={"Authorization": "Basic ?"})
        with urllib.request.urlopen(asked, timeout=30) as answer:
            assert answer.status == 200
        with grpc.insecure_channel(str(server.info.grpc_address)) as channel:
            method = channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata")
            assert method(b"", metadata=[("authorization", "Basic ?")], timeout=30)


def test_plain_http_gets_no_answer(served: tuple[onward.Server, str]) -> None:
    server, ca = served
    with pytest.raises((urllib.error.URLError, ConnectionError, OSError)):
        urllib.request.urlopen(server.url.replace("https", "http"), timeout=30)
    context = ssl.create_default_context(cafile=ca)
    live = urllib.request.urlopen(f"{server.url}/v2/health/live", timeout=30, context=context)
    assert live.status == 200  # health needs no key
    live.close()


def test_a_missing_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"none\.pem"):
        onward.Server(
            double, http_port=0, grpc_port=None, log_format="none",
            tls_certificate=str(tmp_path / "none.pem"), tls_key=str(tmp_path / "none.pem"),
        )  # fmt: skip
