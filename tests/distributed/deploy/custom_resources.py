"""The schemas of the custom resources that jobs are written as, and a check against them.

Fields and rules are those of the Go types of Kubeflow Trainer 2.2 and later
(pkg/apis/trainer/v1alpha1) and of KubeRay (ray-operator/apis/ray/v1), and of Kubernetes' own pods,
as far as they are used here. Every object is closed: a name that a resource lacks is an error,
where Kubernetes would drop it silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": str}
COUNT: Schema = {"type": int, "minimum": 0}
FLAG: Schema = {"type": bool}
QUANTITY: Schema = {"type": str, "pattern": r"\d+(\.\d+)?(m|[KMGTPE]i?|k)?"}
LABEL_1123: Schema = {"type": str, "pattern": r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", "longest": 63}
SUBDOMAIN: Schema = {"type": str, "pattern": r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", "longest": 253}


def an_object(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {"type": dict, "properties": properties, "required": required}


def a_list(of: Schema, most: int = 128, key: str | None = None) -> Schema:
    return {"type": list, "items": of, "most": most, "key": key}


def a_map(of: Schema) -> Schema:
    return {"type": dict, "values": of}


# -- Kubernetes -----------------------------------------------------------------------------------

RESOURCES = an_object(requests=a_map(QUANTITY), limits=a_map(QUANTITY), claims=a_list(an_object()))
ENV = a_list(
    an_object(("name",), name={"type": str, "pattern": r"[-._a-zA-Z][-._a-zA-Z0-9]*"}, value=TEXT),
    key="name",
)
VOLUME = an_object(
    ("name",),
    name=LABEL_1123,
    emptyDir=an_object(medium={"type": str, "one_of": ("", "Memory")}, sizeLimit=QUANTITY),
    persistentVolumeClaim=an_object(("claimName",), claimName=SUBDOMAIN, readOnly=FLAG),
)
MOUNT = an_object(
    ("name", "mountPath"),
    name=LABEL_1123,
    mountPath={"type": str, "pattern": r"[^:]+"},
    subPath=TEXT,
    readOnly=FLAG,
)
VOLUMES, MOUNTS = a_list(VOLUME, key="name"), a_list(MOUNT)
CONTAINER = an_object(
    ("name", "image"),
    name=LABEL_1123,
    image={"type": str, "pattern": r"\S+"},
    command=a_list(TEXT),
    args=a_list(TEXT),
    env=ENV,
    resources=RESOURCES,
    volumeMounts=MOUNTS,
)
POD = an_object(
    ("spec",),
    metadata=an_object(labels=a_map(TEXT), annotations=a_map(TEXT)),
    spec=an_object(
        ("containers",),
        containers=a_list(CONTAINER, key="name"),
        volumes=VOLUMES,
        restartPolicy=TEXT,
    ),
)


def metadata(name: Schema) -> Schema:
    return an_object(("name",), name=name, namespace=LABEL_1123, labels=a_map(TEXT))


def constant(value: str) -> Schema:
    return {"type": str, "one_of": (value,)}


# -- TrainJob -------------------------------------------------------------------------------------

WORDS = a_list({"type": str, "longest": 65536})
POD_PATCH = an_object(
    serviceAccountName=TEXT,
    volumes=VOLUMES,
    containers=a_list(
        an_object(("name",), name=TEXT, env=ENV, volumeMounts=MOUNTS), most=64, key="name"
    ),
    nodeSelector=a_map(TEXT),
)
JOB_PATCH = an_object(spec=an_object(template=an_object(spec=POD_PATCH)))
PATCH = an_object(
    ("manager",),
    manager={"type": str, "pattern": r".+", "longest": 253},
    trainingRuntimeSpec=an_object(
        template=an_object(
            spec=an_object(
                replicatedJobs=a_list(
                    an_object(("name",), name=LABEL_1123, template=JOB_PATCH), most=100, key="name"
                )
            )
        )
    ),
)
TRAIN_JOB = an_object(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion=constant("trainer.kubeflow.org/v1alpha1"),
    kind=constant("TrainJob"),
    metadata=metadata({"type": str, "pattern": r"[a-z]([-a-z0-9]*[a-z0-9])?", "longest": 63}),
    spec=an_object(
        ("runtimeRef",),
        runtimeRef=an_object(
            ("name",),
            name={"type": str, "pattern": ".+", "longest": 253},
            apiGroup=TEXT,
            kind={"type": str, "one_of": ("ClusterTrainingRuntime", "TrainingRuntime")},
        ),
        trainer=an_object(
            image={"type": str, "longest": 500},
            command=WORDS,
            args=WORDS,
            env=ENV,
            numNodes=COUNT,
            numProcPerNode=COUNT,
            resourcesPerNode=RESOURCES,
        ),
        runtimePatches=a_list(PATCH, most=16, key="manager"),
        suspend=FLAG,
        activeDeadlineSeconds=COUNT,
        managedBy=TEXT,
    ),
)

# -- RayJob ---------------------------------------------------------------------------------------

GROUP: dict[str, Schema] = {"rayStartParams": a_map(TEXT), "template": POD}
RAY_JOB = an_object(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion=constant("ray.io/v1"),
    kind=constant("RayJob"),
    metadata=metadata({"type": str, "pattern": r"[a-z]([-a-z0-9]*[a-z0-9])?", "longest": 47}),
    spec=an_object(
        activeDeadlineSeconds=COUNT,
        backoffLimit=COUNT,
        entrypoint=TEXT,
        runtimeEnvYAML=TEXT,
        shutdownAfterJobFinishes=FLAG,
        submissionMode={"type": str, "one_of": ("K8sJobMode", "HTTPMode", "InteractiveMode")},
        suspend=FLAG,
        ttlSecondsAfterFinished=COUNT,
        rayClusterSpec=an_object(
            ("headGroupSpec",),
            rayVersion=TEXT,
            enableInTreeAutoscaling=FLAG,
            headGroupSpec=an_object(("rayStartParams", "template"), serviceType=TEXT, **GROUP),
            workerGroupSpecs=a_list(
                an_object(
                    ("groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"),
                    groupName=TEXT,
                    replicas=COUNT,
                    minReplicas=COUNT,
                    maxReplicas=COUNT,
                    numOfHosts=COUNT,
                    **GROUP,
                )
            ),
        ),
    ),
)


def violations(value: Any, schema: Schema, where: str = "") -> Iterator[str]:
    """Where a value breaks a schema."""
    if type(value) is not schema["type"]:
        yield f"{where or '.'} is of type {type(value).__name__}"
        return
    if isinstance(value, dict):
        yield from _of_dict(value, schema, where)
    elif isinstance(value, list):
        keys = [item.get(schema["key"]) for item in value if schema["key"]]
        if len(value) > schema["most"] or len(set(keys)) < len(keys):
            yield f"{where} has too many items, or a key twice"
        for i, item in enumerate(value):
            yield from violations(item, schema["items"], f"{where}[{i}]")
    elif isinstance(value, str):
        good = re.fullmatch(schema.get("pattern", "(?s:.*)"), value) is not None
        good = good and len(value) <= schema.get("longest", len(value))
        if not good or value not in schema.get("one_of", (value,)):
            yield f"{where} is {value!r}"
    elif value < schema.get("minimum", value):
        yield f"{where} is {value}"


def _of_dict(value: dict[str, Any], schema: Schema, where: str) -> Iterator[str]:
    properties: dict[str, Schema] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{where}.{name} is missing"
    for name, item in value.items():
        of = schema.get("values") or properties.get(name)
        if of is None:
            yield f"{where}.{name} does not exist"
        else:
            yield from violations(item, of, f"{where}.{name}")
