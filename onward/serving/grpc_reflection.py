"""gRPC's reflection service: clients such as grpcurl read the protocol from the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf import descriptor_pb2

from onward.serving.grpc_messages import (
    HEALTH,
    INFERENCE,
    POOL,
    REFLECTION,
    Message,
    message_class,
)

_Request = message_class("grpc.reflection.v1.ServerReflectionRequest")
_Response = message_class("grpc.reflection.v1.ServerReflectionResponse")
REFLECTION_ALPHA = "grpc.reflection.v1alpha.ServerReflection"  # older clients; the same fields


def handlers() -> dict[str, grpc.RpcMethodHandler]:
    """A handler for the one method of the service."""
    return {
        "ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(
            _answer_all, _Request.FromString, _Response.SerializeToString
        )
    }


async def _answer_all(messages: AsyncIterator[Message], context: Any) -> AsyncIterator[Message]:
    async for message in messages:
        yield answer(message)


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
        response.error_response.error_code = grpc.StatusCode.NOT_FOUND.value[0]
        response.error_response.error_message = "not found"
    return response


def _add_files(response: Message, file: Any) -> None:
    """Add a file and those that it imports."""
    proto = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(proto)
    response.file_descriptor_response.file_descriptor_proto.append(proto.SerializeToString())
    for each in file.dependencies:
        _add_files(response, each)
