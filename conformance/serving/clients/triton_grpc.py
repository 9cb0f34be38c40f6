"""tritonclient.grpc, the client with threads."""

import asyncio

import tritonclient.grpc as module
from cases import addresses, exit_with
from triton_common import Api, case

_, grpc = addresses()
with module.InferenceServerClient(grpc) as client:
    passed = asyncio.run(case.run(Api(client, module)))
exit_with(passed)
