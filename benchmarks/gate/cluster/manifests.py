"""The gate's overlay, fitted to one run: its namespace, node, engines and thresholds. Pure."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.gate.cluster.kubectl import ClusterTrouble

Object = dict[str, Any]

CLUSTER_WIDE = frozenset({"Namespace"})


@dataclass(frozen=True, slots=True)
class Fitted:
    """The objects of a run. The Job is applied when the engines are ready."""

    objects: tuple[Object, ...]
    job: Object
    engines: int


@dataclass(frozen=True, slots=True)
class Run:
    """What is fitted in. `options`: flags of the Job's pd-bench validate, with their values; None
    takes a flag away."""

    namespace: str
    node: str
    gpus: int
    options: Mapping[str, str | None]


def only(objects: Iterable[Object], kind: str) -> Object:
    """The one object of a kind. Raises ClusterTrouble."""
    found = [each for each in objects if each["kind"] == kind]
    if len(found) != 1:
        raise ClusterTrouble(f"the overlay has {len(found)} objects of kind {kind}, not one")
    return found[0]


def tensor_parallel_size(objects: Iterable[Object]) -> int:
    """GPUs per engine of the overlay."""
    for each in objects:
        if each["kind"] == "ConfigMap" and "TENSOR_PARALLEL_SIZE" in each["data"]:
            return int(each["data"]["TENSOR_PARALLEL_SIZE"])
    raise ClusterTrouble("the overlay has no ConfigMap with TENSOR_PARALLEL_SIZE")


def fitted(rendered: Iterable[Object], run: Run) -> Fitted:
    """The overlay's objects for this run. Raises ClusterTrouble."""
    objects = copy.deepcopy(list(rendered))
    size = tensor_parallel_size(objects)
    engines, rest = divmod(run.gpus, size)
    if rest:
        raise ClusterTrouble(
            f"--gpus {run.gpus} is no multiple of the {size} GPUs of an engine "
            "(TENSOR_PARALLEL_SIZE)"
        )
    for each in objects:
        _put_into(each, run.namespace)
    pool = only(objects, "StatefulSet")
    pool["spec"]["replicas"] = engines
    pod = pool["spec"]["template"]["spec"]
    pod["nodeSelector"] = {**pod.get("nodeSelector", {}), "kubernetes.io/hostname": run.node}
    job = only(objects, "Job")
    [container] = job["spec"]["template"]["spec"]["containers"]
    counts = {"--gpus": str(run.gpus), "--workers-expected": str(engines)}
    container["args"] = _with_options(container["args"], {**counts, **run.options})
    return Fitted(tuple(each for each in objects if each is not job), job, engines)


def _put_into(each: Object, namespace: str) -> None:
    if each["kind"] in CLUSTER_WIDE:
        each["metadata"]["name"] = namespace
        return
    each["metadata"]["namespace"] = namespace
    for subject in each.get("subjects", ()):
        subject["namespace"] = namespace


def _with_options(arguments: Iterable[str], options: Mapping[str, str | None]) -> list[str]:
    """The command line, with these options in place of its own of the same names."""
    kept = [each for each in arguments if each.partition("=")[0] not in options]
    given = (f"{name}={value}" for name, value in options.items() if value is not None)
    return [*kept, *given]
