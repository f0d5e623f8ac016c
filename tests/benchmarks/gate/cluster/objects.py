"""Nodes and pods as an API server sends them, as far as the gate reads them."""

from typing import Any

Object = dict[str, Any]


def node(name: str, gpus: int | None = 8, *, cordoned: bool = False, ready: bool = True) -> Object:
    """A node; None: without GPUs."""
    allocatable = {"cpu": "192"} | ({} if gpus is None else {"nvidia.com/gpu": str(gpus)})
    return {
        "metadata": {"name": name},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
        },
    }


def pod(
    name: str,
    node: str | None,
    *gpus: int,
    before: tuple[int, ...] = (),
    phase: str = "Running",
    namespace: str = "team",
) -> Object:
    """A pod whose containers have so many GPUs; `before`: its init containers."""
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "containers": [_container(count) for count in gpus or (0,)],
            **({"initContainers": [_container(count) for count in before]} if before else {}),
            **({} if node is None else {"nodeName": node}),
        },
        "status": {"phase": phase},
    }


def _container(gpus: int) -> Object:
    return {"name": "c", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}}


def engine_pod(
    name: str,
    *,
    ready: bool = False,
    waiting: tuple[str, str] | None = None,
    unschedulable: str | None = None,
) -> Object:
    """A pod of the run."""
    conditions = [{"type": "Ready", "status": str(ready)}]
    if unschedulable is not None:
        conditions += [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": unschedulable,
            }
        ]
    state = {} if waiting is None else {"waiting": {"reason": waiting[0], "message": waiting[1]}}
    return {
        "metadata": {"name": name, "namespace": "gate"},
        "spec": {"containers": []},
        "status": {"conditions": conditions, "containerStatuses": [{"state": state}]},
    }


def ended_pod(status: int) -> Object:
    """The gate's, when it has ended."""
    return {
        "metadata": {"name": "gate-x", "namespace": "gate"},
        "status": {"containerStatuses": [{"state": {"terminated": {"exitCode": status}}}]},
    }


def gate_job(over: str | None = None, message: str | None = None) -> Object:
    """The gate's Job; over: "Failed" or "Complete"."""
    told = {} if message is None else {"message": message}
    conditions = [] if over is None else [{"type": over, "status": "True", **told}]
    return {"metadata": {"name": "gate"}, "status": {"active": 1, "conditions": conditions}}
