"""Streams of tritonclient.grpc, sync and asyncio."""

import asyncio
import queue

import numpy as np
import tritonclient.grpc as module
import tritonclient.grpc.aio as aio
from cases import Cases, addresses, contains, equal, exit_with
from triton_common import A, Api, B

case = Cases()


class Stream:
    """An open stream of the client with threads."""

    def __init__(self, client, **options):
        self.client = client
        self.found = queue.Queue()
        client.start_stream(
            callback=lambda result, error: self.found.put((result, error)), **options
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.stop_stream()

    def send(self, model, inputs, **options):
        self.client.async_stream_infer(model, inputs, **options)

    def get(self):
        return self.found.get(timeout=30)


def pair(api, i):
    a = np.full((1, 16), i, np.int32)
    return [api.input("INPUT0", a), api.input("INPUT1", B[:1])]


@case
def answers_in_order(api):
    with Stream(api.client) as stream:
        for i in range(50):
            stream.send("simple", pair(api, i), request_id=str(i))
        for i in range(50):
            result, error = stream.get()
            equal(error, None)
            equal(result.get_response().id, str(i))
            equal(int(result.as_numpy("OUTPUT0")[0, 0]), i + 1)


@case
def final_response(api):
    with Stream(api.client) as stream:
        stream.send("simple", pair(api, 1), enable_empty_final_response=True)
        result, error = stream.get()
        equal(error, None)
        equal(result.get_response().parameters["triton_final_response"].bool_param, True)


@case
def error_then_answer(api):
    with Stream(api.client) as stream:
        stream.send("no_such_model", pair(api, 1))
        result, error = stream.get()
        equal(result, None)
        contains(error.message(), "unknown model", "no_such_model")
        stream.send("simple", pair(api, 1))
        equal(stream.get()[1], None)


@case
def sequences(api):
    with Stream(api.client) as stream:
        for step in range(3):
            for each in (2001, 2002):
                x = api.input("INPUT", np.full((1, 1), step + each % 10, np.int32))
                stream.send(
                    "accumulator",
                    [x],
                    sequence_id=each,
                    sequence_start=step == 0,
                    sequence_end=step == 2,
                )
        found = []
        for _ in range(6):
            result, error = stream.get()
            equal(error, None)
            found.append(int(result.as_numpy("OUTPUT")[0, 0]))
        equal(found, [1, 2, 3, 5, 6, 9])


@case
def a_second_stream_after_the_first(api):
    for _ in range(2):
        with Stream(api.client) as stream:
            stream.send("simple", pair(api, 1))
            equal(stream.get()[1], None)


@case
def cancelled_stream(api):
    stream = Stream(api.client)
    stream.send("simple", pair(api, 1))
    equal(stream.get()[1], None)
    api.client.stop_stream(cancel_requests=True)
    _result, error = stream.get()
    equal(str(error.status()), "StatusCode.CANCELLED")


@case
def stream_timeout(api):
    stream = Stream(api.client, stream_timeout=0.5)
    _result, error = stream.get()
    equal(str(error.status()), "StatusCode.DEADLINE_EXCEEDED")
    api.client.stop_stream()


@case
def compressed_stream(api):
    with Stream(api.client, compression_algorithm="gzip") as stream:
        stream.send("simple", [api.input("INPUT0", A), api.input("INPUT1", B)])
        result, _error = stream.get()
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)


@case
def error_as_a_status(api):
    with Stream(api.client, headers={"triton_grpc_error": "true"}) as stream:
        stream.send("no_such_model", pair(api, 1))
        _, error = stream.get()
        equal(str(error.status()), "StatusCode.NOT_FOUND")


async def requests(api, count):
    for i in range(count):
        yield {"model_name": "simple", "inputs": pair(api, i), "request_id": str(i)}


@case
async def asyncio_stream(api):
    async with aio.InferenceServerClient(api.address) as client:
        ids = []
        async for result, error in client.stream_infer(requests(api, 20)):
            equal(error, None)
            ids.append(result.get_response().id)
        equal(ids, [str(i) for i in range(20)])


@case
async def asyncio_stream_error(api):
    async def bad():
        yield {"model_name": "no_such_model", "inputs": pair(api, 1)}

    async with aio.InferenceServerClient(api.address) as client:
        errors = [error async for _, error in client.stream_infer(bad())]
        contains(errors[0].message(), "no_such_model")


@case
async def asyncio_stream_cancelled(api):
    async with aio.InferenceServerClient(api.address) as client:
        answers = client.stream_infer(requests(api, 1000))
        await answers.__anext__()
        equal(answers.cancel(), True)


_, address = addresses()
with module.InferenceServerClient(address) as client:
    api = Api(client, module)
    api.address = address
    passed = asyncio.run(case.run(api))
exit_with(passed)
