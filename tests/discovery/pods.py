"""Pods as the API server writes them: the shape of `kubectl get pod -o json` for a vLLM engine."""

from typing import Any

from router.discovery.pods import Pod, read_pod

Object = dict[str, Any]


def pod(
    name: str = "decode-0",
    *,
    uid: str | None = None,
    version: int = 100,
    ip: str | None = "10.0.0.1",
    role: str = "decode",
    ready: bool = True,
    started: bool = True,
    leaving: bool = False,
    phase: str = "Running",
    created: str = "2026-11-22T10:00:00Z",
    annotations: dict[str, str] | None = None,
    ports: tuple[tuple[str, int], ...] = (("http", 8000),),
    host_network: bool = False,
) -> Object:
    """A pod. One that is evicted has the phase Failed and no address."""
    condition = "True" if ready else "False"
    status: Object = {
        "phase": phase,
        "conditions": [
            {"type": "PodReadyToStartContainers", "status": "True", "lastProbeTime": None},
            {"type": "Initialized", "status": "True", "lastProbeTime": None},
            {"type": "Ready", "status": condition, "lastProbeTime": None},
            {"type": "ContainersReady", "status": condition, "lastProbeTime": None},
            {"type": "PodScheduled", "status": "True", "lastProbeTime": None},
        ],
        "hostIP": "192.168.1.7",
        "hostIPs": [{"ip": "192.168.1.7"}],
        "startTime": created,
        "containerStatuses": [
            {
                "name": "vllm",
                "state": {"running": {"startedAt": created}},
                "ready": ready,
                "started": started,
                "restartCount": 0,
                "image": "vllm/vllm-openai:v0.32.0",
            }
        ],
        "qosClass": "Burstable",
    }
    if ip is not None:
        status |= {"podIP": ip, "podIPs": [{"ip": ip}]}
    metadata: Object = {
        "name": name,
        "namespace": "default",
        "uid": uid or f"uid-of-{name}",
        "resourceVersion": str(version),
        "creationTimestamp": created,
        "labels": {"app.kubernetes.io/name": "vllm", "role": role},
        "managedFields": [{"manager": "kubelet", "operation": "Update", "subresource": "status"}],
    }
    if annotations is not None:
        metadata["annotations"] = annotations
    if leaving:
        metadata |= {"deletionTimestamp": "2026-11-22T11:00:00Z", "deletionGracePeriodSeconds": 90}
    spec: Object = {
        "containers": [
            {
                "name": "vllm",
                "image": "vllm/vllm-openai:v0.32.0",
                "ports": [
                    {"name": each, "containerPort": number, "protocol": "TCP"}
                    for each, number in ports
                ],
            }
        ],
        "nodeName": "gpu-7",
    }
    if host_network:
        spec["hostNetwork"] = True
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": metadata,
        "spec": spec,
        "status": status,
    }


def read(name: str = "decode-0", **given: Any) -> Pod:
    """The same, as the router reads it."""
    return read_pod(pod(name, **given))
