"""tritonclient.http, the client with threads."""

import asyncio

import tritonclient.http as module
from cases import addresses, exit_with
from triton_common import Api, case

http, _ = addresses()
with module.InferenceServerClient(http, concurrency=8) as client:
    passed = asyncio.run(case.run(Api(client, module)))
exit_with(passed)
