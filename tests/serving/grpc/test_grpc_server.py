"""The server itself: its port, TLS, limits, health and reflection."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import select
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from onward.errors import FileMissing, OptionError
from onward.serving.grpc.grpc_messages import INFERENCE, message_class
from onward.serving.grpc.grpc_reflection import answer
from onward.serving.grpc.grpc_server import GrpcServer
from onward.serving.settings import ServingSettings
from onward.serving.shared_memory import SharedMemoryRegions
from tests.serving.grpc.test_grpc_service import refused
from tests.serving.grpc_client import GUARD, Client, infer_message, run, serving
from tests.serving.numpy_core import NumpyCore

SERVING, NOT_SERVING = 1, 2


def server(**settings: object) -> GrpcServer:
    checked = ServingSettings.model_validate({"grpc_port": 0, **settings})
    return GrpcServer(NumpyCore(), checked, shared_memory=SharedMemoryRegions())


def test_a_port_in_use_is_an_error() -> None:
    async def main() -> None:
        first = server()
        await first.start()
        with pytest.raises(OptionError, match=f"cannot listen on 127.0.0.1:{first.port}"):
            await server(grpc_port=first.port).start()
        await first.stop(0)
        await first.stop(0)

    run(main())


def test_a_request_over_the_limit_is_refused() -> None:
    async def main() -> None:
        settings = ServingSettings(grpc_port=0, max_body_bytes=1000)
        async with serving(NumpyCore(), settings) as client:
            message = infer_message("identity_uint8", {"x": ("UINT8", [1, 2000], bytes(2000))})
            error = await refused(client, "ModelInfer", message)
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            message = infer_message("identity_uint8", {"x": ("UINT8", [1, 500], bytes(500))})
            assert (await client.call("ModelInfer", message)).outputs

    run(main())


def test_a_call_that_is_open_is_answered_while_the_server_stops() -> None:
    async def main() -> None:
        core = NumpyCore()
        core.held = []
        async with serving(core) as client:
            message = infer_message("identity_uint8", {"x": ("UINT8", [1, 1], b"\7")})
            call = client.start("ModelInfer", message)
            while not core.held:
                await asyncio.sleep(0)
            stopped = asyncio.create_task(client.server.stop(30))  # type: ignore[attr-defined]
            await asyncio.sleep(0)
            core.held[0]()
            assert (await call).raw_output_contents[0] == b"\7"
            await stopped

    run(main())


def test_a_client_that_was_not_accepted_yet_is_answered_while_the_server_stops() -> None:
    def ask(port: int) -> bytes:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            message = infer_message("identity_uint8", {"x": ("UINT8", [1, 1], b"\7")})
            infer = channel.unary_unary(f"/{INFERENCE}/ModelInfer")
            data: bytes = infer(message.SerializeToString(), timeout=GUARD)
            return data

    async def main() -> None:
        async with serving(NumpyCore()) as client:
            found: GrpcServer = client.server  # type: ignore[attr-defined]
            assert found._server is not None
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(ask, found.port)
                # the loop cannot accept the client while this waits for it
                select.select([found._server.sockets[0].fileno()], [], [], GUARD)
                await found.stop(GUARD)
                assert b"\7" in await asyncio.wrap_future(asked)

    run(main())


def test_large_messages_and_many_calls_share_a_connection() -> None:
    async def main() -> None:
        options = [("grpc.max_receive_message_length", -1)]
        core = NumpyCore()
        async with serving(core) as client:
            port = client.server.port  # type: ignore[attr-defined]
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:

                async def one(i: int) -> None:
                    data = bytes([i]) * (6 << 20 if i % 10 == 0 else 1000 + i)
                    message = infer_message(
                        "identity_uint8", {"x": ("UINT8", [1, len(data)], data)}
                    )
                    answer = await Client(channel).call("ModelInfer", message)
                    assert answer.raw_output_contents[0] == data

                await asyncio.gather(*(one(i) for i in range(40)))

    run(main())


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_connections_that_say_nothing_are_closed() -> None:
    async def main() -> None:
        clock = Clock()
        async with serving(NumpyCore(), clock=clock) as client:
            server = client.server  # type: ignore[attr-defined]
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"PRI * HT")
            while not any(each._buffer for each in server._connections):
                await asyncio.sleep(0)
            server._sweep()
            assert not writer.is_closing()
            clock.now = 11.0
            server._sweep()
            assert await reader.read(-1) == b""
            writer.close()

    run(main())


def test_idle_connections_are_asked_to_leave() -> None:
    async def main() -> None:
        clock = Clock()
        async with serving(NumpyCore(), clock=clock) as client:
            server = client.server  # type: ignore[attr-defined]
            assert (await client.call("ServerLive")).live
            clock.now = 100.0
            server._sweep()
            ready = grpc.ChannelConnectivity.READY
            while server._connections or client.channel.get_state() is ready:
                await asyncio.sleep(0)
            assert (await client.call("ServerLive")).live  # the channel connects again

    run(main())


def test_a_call_that_does_not_arrive_is_ended() -> None:
    async def main() -> None:
        clock = Clock()
        async with serving(NumpyCore(), clock=clock) as client:
            server = client.server  # type: ignore[attr-defined]
            stub = client.channel.stream_unary(f"/{INFERENCE}/ModelInfer")
            call = stub()
            await call.write(b"")
            while not any(each.streams for each in server._connections):
                await asyncio.sleep(0)
            clock.now = 11.0
            server._sweep()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.details() == "the message did not arrive in time"

    run(main())


def test_the_number_of_connections_is_limited() -> None:
    async def main() -> None:
        settings = ServingSettings(grpc_port=0, max_connections=1)
        async with serving(NumpyCore(), settings) as client:
            assert (await client.call("ServerLive")).live
            port = client.server.port  # type: ignore[attr-defined]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read(-1) == b""
            writer.close()
            assert (await client.call("ServerLive")).live

    run(main())


def test_a_call_with_too_much_metadata_does_not_end_the_others() -> None:
    async def main() -> None:
        core = NumpyCore()
        async with serving(core) as client:
            await client.call("ServerLive")  # the connection that all calls share
            for size in (20_000, 40_000):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await client.channel.unary_unary(f"/{INFERENCE}/ServerLive")(
                        b"", metadata=[("x-note", "a" * size)]
                    )
                assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                assert "metadata of the call has more than 16,384" in caught.value.details()
            assert len(client.server._connections) == 1  # type: ignore[attr-defined]
            assert (await client.call("ServerLive")).live

    run(main())


def test_a_request_that_is_not_a_method_call_is_refused() -> None:
    async def main() -> None:
        async with serving(NumpyCore()) as client:
            for method in (f"/{INFERENCE}/Train", "/"):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await client.channel.unary_unary(method)(b"")
                assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
                assert caught.value.details() == f"there is no method {method}"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.channel.unary_unary(f"/{INFERENCE}/ModelInfer")(b"\xff")
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT

    run(main())


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder / "cert.pem", folder / "key.pem"


def test_tls(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)

    async def main() -> None:
        secure = server(tls_certificate=str(cert), tls_key=str(key))
        await secure.start()
        trusted = grpc.ssl_channel_credentials(cert.read_bytes())
        async with grpc.aio.secure_channel(f"127.0.0.1:{secure.port}", trusted) as channel:
            assert (await Client(channel).call("ServerLive")).live
        await secure.stop(0)

    run(main())


def test_a_certificate_that_is_missing_is_an_error(tmp_path: Path) -> None:
    cert, _ = certificate(tmp_path)

    async def main() -> None:
        with pytest.raises(FileMissing, match=r"nokey.pem does not exist"):
            await server(tls_certificate=str(cert), tls_key=str(tmp_path / "nokey.pem")).start()

    run(main())


def test_health_follows_readiness() -> None:
    async def main() -> None:
        core = NumpyCore()
        async with serving(core) as client:
            stub = health_pb2_grpc.HealthStub(client.channel)
            for service in ("", INFERENCE):
                request = health_pb2.HealthCheckRequest(service=service)
                assert (await stub.Check(request)).status == SERVING
            watch = stub.Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == SERVING
            core.is_ready = False
            assert (await stub.Check(health_pb2.HealthCheckRequest())).status == NOT_SERVING
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Check(health_pb2.HealthCheckRequest(service="other"))
            assert caught.value.code() == grpc.StatusCode.NOT_FOUND
            core.is_ready = True
            stopped = asyncio.create_task(client.server.stop(30))  # type: ignore[attr-defined]
            while (status := await watch.read()) is not grpc.aio.EOF:
                assert status.status == NOT_SERVING
            await stopped

    run(main())


def test_reflection_describes_the_services() -> None:
    async def main() -> None:
        async with serving(NumpyCore()) as client:
            port = client.server.port  # type: ignore[attr-defined]
            await asyncio.to_thread(reflect, port)

    def reflect(port: int) -> None:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            found = ProtoReflectionDescriptorDatabase(channel)
            assert INFERENCE in found.get_services()
            file = found.FindFileContainingSymbol("inference.ModelInferRequest")
            assert list(file.dependency) == ["model_config.proto"]
            assert found.FindFileByName("model_config.proto").package == "inference"

    run(main())


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ({"file_containing_symbol": "no.such"}, "error_response"),
        ({"file_by_filename": "none.proto"}, "error_response"),
        ({"file_containing_extension": {"containing_type": "x"}}, "error_response"),
        (
            {"all_extension_numbers_of_type": "inference.InferParameter"},
            "all_extension_numbers_response",
        ),
    ],
)
def test_other_questions_to_reflection(question: dict[str, object], kind: str) -> None:
    request = message_class("grpc.reflection.v1.ServerReflectionRequest")(**question)
    assert answer(request).WhichOneof("message_response") == kind
