"""A Ray cluster of two machines on this one, and a run on it; prints the exit codes.

python ray_cluster.py SCRIPT
"""

from __future__ import annotations

import sys
from typing import Any

from onward.distributed.launchers.ray_nodes import run_on_ray
from onward.errors import DistributedError


def main() -> None:
    import ray
    from ray.cluster_utils import Cluster

    head: dict[str, Any] = {"num_cpus": 1, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address)
    try:
        for words in (["done"], ["fail"]):
            code = run_on_ray([sys.argv[1], *words], nodes=2, nproc=1)
            print(f"CODE {code}", flush=True)
        try:
            run_on_ray([sys.argv[1]], nodes=3, nproc=1, timeout=1.0)
        except DistributedError as error:
            print(f"REFUSED {error}".splitlines()[0], flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
