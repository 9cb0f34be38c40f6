"""A process of the run in cut_links.py: sums over the processes, with a checkpoint at each step.

python cut_links_worker.py FOLDER STEPS
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

from onward.distributed.parallel import Parallel
from onward.distributed.process_groups import join_groups
from onward.errors import PeerLost


def main() -> None:
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    group = join_groups(Parallel(timeout=3.0)).whole
    checkpoint = folder / "checkpoint.json"
    # process 0 tells where to continue: the checkpoint may change while the other reads it
    start = json.loads(checkpoint.read_text()) if checkpoint.exists() else [0, 0]
    step, total = group.gather_objects(start)[0]
    while step < steps:
        value = torch.tensor([(group.rank + 1) * (step + 1)])
        group.all_reduce(value).wait()
        step, total = step + 1, total + int(value)
        if group.rank == 0:
            part = checkpoint.with_suffix(".part")
            part.write_text(json.dumps([step, total]))
            os.replace(part, checkpoint)
        time.sleep(0.01)  # so that the cut comes in the middle


if __name__ == "__main__":
    try:
        main()
    except PeerLost as error:
        print("PEER LOST", str(error).splitlines()[0], file=sys.stderr, flush=True)
        os._exit(1)
