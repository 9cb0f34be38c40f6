"""Messages from the compiled descriptors."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from onward.serving.grpc.grpc_messages import (
    INFERENCE,
    POOL,
    from_json,
    message_class,
    parameter_values,
    service_methods,
    set_parameters,
)

PROTOCOLS = Path(__file__).parents[3] / "onward/serving/grpc/protocols"


def test_the_service_has_the_methods_of_the_protocol() -> None:
    methods = service_methods(INFERENCE)
    assert len(methods) == 20
    assert methods["ModelStreamInfer"].client_streaming
    assert methods["ModelStreamInfer"].server_streaming


@pytest.mark.parametrize(
    ("message", "numbers"),
    [
        (
            "ModelInferRequest",
            "model_name model_version id parameters inputs outputs raw_input_contents",
        ),
        (
            "ModelInferResponse",
            "model_name model_version id parameters outputs raw_output_contents",
        ),
        ("InferParameter", "bool_param int64_param string_param double_param uint64_param"),
        ("ModelMetadataResponse", "name versions platform inputs outputs"),
    ],
)
def test_fields_have_the_numbers_of_the_protocol(message: str, numbers: str) -> None:
    fields = message_class(f"inference.{message}").DESCRIPTOR.fields_by_number
    assert [fields[i + 1].name for i in range(len(fields))] == numbers.split()


def test_the_pool_is_separate_from_the_default_one() -> None:
    assert POOL is not descriptor_pool.Default()
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("inference.ModelInferRequest")


def test_parameters_keep_their_types() -> None:
    message = message_class("inference.ModelInferResponse")()
    values = {"a": True, "b": -1, "c": 1 << 63, "d": 0.5, "e": "text"}
    set_parameters(message.parameters, values)
    assert message.parameters["c"].WhichOneof("parameter_choice") == "uint64_param"
    assert parameter_values(message.parameters) == values
    assert parameter_values({"f": message_class("inference.InferParameter")()}) == {"f": None}


def test_json_with_further_keys_is_read() -> None:
    message = from_json("inference.ServerMetadataResponse", {"name": "onward", "further": [1]})
    assert message.name == "onward"


@pytest.mark.skipif(find_spec("grpc_tools") is None, reason="grpcio-tools is not installed")
def test_the_descriptors_are_compiled_from_the_sources(tmp_path: Path) -> None:
    out = tmp_path / "protocols.binpb"
    files = ["model_config.proto", "inference.proto", "health.proto", "reflection.proto"]
    assert sorted(files) == sorted(path.name for path in PROTOCOLS.glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=.", "--include_imports"]
    subprocess.run([*command, f"--descriptor_set_out={out}", *files], cwd=PROTOCOLS, check=True)
    read = descriptor_pb2.FileDescriptorSet.FromString
    committed = (PROTOCOLS / "protocols.binpb").read_bytes()
    assert read(out.read_bytes()) == read(committed), "run scripts/compile_protocols"
