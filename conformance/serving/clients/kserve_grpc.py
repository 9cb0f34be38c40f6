"""kserve.InferenceGRPCClient."""

import asyncio

import grpc
import numpy as np
from cases import Cases, addresses, contains, equal, exit_with
from kserve import InferenceGRPCClient, InferInput, InferRequest
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub
from kserve.protocol.infer_type import RequestedOutput

case = Cases()
A = np.arange(16, dtype=np.int32).reshape(1, 16)
B = np.ones((1, 16), np.int32)
LISTS = {
    "BOOL": [True, False],
    **{key: [-7, 7] for key in ("INT8", "INT16", "INT32", "INT64")},
    **{key: [1, 7] for key in ("UINT8", "UINT16", "UINT32", "UINT64")},
    **{key: [0.5, 7.0] for key in ("FP32", "FP64")},
}


def simple(binary=True, **options):
    inputs = []
    for name, array in (("INPUT0", A), ("INPUT1", B)):
        each = InferInput(
            name, list(array.shape), "INT32", [] if binary else array.reshape(-1).tolist()
        )
        if binary:
            each.set_data_from_numpy(array, binary_data=True)
        inputs.append(each)
    return InferRequest(options.pop("model", "simple"), inputs, **options)


def outputs(response):
    return {each.name: each for each in response.outputs}


@case
async def health(client):
    equal(await client.is_server_live(), True)
    equal(await client.is_server_ready(), True)
    equal(await client.is_model_ready("simple"), True)


@case
async def raw_tensors(client):
    found = await client.infer(simple(request_id="7"))
    equal((found.model_name, found.id), ("simple", "7"))
    np.testing.assert_array_equal(outputs(found)["OUTPUT0"].as_numpy(), A + B)
    np.testing.assert_array_equal(outputs(found)["OUTPUT1"].as_numpy(), A - B)


@case
async def lists(client):
    found = outputs(await client.infer(simple(binary=False)))
    equal(found["OUTPUT0"].data, (A + B).reshape(-1).tolist())
    np.testing.assert_array_equal(found["OUTPUT1"].as_numpy(), A - B)


@case.of(LISTS)
async def list_of(client, name):
    each = InferInput("x", [1, 2], name, list(LISTS[name]))
    request = InferRequest(f"identity_{name.lower()}", [each])
    equal(outputs(await client.infer(request))["y"].data, LISTS[name])


@case
async def array_as_data(client):
    each = InferInput("x", [1, 2], "FP32", np.array([[1.5, 2.0]], np.float32))
    found = await client.infer(InferRequest("identity_fp32", [each]))
    equal(outputs(found)["y"].as_numpy().tolist(), [[1.5, 2.0]])


@case
async def FP16(client):
    array = np.array([[0.5, 2.0]], np.float16)
    each = InferInput("x", [1, 2], "FP16")
    each.set_data_from_numpy(array)
    found = outputs(await client.infer(InferRequest("identity_fp16", [each])))["y"].as_numpy()
    np.testing.assert_array_equal(found, array)


@case
async def texts(client):
    each = InferInput("x", [1, 2], "BYTES", ["a", "bc"])
    found = outputs(await client.infer(InferRequest("identity_bytes", [each])))["y"]
    equal(found.data, [b"a", b"bc"])
    raw = InferInput("x", [1, 2], "BYTES")
    raw.set_data_from_numpy(np.array([[b"a", b"\x80"[:0]]], object))
    found = outputs(await client.infer(InferRequest("identity_bytes", [raw])))["y"]
    equal(found.as_numpy().tolist(), [[b"a", b""]])


@case
async def requested_outputs(client):
    found = await client.infer(simple(request_outputs=[RequestedOutput("OUTPUT1")]))
    equal(list(outputs(found)), ["OUTPUT1"])


@case
async def parameters(client):
    found = await client.infer(simple(parameters={"priority": 1, "own": "text"}))
    np.testing.assert_array_equal(outputs(found)["OUTPUT0"].as_numpy(), A + B)


async def refused(client, request):
    try:
        await client.infer(request)
    except grpc.RpcError as error:
        return error
    raise AssertionError("it was not refused")


@case
async def unknown_model(client):
    error = await refused(client, simple(model="no_such_model"))
    equal(error.code(), grpc.StatusCode.NOT_FOUND)
    contains(error.details(), "no_such_model")


@case
async def wrong_shape(client):
    each = InferInput("INPUT0", [1, 2], "INT32", [1, 2])
    error = await refused(client, InferRequest("simple", [each]))
    equal(error.code(), grpc.StatusCode.INVALID_ARGUMENT)


@case
async def load_and_unload_with_the_stub(client):
    stub = GRPCInferenceServiceStub(client._channel)
    request = messages.RepositoryModelUnloadRequest(model_name="identity_uint32")
    answer = await stub.RepositoryModelUnload(request)
    equal((answer.model_name, answer.isUnloaded), ("identity_uint32", True))
    equal(await client.is_model_ready("identity_uint32"), False)
    request = messages.RepositoryModelLoadRequest(model_name="identity_uint32")
    equal((await stub.RepositoryModelLoad(request)).isLoaded, True)
    equal(await client.is_model_ready("identity_uint32"), True)


async def main():
    _, address = addresses()
    async with InferenceGRPCClient(address, timeout=30) as client:
        return await case.run(client)


exit_with(asyncio.run(main()))
