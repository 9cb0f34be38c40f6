"""What a server of processes imports before it forks (tests/forked_processes.py)."""

from __future__ import annotations

import gc
import logging
import warnings
from importlib import import_module
from importlib.util import find_spec

MODULES = [
    "pytest",
    "onward.providers.ort.training.lowering",
    "onward.runner.train",
    "onward.sessions.training.session",
]
MODULES_WITH_TORCH = [
    "onward.distributed.join_team",
    "onward.distributed.open_distributed",
    "onward.providers.torch.provider",
    "onward.providers.torch.training.executable",
    "onward.pytorch.module",
]

warnings.simplefilter("error")  # as python -W error does: packages put their own filters before it
for name in MODULES:
    import_module(name)
if find_spec("torch"):
    for name in MODULES_WITH_TORCH:
        import_module(name)
    logging.disable(logging.WARNING)  # that torchvision is not installed
    # reading torch's table of operators takes as long as an import
    import_module("onward.pytorch.translate")._registry()
    logging.disable(logging.NOTSET)
gc.freeze()  # else the first collection of each process would copy all pages of these objects
