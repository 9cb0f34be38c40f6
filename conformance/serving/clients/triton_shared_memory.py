"""System shared memory of tritonclient, over HTTP and over gRPC."""

import asyncio

import numpy as np
import tritonclient.grpc as grpc_module
import tritonclient.http as http_module
from cases import Cases, addresses, contains, equal, exit_with
from triton_common import NUMPY, A, Api, B
from tritonclient import utils
from tritonclient.utils import shared_memory as shm

case = Cases()


class Region:
    """A region that is registered while the block runs."""

    def __init__(self, api, name, size, offset=0):
        self.api, self.name, self.size, self.offset = api, name, size, offset
        self.key = f"/onward_{name}_{api.module.__name__.split('.')[-1]}"

    async def __aenter__(self):
        self.handle = shm.create_shared_memory_region(self.name, self.key, self.offset + self.size)
        await self.api.call(
            "register_system_shared_memory", self.name, self.key, self.size, offset=self.offset
        )
        return self

    async def __aexit__(self, *_):
        await self.api.call("unregister_system_shared_memory", self.name)
        shm.destroy_shared_memory_region(self.handle)

    def set(self, *arrays):
        shm.set_shared_memory_region(self.handle, arrays, self.offset)


def shared(api, name, datatype, shape, region, size, offset=0):
    made = api.module.InferInput(name, list(shape), datatype)
    made.set_shared_memory(region, size, offset=offset)
    return made


def shared_output(api, name, region, size, offset=0):
    made = api.output(name)
    made.set_shared_memory(region, size, offset=offset)
    return made


async def status(api, *names):
    found = await api.json("get_system_shared_memory_status", *names)
    return found.get("regions", {}) if api.is_grpc else {each["name"]: each for each in found}


@case
async def begin_with_no_regions(api):
    await api.call("unregister_system_shared_memory")
    await api.call("unregister_cuda_shared_memory")
    equal(await status(api), {})


@case
async def inputs_and_outputs(api):
    size = A.nbytes
    async with Region(api, "ins", 2 * size) as ins, Region(api, "outs", 2 * size) as outs:
        ins.set(A, B)
        made = [
            shared(api, "INPUT0", "INT32", A.shape, "ins", size),
            shared(api, "INPUT1", "INT32", A.shape, "ins", size, offset=size),
        ]
        outputs = [
            shared_output(api, "OUTPUT0", "outs", size),
            shared_output(api, "OUTPUT1", "outs", size, offset=size),
        ]
        result = await api.call("infer", "simple", made, outputs=outputs)
        assert result.get_output("OUTPUT0") is not None
        found = shm.get_contents_as_numpy(outs.handle, np.int32, A.shape).copy()
        np.testing.assert_array_equal(found, A + B)
        found = shm.get_contents_as_numpy(outs.handle, np.int32, A.shape, offset=size).copy()
        np.testing.assert_array_equal(found, A - B)


@case
async def mixed_with_the_network(api):
    size = A.nbytes
    async with Region(api, "mixed", size) as region:
        region.set(A)
        made = [shared(api, "INPUT0", "INT32", A.shape, "mixed", size), api.input("INPUT1", B)]
        outputs = [shared_output(api, "OUTPUT0", "mixed", size), api.output("OUTPUT1")]
        result = await api.call("infer", "simple", made, outputs=outputs)
        np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), A - B)
        found = shm.get_contents_as_numpy(region.handle, np.int32, A.shape).copy()
        np.testing.assert_array_equal(found, A + B)


@case
async def region_with_an_offset(api):
    async with Region(api, "offset", 32, offset=64) as region:
        array = np.arange(4, dtype=np.float64).reshape(1, 4)
        region.set(array)
        made = [shared(api, "x", "FP64", (1, 4), "offset", 32)]
        result = await api.call("infer", "identity_fp64", made)
        np.testing.assert_array_equal(result.as_numpy("y"), array)


@case.of(NUMPY)
async def region_of(api, name):
    array = np.array([[0, 1, 1, 1]]).astype(NUMPY[name])
    async with Region(api, f"d_{name}", 64) as region:
        region.set(array)
        made = [shared(api, "x", name, array.shape, region.name, array.nbytes)]
        result = await api.call("infer", f"identity_{name.lower()}", made)
        np.testing.assert_array_equal(result.as_numpy("y"), array)


@case
async def texts(api):
    array = np.array([["a", "long text", ""]], object)
    data = utils.serialize_byte_tensor(array)
    size = utils.serialized_byte_size(data)
    async with Region(api, "texts", size) as ins, Region(api, "texts_out", size) as outs:
        ins.set(data)
        made = [shared(api, "x", "BYTES", array.shape, "texts", size)]
        outputs = [shared_output(api, "y", "texts_out", size)]
        await api.call("infer", "identity_bytes", made, outputs=outputs)
        found = shm.get_contents_as_numpy(outs.handle, np.object_, [1, 3])
        equal([each.decode() for each in found[0]], array[0].tolist())


@case
async def status_of_regions(api):
    async with Region(api, "one", 32, offset=8) as region, Region(api, "two", 16):
        found = await status(api)
        equal(sorted(found), ["one", "two"])
        one = (await status(api, "one"))["one"]
        equal((one["key"], int(one["offset"]), int(one["byte_size"])), (region.key, 8, 32))
    equal(await status(api), {})


@case
async def a_name_that_is_taken(api):
    async with Region(api, "taken", 16) as region:
        error = await api.refused("register_system_shared_memory", "taken", region.key, 16)
        contains(error.message(), "taken", "already")


@case
async def memory_that_is_not_there(api):
    error = await api.refused("register_system_shared_memory", "none", "/onward_no_such_key", 16)
    contains(error.message(), "Unable to open shared memory region", "none")


@case
async def a_region_that_is_too_large(api):
    async with Region(api, "small", 16) as region:
        error = await api.refused("register_system_shared_memory", "big", region.key, 1 << 20)
        contains(error.message(), "big")


@case
async def a_region_that_is_not_registered(api):
    error = await api.refused(
        "infer", "identity_fp32", [shared(api, "x", "FP32", (1, 2), "nowhere", 8)]
    )
    contains(error.message(), "Unable to find shared memory region", "nowhere")


@case
async def an_input_outside_of_its_region(api):
    async with Region(api, "bounds", 16):
        made = [shared(api, "x", "FP32", (1, 4), "bounds", 16, offset=8)]
        error = await api.refused("infer", "identity_fp32", made)
        contains(error.message(), "bounds")


@case
async def an_output_larger_than_its_region(api):
    async with Region(api, "tight", 8):
        made = [api.input("x", np.ones((1, 4), np.float32))]
        outputs = [shared_output(api, "y", "tight", 8)]
        error = await api.refused("infer", "identity_fp32", made, outputs=outputs)
        contains(error.message(), "shared memory size", "'y'", "16")


@case
async def cuda_memory_is_refused_in_words(api):
    equal(await api.json("get_cuda_shared_memory_status"), {} if api.is_grpc else [])
    error = await api.refused("register_cuda_shared_memory", "gpu", b"x" * 64, 0, 64)
    contains(error.message(), "CUDA", "not supported")


async def main():
    http, grpc = addresses()
    passed = True
    for module, address in ((http_module, http), (grpc_module, grpc)):
        if address:
            print(module.__name__, flush=True)
            with module.InferenceServerClient(address) as client:
                passed &= await case.run(Api(client, module))
    return passed


exit_with(asyncio.run(main()))
