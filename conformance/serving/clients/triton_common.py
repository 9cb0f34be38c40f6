"""Cases of tritonclient that HTTP and gRPC share, sync and asyncio.

`Api` hides the differences of the four clients: every method is awaited, and metadata is JSON.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from typing import Any

import ml_dtypes
import numpy as np
from cases import Cases, contains, equal
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

NUMPY = {
    "BOOL": np.bool_,
    **{f"INT{n}": np.dtype(f"int{n}") for n in (8, 16, 32, 64)},
    **{f"UINT{n}": np.dtype(f"uint{n}") for n in (8, 16, 32, 64)},
    "FP16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "FP32": np.float32,
    "FP64": np.float64,
}
A = np.arange(32, dtype=np.int32).reshape(2, 16)
B = np.ones((2, 16), np.int32)


class Api:
    """A client of tritonclient and the module that its inputs and outputs come from."""

    def __init__(self, client: Any, module: Any) -> None:
        self.client = client
        self.module = module
        self.is_grpc = module.__name__.endswith("grpc")

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        found = getattr(self.client, method)(*arguments, **options)
        return await found if inspect.isawaitable(found) else found

    async def json(self, method: str, *arguments: Any, **options: Any) -> Any:
        """A call that returns metadata."""
        if self.is_grpc:
            options["as_json"] = True
        found = await self.call(method, *arguments, **options)
        return found

    def input(self, name: str, array: Any, **options: Any) -> Any:
        made = self.module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        return made.set_data_from_numpy(array, **options)

    def output(self, name: str, **options: Any) -> Any:
        return self.module.InferRequestedOutput(name, **options)

    async def infer(self, model: str, inputs: dict[str, Any], **options: Any) -> Any:
        made = [self.input(name, array) for name, array in inputs.items()]
        return await self.call("infer", model, made, **options)

    def fields(self, result: Any) -> dict[str, Any]:
        """The response's own fields."""
        found = result.get_response()
        if not self.is_grpc:
            return dict(found)
        return {
            "id": found.id,
            "model_name": found.model_name,
            "model_version": found.model_version,
            "outputs": [{"name": each.name, "datatype": each.datatype} for each in found.outputs],
        }

    async def refused(self, method: str, *arguments: Any, **options: Any) -> Any:
        try:
            await self.call(method, *arguments, **options)
        except InferenceServerException as error:
            return error
        raise AssertionError(f"{method}{arguments} was not refused")

    def check_status(self, error: Any, http: str, grpc: str) -> None:
        expected = f"StatusCode.{grpc}" if self.is_grpc else http
        equal(str(error.status()), expected)


case = Cases()


@case
async def server_is_live(api: Api) -> None:
    equal(await api.call("is_server_live"), True)


@case
async def server_is_ready(api: Api) -> None:
    equal(await api.call("is_server_ready"), True)


@case
async def models_are_ready(api: Api) -> None:
    equal(await api.call("is_model_ready", "simple"), True)
    equal(await api.call("is_model_ready", "simple", "1"), True)


@case
async def unknown_models_are_not_ready(api: Api) -> None:
    equal(await api.call("is_model_ready", "no_such_model"), False)
    equal(await api.call("is_model_ready", "simple", "99"), False)


@case
async def server_metadata(api: Api) -> None:
    found = await api.json("get_server_metadata")
    assert found["name"] and found["version"], found
    for extension in ("classification", "model_repository", "statistics", "system_shared_memory"):
        assert extension in found["extensions"], f"no extension {extension}: {found['extensions']}"


@case
async def model_metadata(api: Api) -> None:
    found = await api.json("get_model_metadata", "simple")
    equal(found["name"], "simple")
    equal(found["versions"], ["1"])
    assert found["platform"], found
    inputs = {each["name"]: each for each in found["inputs"]}
    equal(sorted(inputs), ["INPUT0", "INPUT1"])
    equal(inputs["INPUT0"]["datatype"], "INT32")
    equal([int(size) for size in inputs["INPUT0"]["shape"]], [-1, 16])
    equal([each["name"] for each in found["outputs"]], ["OUTPUT0", "OUTPUT1"])


