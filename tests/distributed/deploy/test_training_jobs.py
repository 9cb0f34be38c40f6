"""Jobs for clusters: they fit the schemas of their resources, and keep the command as it was."""

from __future__ import annotations

import copy
import os
import re
import shlex
import shutil
import string
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from onward.distributed.deploy.kubeflow_job import train_job
from onward.distributed.deploy.ray_job import ray_job
from onward.distributed.deploy.slurm_script import slurm_script
from onward.distributed.deploy.training_job import TrainingJob
from onward.distributed.deploy.yaml_text import to_yaml
from onward.distributed.launchers.launched_command import LaunchedCommand, read_command
from onward.errors import OptionError
from tests.distributed.deploy.custom_resources import RAY_JOB, TRAIN_JOB, violations

ODD = ["a b", "$x $$ ${local_rank} $(HOME)", "it's", '"', "", "*", "-o", "\\", "é", "# no", "x: y"]
COMMAND = read_command(["train", "model.onnx", *ODD])
SMALL = TrainingJob(name="a", command=COMMAND, image="i")
LARGE = TrainingJob(
    name="digits-" + "x" * 39 + "1",
    command=read_command(["pkg.main", "--lr", "0.1"], module=True),
    image="registry.example.org:5000/team/train@sha256:0123",
    nodes=16,
    nproc=8,
    gpus=8,
    cpus=96,
    memory="1024GiB",
    volume="runs.fast:/data/runs",
    max_restarts=10,
    namespace="team-a",
)


@pytest.mark.parametrize("job", [SMALL, LARGE], ids=["small", "large"])
def test_jobs_fit_the_schemas_of_their_resources(job: TrainingJob) -> None:
    assert not list(violations(train_job(job), TRAIN_JOB))
    assert not list(violations(ray_job(job), RAY_JOB))
    assert yaml.safe_load(to_yaml(train_job(job))) == train_job(job)
    assert yaml.safe_load(to_yaml(ray_job(job))) == ray_job(job)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "trainer", "numNodes"), "2"),
        (("spec", "trainer", "numberOfNodes"), 2),
        (("spec", "runtimeRef"), {}),
        (("metadata", "name"), "-a"),
        (("spec", "trainer", "resourcesPerNode", "limits", "memory"), "64GiB"),
        (("spec", "podTemplateOverrides"), []),
        (("spec", "trainer", "env"), [{"name": "A"}, {"name": "A"}]),
    ],
)
def test_the_schema_finds_mistakes(path: tuple[str, ...], value: Any) -> None:
    job = copy.deepcopy(train_job(LARGE))
    part = job
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    assert list(violations(job, TRAIN_JOB))


