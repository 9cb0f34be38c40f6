"""tritonclient.grpc.aio."""

import asyncio

import tritonclient.grpc as module
import tritonclient.grpc.aio as aio
from cases import addresses, exit_with
from triton_common import Api, case


async def main() -> bool:
    _, grpc = addresses()
    async with aio.InferenceServerClient(grpc) as client:
        return await case.run(Api(client, module))


exit_with(asyncio.run(main()))