@case
async def model_metadata_of_a_version(api: Api) -> None:
    equal((await api.json("get_model_metadata", "simple", "1"))["name"], "simple")
    error = await api.refused("get_model_metadata", "simple", "99")
    contains(error.message(), "simple")


@case
async def metadata_of_an_unknown_model(api: Api) -> None:
    error = await api.refused("get_model_metadata", "no_such_model")
    contains(error.message(), "unknown model", "no_such_model")


@case
async def model_config(api: Api) -> None:
    found = await api.json("get_model_config", "simple")
    found = found["config"] if api.is_grpc else found
    equal(found["name"], "simple")
    equal([each["data_type"] for each in found["input"]], ["TYPE_INT32", "TYPE_INT32"])
    equal([each["name"] for each in found["output"]], ["OUTPUT0", "OUTPUT1"])
    assert isinstance(found.get("max_batch_size", 0), int), found


@case
async def config_of_labels_and_sequences(api: Api) -> None:
    found = await api.json("get_model_config", "classifier")
    found = found["config"] if api.is_grpc else found
    equal(found["output"][0]["label_filename"], "labels.txt")
    found = await api.json("get_model_config", "accumulator")
    found = found["config"] if api.is_grpc else found
    assert "sequence_batching" in found, found


@case
async def infer(api: Api) -> None:
    result = await api.infer("simple", {"INPUT0": A, "INPUT1": B})
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)
    equal(result.as_numpy("OUTPUT2"), None)
    found = api.fields(result)
    equal((found["model_name"], found["model_version"]), ("simple", "1"))


@case
async def request_id(api: Api) -> None:
    result = await api.infer("simple", {"INPUT0": A, "INPUT1": B}, request_id="my request 7")
    equal(api.fields(result)["id"], "my request 7")


@case
async def model_version(api: Api) -> None:
    result = await api.infer("simple", {"INPUT0": A, "INPUT1": B}, model_version="1")
    equal(api.fields(result)["model_version"], "1")


@case
async def requested_outputs(api: Api) -> None:
    options = {"outputs": [api.output("OUTPUT1")]}
    result = await api.infer("simple", {"INPUT0": A, "INPUT1": B}, **options)
    equal([each["name"] for each in api.fields(result)["outputs"]], ["OUTPUT1"])
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)


@case
async def requested_outputs_in_their_order(api: Api) -> None:
    options = {"outputs": [api.output("OUTPUT1"), api.output("OUTPUT0")]}
    result = await api.infer("simple", {"INPUT0": A, "INPUT1": B}, **options)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)


@case.of(NUMPY)
async def datatype(api: Api, name: str) -> None:
    array = np.arange(12).reshape(3, 4).astype(NUMPY[name])
    result = await api.infer(f"identity_{name.lower()}", {"x": array})
    found = result.as_numpy("y")
    equal(api.fields(result)["outputs"][0]["datatype"], name)
    equal(found.dtype, array.dtype)
    np.testing.assert_array_equal(found, array)


@case.of(["FP32", "FP64", "FP16"])
async def special_values(api: Api, name: str) -> None:
    array = np.array([[np.nan, np.inf, -np.inf, -0.0]], NUMPY[name])
    found = (await api.infer(f"identity_{name.lower()}", {"x": array})).as_numpy("y")
    equal(found.tobytes(), array.tobytes())


@case
async def texts(api: Api) -> None:
    array = np.array([["", "one"], ["grüße", "日本"]], object)
    found = (await api.infer("identity_bytes", {"x": array})).as_numpy("y")
    equal([[each.decode() for each in row] for row in found], array.tolist())


@case
async def bytes_that_are_texts(api: Api) -> None:
    array = np.array([[b"a", b"bc"], [b"", b"d" * 1000]], object)
    found = (await api.infer("identity_bytes", {"x": array})).as_numpy("y")
    equal(found.tolist(), array.tolist())


@case
async def fixed_width_texts(api: Api) -> None:
    array = np.array([["ab", "c"]], "S2")
    found = (await api.infer("identity_bytes", {"x": array})).as_numpy("y")
    equal(found.tolist(), [[b"ab", b"c"]])


