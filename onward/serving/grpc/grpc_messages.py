"""Messages of the gRPC services, built at run time from compiled descriptors.

Generated code is bound to one version of the protobuf runtime; descriptors are not. They are in a
pool of their own, so that a client library in the same process may register the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

Message = Any  # a protobuf message; its class exists at run time only

INFERENCE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1.ServerReflection"
_DESCRIPTORS = Path(__file__).parent / "protocols" / "protocols.binpb"


def _read_pool() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(_DESCRIPTORS.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL = _read_pool()


def message_class(name: str) -> Any:
    """The class of a message by its full name, such as "inference.ModelInferRequest"."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))


def service_methods(service: str) -> dict[str, Any]:
    """The descriptors of a service's methods by name."""
    return {each.name: each for each in POOL.FindServiceByName(service).methods}


def input_class(method: Any) -> Any:
    """The class of a method's request."""
    return message_factory.GetMessageClass(method.input_type)


def output_class(method: Any) -> Any:
    """The class of a method's response."""
    return message_factory.GetMessageClass(method.output_type)


def from_json(name: str, values: Mapping[str, Any]) -> Message:
    """A message from a dictionary in JSON form; keys that the message lacks are left out."""
    return json_format.ParseDict(values, message_class(name)(), ignore_unknown_fields=True)


def parameter_value(parameter: Message) -> Any:
    """The value of a parameter, or None if the client left it empty."""
    field = parameter.WhichOneof("parameter_choice")
    return None if field is None else getattr(parameter, field)


def parameter_values(parameters: Mapping[str, Message]) -> dict[str, Any]:
    """The values of a map of parameters."""
    return {name: parameter_value(each) for name, each in parameters.items()}


def set_parameters(parameters: Any, values: Mapping[str, Any]) -> None:
    """Fill a map of InferParameter."""
    for name, value in values.items():
        if isinstance(value, bool):
            parameters[name].bool_param = value
        elif isinstance(value, int):
            field = "int64_param" if value < 1 << 63 else "uint64_param"
            setattr(parameters[name], field, value)
        elif isinstance(value, float):
            parameters[name].double_param = value
        else:
            parameters[name].string_param = str(value)
