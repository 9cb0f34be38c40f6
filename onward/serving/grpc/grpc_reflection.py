"""gRPC's reflection service: clients such as grpcurl read the protocol from the server."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2

from onward.serving.grpc.grpc_call import GrpcCall, GrpcMethod
from onward.serving.grpc.grpc_errors import CODES
from onward.serving.grpc.grpc_messages import (
    HEALTH,
    INFERENCE,
    POOL,
    REFLECTION,
    Message,
    message_class,
)
from onward.serving.grpc.http2_stream import Received

_Request = message_class("grpc.reflection.v1.ServerReflectionRequest")
_Response = message_class("grpc.reflection.v1.ServerReflectionResponse")
REFLECTION_ALPHA = "grpc.reflection.v1alpha.ServerReflection"  # older clients; the same fields


class _Questions:
    """Answers the questions of one call."""

    is_full = False

    def __init__(self, call: GrpcCall) -> None:
        self._call = call

    def receive(self, message: Received) -> None:
        try:
            self._call.send(answer(_Request.FromString(message)).SerializeToString())
        except Exception as error:
            self._call.fail(error)

    def end(self) -> None:
        self._call.finish()


def methods() -> dict[str, GrpcMethod]:
    """The one method of the service."""
    return {"ServerReflectionInfo": GrpcMethod(open=_Questions)}


def answer(message: Message) -> Message:
    """The response to one request."""
    response = _Response(valid_host=message.host, original_request=message)
    question = message.WhichOneof("message_request")
    try:
        if question == "list_services":
            for name in (INFERENCE, HEALTH, REFLECTION):
                response.list_services_response.service.add(name=name)
        elif question == "file_by_filename":
            _add_files(response, POOL.FindFileByName(message.file_by_filename))
        elif question == "file_containing_symbol":
            symbol = message.file_containing_symbol
            _add_files(response, POOL.FindFileContainingSymbol(symbol))
        elif question == "all_extension_numbers_of_type":
            name = message.all_extension_numbers_of_type
            response.all_extension_numbers_response.base_type_name = POOL.FindMessageTypeByName(
                name
            ).full_name  # no message here has extensions
        else:
            raise KeyError("there are no extensions")
    except KeyError:
        response.error_response.error_code = CODES["NOT_FOUND"]
        response.error_response.error_message = "not found"
    return response


def _add_files(response: Message, file: Any) -> None:
    """Add a file and those that it imports."""
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    response.file_descriptor_response.file_descriptor_proto.append(proto.SerializeToString())
    for each in file.dependencies:
        _add_files(response, each)
