"""tritonclient.http.aio."""

import asyncio

import tritonclient.http as module
import tritonclient.http.aio as aio
from cases import addresses, exit_with
from triton_common import Api, case


async def main() -> bool:
    http, _ = addresses()
    async with aio.InferenceServerClient(http) as client:
        return await case.run(Api(client, module))


exit_with(asyncio.run(main()))
