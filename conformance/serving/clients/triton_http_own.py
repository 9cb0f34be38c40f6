"""What only tritonclient.http has: JSON tensors, compression, request bodies of one's own."""

import asyncio

import numpy as np
import tritonclient.http as module
from cases import Cases, addresses, contains, equal, exit_with
from triton_common import NUMPY, A, Api, B

case = Cases()


def inputs(api, binary):
    return [
        api.input("INPUT0", A, binary_data=binary),
        api.input("INPUT1", B, binary_data=binary),
    ]


def check(result):
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)


@case.of(["json_json", "json_binary", "binary_json", "binary_binary"])
async def tensors(api, forms):
    sent, asked = (each == "binary" for each in forms.split("_"))
    outputs = [api.output(name, binary_data=asked) for name in ("OUTPUT0", "OUTPUT1")]
    result = await api.call("infer", "simple", inputs(api, sent), outputs=outputs)
    check(result)
    equal("data" in result.get_output("OUTPUT0"), not asked)


@case
async def tensors_of_two_forms(api):
    made = [api.input("INPUT0", A, binary_data=False), api.input("INPUT1", B, binary_data=True)]
    outputs = [api.output("OUTPUT0", binary_data=True), api.output("OUTPUT1", binary_data=False)]
    check(await api.call("infer", "simple", made, outputs=outputs))


@case.of([name for name in NUMPY if name not in ("FP16", "BF16")])
async def json_of(api, name):
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(NUMPY[name])
    made = [api.input("x", array, binary_data=False)]
    outputs = [api.output("y", binary_data=False)]
    result = await api.call("infer", f"identity_{name.lower()}", made, outputs=outputs)
    np.testing.assert_array_equal(result.as_numpy("y"), array)


@case
async def json_of_BYTES(api):
    array = np.array([["", "grüße"]], object)
    made = [api.input("x", array, binary_data=False)]
    outputs = [api.output("y", binary_data=False)]
    result = await api.call("infer", "identity_bytes", made, outputs=outputs)
    equal(result.get_output("y")["data"], ["", "grüße"])


@case
async def json_of_the_largest_numbers(api):
    for name in ("INT64", "UINT64"):
        limits = np.iinfo(NUMPY[name])
        array = np.array([[limits.min, limits.max]], NUMPY[name])
        made = [api.input("x", array, binary_data=False)]
        outputs = [api.output("y", binary_data=False)]
        result = await api.call("infer", f"identity_{name.lower()}", made, outputs=outputs)
        equal(result.as_numpy("y").tolist(), array.tolist())


@case.of(["gzip", "deflate"])
async def request_compression(api, algorithm):
    options = {"request_compression_algorithm": algorithm}
    check(await api.call("infer", "simple", inputs(api, True), **options))


@case.of(["gzip", "deflate"])
async def response_compression(api, algorithm):
    options = {"response_compression_algorithm": algorithm}
    check(await api.call("infer", "simple", inputs(api, True), **options))


@case
async def classification_as_json(api):
    x = np.array([[0.0, 2.0, 1.0, 9.0]], np.float32)
    outputs = [api.output("scores", binary_data=False, class_count=1)]
    result = await api.call("infer", "classifier", [api.input("x", x)], outputs=outputs)
    contains(result.get_output("scores")["data"][0], ":1:dog")


@case
def asynchronous_requests(api):
    sent = [api.client.async_infer("simple", inputs(api, True)) for _ in range(32)]
    for each in sent:
        check(each.get_result(timeout=30))


@case
def a_body_of_its_own(api):
    body, length = module.InferenceServerClient.generate_request_body(inputs(api, True))
    response = api.client._post(
        "v2/models/simple/infer", body, {"Inference-Header-Content-Length": str(length)}, None
    )
    equal(response.status_code, 200)
    size = response.get("inference-header-content-length")
    result = module.InferenceServerClient.parse_response_body(
        response.read(), header_length=int(size) if size else None
    )
    check(result)


@case
async def headers_and_query(api):
    options = {"headers": {"X-Own": "1"}, "query_params": {"own": "1"}}
    check(await api.call("infer", "simple", inputs(api, True), **options))


http, _ = addresses()
with module.InferenceServerClient(http, concurrency=8) as client:
    passed = asyncio.run(case.run(Api(client, module)))
exit_with(passed)
