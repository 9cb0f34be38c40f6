"""A custom runtime of MLServer for ONNX, as its documentation tells users to write one."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from peer_model import CORES, PeerModel


class OnnxRuntime(MLModel):
    async def load(self) -> bool:
        self._case = os.environ["PEER_CASE"]
        threads = 1 if self._case == "mlp" else CORES
        self._model = PeerModel(self._case, os.environ["PEER_MODEL"], threads)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        feeds = {each.name: NumpyCodec.decode_input(each) for each in payload.inputs}
        if self._case == "mlp":
            found = self._model._run(feeds)
        else:
            found = await asyncio.to_thread(self._model._run, feeds)
        output: Any = NumpyCodec.encode_output("output", found)
        return InferenceResponse(model_name=self.name, outputs=[output])