@case
async def large_tensor(api: Api) -> None:
    array = np.arange(1 << 20, dtype=np.float32).reshape(1, -1)
    found = (await api.infer("identity_fp32", {"x": array})).as_numpy("y")
    np.testing.assert_array_equal(found, array)


@case
async def array_that_is_not_contiguous(api: Api) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    found = (await api.infer("identity_fp32", {"x": array})).as_numpy("y")
    np.testing.assert_array_equal(found, array)


@case
async def classification(api: Api) -> None:
    x = np.array([[0.0, 2.0, 1.0, 9.0], [3.0, 0.0, 0.0, 0.0]], np.float32)
    options = {"outputs": [api.output("scores", class_count=2)]}
    found = (await api.infer("classifier", {"x": x}, **options)).as_numpy("scores")
    equal(found.shape, (2, 2))
    for row, labels in zip(found, (["1:dog", "2:eel"], ["0:cat", "1:dog"])):
        for each, label in zip(row, labels):
            score, _, rest = each.decode().partition(":")
            assert 0 < float(score) < 1, each
            equal(rest, label)


@case
async def priority_and_timeout(api: Api) -> None:
    for options in (
        {"priority": 1},
        {"timeout": 30_000_000},
        {"priority": 2, "timeout": 60_000_000},
    ):
        result = await api.infer("simple", {"INPUT0": A, "INPUT1": B}, **options)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)


@case
async def parameters_of_its_own(api: Api) -> None:
    options = {"parameters": {"text": "a", "number": 7, "flag": True}}
    result = await api.infer("simple", {"INPUT0": A, "INPUT1": B}, **options)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), A + B)


@case.of(["number", "text"])
async def sequence(api: Api, kind: str) -> None:
    ids = (1001 + api.is_grpc, 1003 + api.is_grpc) if kind == "number" else ("left", "right")
    totals: dict[Any, list[int]] = {each: [] for each in ids}
    for step in range(4):
        for factor, each in enumerate(ids, 1):
            x = np.full((1, 1), (step + 1) * factor, np.int32)
            result = await api.infer(
                "accumulator",
                {"INPUT": x},
                sequence_id=each,
                sequence_start=step == 0,
                sequence_end=step == 3,
            )
            totals[each].append(int(result.as_numpy("OUTPUT")[0, 0]))
    equal(list(totals.values()), [[1, 3, 6, 10], [2, 6, 12, 20]])


@case
async def sequence_without_an_id(api: Api) -> None:
    x = api.input("INPUT", np.ones((1, 1), np.int32))
    error = await api.refused("infer", "accumulator", [x])
    contains(error.message(), "accumulator")
    api.check_status(error, "400", "INVALID_ARGUMENT")


@case
async def concurrent_requests(api: Api) -> None:
    async def one(i: int) -> None:
        a = np.full((1, 16), i, np.int32)
        made = [api.input("INPUT0", a), api.input("INPUT1", B[:1])]
        result = await api.call("infer", "simple", made)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), a + 1)

    await asyncio.gather(*(one(i) for i in range(64)))


@case
async def unknown_model(api: Api) -> None:
    error = await api.refused("infer", "no_such_model", [api.input("INPUT0", A)])
    contains(error.message(), "unknown model", "no_such_model")
    api.check_status(error, "404", "NOT_FOUND")


@case
async def unknown_version(api: Api) -> None:
    made = [api.input("INPUT0", A), api.input("INPUT1", B)]
    error = await api.refused("infer", "simple", made, "99")
    contains(error.message(), "simple")
    api.check_status(error, "404", "NOT_FOUND")


@case
async def wrong_datatype(api: Api) -> None:
    made = [api.input("INPUT0", A.astype(np.float32)), api.input("INPUT1", B)]
    error = await api.refused("infer", "simple", made)
    contains(error.message(), "INPUT0", "simple", "FP32", "INT32")
    api.check_status(error, "400", "INVALID_ARGUMENT")


@case
async def wrong_shape(api: Api) -> None:
    made = [api.input("INPUT0", A[:, :7]), api.input("INPUT1", B)]
    error = await api.refused("infer", "simple", made)
    contains(error.message(), "INPUT0", "simple", "7", "16")
    api.check_status(error, "400", "INVALID_ARGUMENT")


