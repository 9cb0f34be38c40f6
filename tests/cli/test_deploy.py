"""onward deploy train: what is printed and written, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Call, is_one_line

IMAGE = ["--image", "team/train:1"]


def test_a_job_is_printed_or_written(call: Call, tmp_path: Path) -> None:
    printed = call("deploy", "train", "--name", "digits", *IMAGE, "train", "m.onnx", "--name", "x")
    job = yaml.safe_load(printed.out)
    assert (job["kind"], job["metadata"]["name"]) == ("TrainJob", "digits")
    assert job["spec"]["trainer"]["args"][-4:] == ["train", "m.onnx", "--name", "x"]
    target = tmp_path / "job.sbatch"
    called = call("deploy", "train", "--to", "slurm", "-o", target, "script.py")
    assert called.out == f"written: {target}; next: sbatch {target}\n"
    assert target.read_text().startswith("#!/bin/bash\n#SBATCH --job-name=onward-train\n")


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["--to", "k8s", "train"], "--to takes kubeflow, ray, slurm, not 'k8s'"),
        (["train"], "a TrainJob runs in containers, and there is no image"),
        ([*IMAGE], "there is no command to launch"),
        ([*IMAGE, "--name", "My_Job", "train"], "'My_Job' is not a name of Kubernetes"),
        ([*IMAGE, "--memory", "much", "train"], "memory must be a size such as 64Gi"),
        ([*IMAGE, "--nodes", "0", "train"], "nodes must be a whole number, at least 1"),
        ([*IMAGE, "--volume", "/scratch", "train"], "is not the name of a PersistentVolumeClaim"),
    ],
)
def test_what_cannot_work_is_one_line(call: Call, typed: list[str], words: str) -> None:
    assert is_one_line(call("deploy", "train", *typed), words)