def test_options_are_where_they_belong() -> None:
    spec = train_job(LARGE)["spec"]
    trainer = spec["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (16, 8)
    assert trainer["resourcesPerNode"]["limits"] == {
        "cpu": "96",
        "memory": "1024Gi",
        "nvidia.com/gpu": "8",
    }
    assert "--max-restarts=10" in trainer["args"] and trainer["args"][-4:] == [
        "-m",
        "pkg.main",
        "--lr",
        "0.1",
    ]
    [patch] = spec["runtimePatches"]
    [node] = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = node["template"]["spec"]["template"]["spec"]
    assert pod["volumes"][1]["persistentVolumeClaim"] == {"claimName": "runs.fast"}
    assert pod["containers"][0]["volumeMounts"][1]["mountPath"] == "/data/runs"
    [workers] = ray_job(LARGE)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == 16
    assert ray_job(LARGE)["metadata"] == {"name": LARGE.name, "namespace": "team-a"}
    assert "nvidia.com/gpu" not in train_job(SMALL)["spec"]["trainer"]["resourcesPerNode"]["limits"]


def test_kubernetes_and_torchrun_leave_the_arguments_as_they_were() -> None:
    """Kubernetes replaces $(NAME) and $$, torchrun $local_rank and $$."""
    args = train_job(SMALL)["spec"]["trainer"]["args"]
    known = {"PET_MASTER_ADDR": "a-node-0-0.a", "PET_MASTER_PORT": "29400", "HOME": "WRONG"}

    def expand(text: str) -> str:
        found = r"\$\$|\$\(([A-Z_]+)\)"
        return re.sub(found, lambda m: "$" if m[0] == "$$" else known[m[1]], text)

    expanded = [expand(word) for word in args]
    assert "--rdzv-endpoint=a-node-0-0.a:29400" in expanded
    words = expanded[expanded.index("-m") + 1 :]
    assert [string.Template(word).safe_substitute(local_rank=3) for word in words] == [
        "onward",
        "train",
        "model.onnx",
        *ODD,
    ]


def test_the_entrypoint_of_ray_has_the_arguments_as_they_were() -> None:
    words = shlex.split(ray_job(SMALL)["spec"]["entrypoint"])
    assert words[:3] == ["onward", "launch", "--ray"]
    assert words[-len(ODD) - 2 :] == ["train", "model.onnx", *ODD]
    large = shlex.split(ray_job(LARGE)["spec"]["entrypoint"])
    assert large[-6:] == ["--gpus", "8", "-m", "pkg.main", "--lr", "0.1"]


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Programs that stand in for those of a Slurm cluster; torchrun prints its arguments."""
    programs = {
        "scontrol": "printf 'node%s\\n' $(seq 1 20000)",
        "srun": 'shift; exec "$@"',
        "apptainer": 'while [ "$1" != torchrun ]; do echo -n "$1 " >> contained; shift; done; "$@"',
        "torchrun": "printf '%s\\0' \"$@\"",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize("job", [SMALL, LARGE], ids=["small", "large"])
def test_the_slurm_script_runs_torchrun_with_the_command(job: TrainingJob, cluster: Path) -> None:
    script = cluster / "job.sbatch"
    script.write_text(slurm_script(job))
    assert subprocess.run(["bash", "-n", script], capture_output=True).stderr == b""
    variables = {"SLURM_JOB_NODELIST": "n", "SLURM_JOB_ID": "12007", "SLURM_JOB_NUM_NODES": "2"}
    done = subprocess.run(
        ["bash", script],
        cwd=cluster,
        env={**variables, "PATH": f"{cluster}:{os.environ['PATH']}"},
        capture_output=True,
        check=True,
        timeout=60,
    )
    words = done.stdout.decode().split("\0")[:-1]
    assert {"--nnodes=2", "--rdzv-endpoint=node1:20007", "--rdzv-id=12007-0"} <= set(words)
    assert words[words.index("-m") :] == job.command.for_torchrun()
    head = script.read_text().split("\nset -euo")[0].splitlines()
    assert head[0] == "#!/bin/bash"
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", line) for line in head[1:] if line)
    contained = (cluster / "contained").read_text().split()
    assert contained[0] == "exec" and contained[-1] == job.image


def test_slurm_without_an_image_uses_what_is_installed() -> None:
    plain = TrainingJob(name="a", command=COMMAND, memory="512M", gpus=2)
    text = slurm_script(plain)
    assert "apptainer" not in text
    assert "#SBATCH --mem=512M" in text and "#SBATCH --gpus-per-node=2" in text
    with pytest.raises(OptionError, match="a RayJob runs in containers, and there is no image"):
        ray_job(plain)


@pytest.mark.parametrize(
    "name", ["", "A", "a_b", "1a", "-a", "a-", "a.b", "a" * 48, "é", "a\n", None, 3]
)
def test_names_that_kubernetes_refuses(name: Any) -> None:
    with pytest.raises(OptionError, match="is not a name of Kubernetes"):
        TrainingJob(name=name, command=COMMAND)
    if name is not None:
        with pytest.raises(OptionError, match="is not a name of Kubernetes"):
            TrainingJob(name="a", command=COMMAND, namespace=name)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"image": "a b"}, "is not the name of an image"),
        ({"image": ""}, "is not the name of an image"),
        ({"memory": "0Gi"}, "memory must be a size such as 64Gi, not '0Gi'"),
        ({"memory": "12"}, "memory must be a size"),
        ({"memory": 12}, "memory must be a size"),
        ({"cpus": 0}, "cpus must be a whole number, at least 1"),
        ({"gpus": -1}, "gpus must be a whole number, at least 0"),
        ({"nproc": True}, "nproc must be a whole number"),
        ({"volume": "a:b"}, "is not a volume"),
        ({"volume": "a b"}, "is not a volume"),
        ({"command": ["train"]}, "command must be of the class LaunchedCommand"),
    ],
)
def test_settings_that_no_cluster_takes(settings: dict[str, Any], message: str) -> None:
    given_all: dict[str, Any] = {"name": "a", "command": COMMAND, **settings}
    with pytest.raises(OptionError, match=message):
        TrainingJob(**given_all)


def test_a_folder_is_no_claim() -> None:
    job = TrainingJob(name="a", command=COMMAND, image="i", volume="/scratch/me:/runs")
    assert job.mount == ("/scratch/me", "/runs") and "/scratch/me:/runs" in slurm_script(job)
    with pytest.raises(OptionError, match="is not the name of a PersistentVolumeClaim"):
        train_job(job)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["yes", "1e3", "0x1f"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, min_size=1, max_size=3))
def test_yaml_reads_what_was_written(value: dict[str, Any]) -> None:
    assert yaml.safe_load(to_yaml(value)) == value


def test_a_command_keeps_its_kind() -> None:
    assert SMALL.command == LaunchedCommand("module", ("onward", "train", "model.onnx", *ODD))
