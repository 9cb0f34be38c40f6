"""kserve.InferenceRESTClient with the protocol's version 2."""

import asyncio

import httpx
import numpy as np
from cases import Cases, addresses, contains, equal, exit_with
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

case = Cases()
A = np.arange(16, dtype=np.int32).reshape(1, 16)
B = np.ones((1, 16), np.int32)
LISTS = {
    "BOOL": [True, False],
    **{key: [-7, 7] for key in ("INT8", "INT16", "INT32", "INT64")},
    **{key: [1, 7] for key in ("UINT8", "UINT16", "UINT32", "UINT64")},
    **{key: [0.5, 7.0] for key in ("FP32", "FP64")},
    "BYTES": ["a", "grüße"],
}


class Api:
    def __init__(self, client, url):
        self.client, self.url = client, url

    async def infer(self, request, model=None, **options):
        name = model or request.model_name
        return await self.client.infer(self.url, request, model_name=name, **options)

    async def refused(self, request, status, model=None):
        try:
            await self.infer(request, model)
        except httpx.HTTPStatusError as error:
            equal(error.response.status_code, status)
            return str(error)
        raise AssertionError("it was not refused")


def simple(binary=True, **options):
    inputs = []
    for name, array in (("INPUT0", A), ("INPUT1", B)):
        each = InferInput(name, list(array.shape), "INT32", [])
        each.set_data_from_numpy(array, binary_data=binary)
        inputs.append(each)
    return InferRequest(options.pop("model", "simple"), inputs, **options)


def outputs(response):
    return {each.name: each for each in response.outputs}


@case
async def health(api):
    equal(await api.client.is_server_live(api.url), True)
    equal(await api.client.is_server_ready(api.url), True)
    equal(await api.client.is_model_ready(api.url, "simple"), True)
    equal(await api.client.is_model_ready(api.url, "no_such_model"), False)


@case.of(["json", "binary"])
async def tensors(api, form):
    found = await api.infer(simple(form == "binary", request_id="7"))
    equal((found.model_name, found.id), ("simple", "7"))
    np.testing.assert_array_equal(outputs(found)["OUTPUT0"].as_numpy(), A + B)
    np.testing.assert_array_equal(outputs(found)["OUTPUT1"].as_numpy(), A - B)


@case
async def binary_outputs(api):
    found = await api.infer(simple(parameters={"binary_data_output": True}))
    np.testing.assert_array_equal(outputs(found)["OUTPUT0"].as_numpy(), A + B)


@case
async def a_binary_output(api):
    asked = [RequestedOutput("OUTPUT1", parameters={"binary_data": True})]
    found = await api.infer(simple(request_outputs=asked))
    equal(list(outputs(found)), ["OUTPUT1"])
    np.testing.assert_array_equal(outputs(found)["OUTPUT1"].as_numpy(), A - B)


@case.of(LISTS)
async def list_of(api, name):
    each = InferInput("x", [1, 2], name, list(LISTS[name]))
    found = await api.infer(InferRequest(f"identity_{name.lower()}", [each]))
    equal(outputs(found)["y"].data, LISTS[name])


@case
async def FP16(api):
    array = np.array([[0.5, 2.0]], np.float16)
    each = InferInput("x", [1, 2], "FP16")
    each.set_data_from_numpy(array, binary_data=True)
    request = InferRequest("identity_fp16", [each], parameters={"binary_data_output": True})
    np.testing.assert_array_equal(outputs(await api.infer(request))["y"].as_numpy(), array)


@case
async def a_dictionary(api):
    data = [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]}]
    found = await api.infer({"inputs": data}, model="identity_fp32")
    equal(outputs(found)["y"].data, [1.0, 2.0])


@case
async def nested_data(api):
    data = [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[1.0, 2.0], [3.0, 4.0]]}]
    found = await api.infer({"inputs": data}, model="identity_fp32")
    equal(outputs(found)["y"].as_numpy().tolist(), [[1.0, 2.0], [3.0, 4.0]])


@case
async def parameters(api):
    found = await api.infer(simple(parameters={"priority": 1, "own": "text"}))
    np.testing.assert_array_equal(outputs(found)["OUTPUT0"].as_numpy(), A + B)


@case
async def unknown_model(api):
    contains(await api.refused(simple(model="no_such_model"), 404), "no_such_model")


@case
async def wrong_shape(api):
    each = InferInput("INPUT0", [1, 2], "INT32", [1, 2])
    contains(await api.refused(InferRequest("simple", [each]), 400), "simple")


@case
async def data_that_is_no_request(api):
    await api.refused({"instances": [1]}, 400, model="simple")


async def main():
    address, _ = addresses()
    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=30, retries=0))
    return await case.run(Api(client, f"http://{address}"))


exit_with(asyncio.run(main()))