@case
async def wrong_rank(api: Api) -> None:
    made = [api.input("INPUT0", A.reshape(-1)), api.input("INPUT1", B)]
    error = await api.refused("infer", "simple", made)
    contains(error.message(), "INPUT0", "simple")
    api.check_status(error, "400", "INVALID_ARGUMENT")


@case
async def missing_input(api: Api) -> None:
    error = await api.refused("infer", "simple", [api.input("INPUT0", A)])
    contains(error.message(), "simple")
    api.check_status(error, "400", "INVALID_ARGUMENT")


@case
async def unknown_input(api: Api) -> None:
    made = [api.input("INPUT0", A), api.input("INPUT1", B), api.input("INPUT7", B)]
    error = await api.refused("infer", "simple", made)
    contains(error.message(), "INPUT7", "simple")
    api.check_status(error, "400", "INVALID_ARGUMENT")


@case
async def unknown_output(api: Api) -> None:
    made = [api.input("INPUT0", A), api.input("INPUT1", B)]
    error = await api.refused("infer", "simple", made, outputs=[api.output("OUTPUT7")])
    contains(error.message(), "OUTPUT7", "simple")
    api.check_status(error, "400", "INVALID_ARGUMENT")


@case
async def a_good_request_after_bad_ones(api: Api) -> None:
    await infer(api)


@case
async def statistics(api: Api) -> None:
    async def count() -> int:
        found = await api.json("get_inference_statistics", "simple")
        equal(len(found["model_stats"]), 1)
        stats = found["model_stats"][0]
        equal((stats["name"], stats["version"]), ("simple", "1"))
        success = stats["inference_stats"].get("success", {})
        if int(success.get("count", 0)):
            assert int(success["ns"]) > 0, success
        return int(stats.get("inference_count", 0))

    before = await count()
    await api.infer("simple", {"INPUT0": A, "INPUT1": B})
    equal(await count(), before + 2)  # Triton counts rows
    everything = await api.json("get_inference_statistics")
    assert len(everything["model_stats"]) > 10, everything
    error = await api.refused("get_inference_statistics", "no_such_model")
    contains(error.message(), "no_such_model")


async def states(api: Api) -> dict[str, str]:
    found = await api.json("get_model_repository_index")
    models = found["models"] if api.is_grpc else found
    return {each["name"]: each.get("state", "") for each in models}


@case
async def index(api: Api) -> None:
    found = await states(api)
    equal((found["simple"], found["classifier"]), ("READY", "READY"))


@case
async def unload_and_load(api: Api) -> None:
    await api.call("unload_model", "identity_uint16")
    equal(await api.call("is_model_ready", "identity_uint16"), False)
    assert (await states(api)).get("identity_uint16") != "READY"
    x = api.input("x", np.ones((1, 2), np.uint16))
    error = await api.refused("infer", "identity_uint16", [x])
    contains(error.message(), "identity_uint16")
    await api.call("load_model", "identity_uint16")
    equal(await api.call("is_model_ready", "identity_uint16"), True)
    found = await api.call("infer", "identity_uint16", [x])
    equal(found.as_numpy("y").tolist(), [[1, 1]])


@case
async def load_with_a_config(api: Api) -> None:
    config = json.dumps({"max_batch_size": 2, "platform": "onnxruntime_onnx"})
    await api.call("load_model", "identity_int16", config=config)
    found = await api.json("get_model_config", "identity_int16")
    found = found["config"] if api.is_grpc else found
    equal(found["max_batch_size"], 2)
    await api.call("load_model", "identity_int16")


@case
async def load_an_unknown_model(api: Api) -> None:
    error = await api.refused("load_model", "no_such_model")
    contains(error.message(), "no_such_model")


@case
async def trace_and_log_settings(api: Api) -> None:
    found = await api.json("get_trace_settings")
    assert "trace_level" in str(found), found
    found = await api.json("get_log_settings")
    assert "log_verbose_level" in str(found), found


@case
async def update_log_settings(api: Api) -> None:
    found = await api.json("update_log_settings", {"log_verbose_level": 1})
    assert "log_verbose_level" in str(found), found
    await api.json("update_log_settings", {"log_verbose_level": 0})
