"""What only tritonclient.grpc has: callbacks, cancellation, deadlines, and its bare stubs."""

import asyncio
import queue

import grpc
import numpy as np
import tritonclient.grpc as module
from cases import Cases, addresses, contains, equal, exit_with
from triton_common import A, Api, B
from tritonclient.grpc import service_pb2, service_pb2_grpc

case = Cases()


def inputs(api):
    return [api.input("INPUT0", A), api.input("INPUT1", B)]


def check(result):
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)


@case
def asynchronous_requests(api):
    found = queue.Queue()
    for i in range(32):
        api.client.async_infer(
            "simple",
            inputs(api),
            callback=lambda result, error: found.put((result, error)),
            request_id=str(i),
        )
    ids = set()
    for _ in range(32):
        result, error = found.get(timeout=30)
        equal(error, None)
        check(result)
        ids.add(result.get_response().id)
    equal(len(ids), 32)


@case
def asynchronous_error(api):
    found = queue.Queue()
    callback = lambda result, error: found.put((result, error))  # noqa: E731
    api.client.async_infer("no_such_model", inputs(api), callback=callback)
    result, error = found.get(timeout=30)
    equal(result, None)
    contains(error.message(), "no_such_model")


@case
def cancelled_request(api):
    found = queue.Queue()
    callback = lambda result, error: found.put((result, error))  # noqa: E731
    call = api.client.async_infer("simple", inputs(api), callback=callback)
    call.cancel()
    result, error = found.get(timeout=30)
    if error is None:  # it was answered before it was cancelled
        check(result)
    else:
        equal(str(error.status()), "StatusCode.CANCELLED")


@case.of(["gzip", "deflate"])
async def compression(api, algorithm):
    check(await api.call("infer", "simple", inputs(api), compression_algorithm=algorithm))


@case
async def deadline(api):
    check(await api.call("infer", "simple", inputs(api), client_timeout=30.0))


@case
async def headers(api):
    check(await api.call("infer", "simple", inputs(api), headers={"x-own": "1"}))


@case
async def response_as_json(api):
    result = await api.call("infer", "simple", inputs(api), request_id="7")
    equal(result.get_response(as_json=True)["id"], "7")
    equal(result.get_output("OUTPUT0").datatype, "INT32")


def explicit(stub, model, datatype, shape, **contents):
    """A request with typed contents, as in Triton's examples."""
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="x", datatype=datatype, shape=shape, contents=contents)
    return stub.ModelInfer(request, timeout=30)


TYPED = {
    "BOOL": ("bool_contents", [True, False], np.bool_),
    "INT8": ("int_contents", [-7, 7], np.int8),
    "INT16": ("int_contents", [-7, 7], np.int16),
    "INT32": ("int_contents", [-7, 7], np.int32),
    "INT64": ("int64_contents", [-7, 7], np.int64),
    "UINT8": ("uint_contents", [1, 7], np.uint8),
    "UINT16": ("uint_contents", [1, 7], np.uint16),
    "UINT32": ("uint_contents", [1, 7], np.uint32),
    "UINT64": ("uint64_contents", [1, 7], np.uint64),
    "FP32": ("fp32_contents", [0.5, 7], np.float32),
    "FP64": ("fp64_contents", [0.1, 7], np.float64),
}


@case.of(TYPED)
def typed_contents_of(api, name):
    field, values, dtype = TYPED[name]
    answer = explicit(api.stub, f"identity_{name.lower()}", name, [1, 2], **{field: values})
    equal(np.frombuffer(answer.raw_output_contents[0], dtype).tolist(), values)


@case
def typed_contents_of_BYTES(api):
    answer = explicit(api.stub, "identity_bytes", "BYTES", [1, 2], bytes_contents=[b"a", b"bc"])
    equal(answer.raw_output_contents[0], b"\1\0\0\0a\2\0\0\0bc")


@case
def typed_contents_that_are_too_few(api):
    try:
        explicit(api.stub, "identity_fp32", "FP32", [1, 2], fp32_contents=[1.0])
    except grpc.RpcError as error:
        equal(error.code(), grpc.StatusCode.INVALID_ARGUMENT)
        contains(error.details(), "'x'")
        return
    raise AssertionError("it was not refused")


@case
def raw_contents_of_the_wrong_size(api):
    request = service_pb2.ModelInferRequest(
        model_name="identity_fp32", raw_input_contents=[b"1234"]
    )
    request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    try:
        api.stub.ModelInfer(request, timeout=30)
    except grpc.RpcError as error:
        equal(error.code(), grpc.StatusCode.INVALID_ARGUMENT)
        contains(error.details(), "'x'", "4", "8")
        return
    raise AssertionError("it was not refused")


_, address = addresses()
with module.InferenceServerClient(address) as client, grpc.insecure_channel(address) as channel:
    api = Api(client, module)
    api.stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    passed = asyncio.run(case.run(api))
exit_with(passed)
