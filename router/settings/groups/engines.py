"""Which engines there are: named, or found by a discovery source."""

from typing import Literal

from pydantic import Field

from router.settings.engine_values import DnsNames, EnginesFile, Namespace, PodPorts, Selector, Urls
from router.settings.groups.group import LIVE, Group
from router.settings.values import ExistingFile, Networks, Seconds

__all__ = ["Engines"]


class Engines(Group):
    """The engines, and where they are found."""

    prefill: Urls = Field(
        (),
        description="Prefill engine URL; repeat the flag or give a comma list. Without one every "
        "request goes straight to a decode engine: a plain pool of whole engines.",
        json_schema_extra=LIVE,
    )
    decode: Urls = Field(
        (),
        description="Decode engine URL; repeat the flag or give a comma list. At least one, unless "
        "engines are discovered.",
        json_schema_extra=LIVE,
    )
    data_parallel_ranks: Literal["auto", "off"] = Field(
        "auto",
        description="auto: each data-parallel rank of an engine (vLLM's --data-parallel-size) is "
        "an endpoint of its own, found by its /metrics and asked by X-data-parallel-rank (vLLM "
        "0.13 or newer; not with LMCache). off: the engine divides requests among its ranks.",
    )
    engines_file: EnginesFile | None = Field(
        None,
        description='JSON file that lists engines, as {"prefill": [URL], "decode": [URL]}; it is '
        "checked every second, and its engines join and leave while the router runs.",
    )
    engine_networks: Networks = Field(
        (),
        description="Networks (10.0.0.0/8, fd00::/8) to which engines from --engines-file, "
        "discovery and the admin API are restricted. They must be given by address, because a "
        "name may come to mean another one. Repeat the flag or give a comma list; default: "
        "anywhere. Not for --prefill and --decode.",
    )
    engine_leave_timeout: Seconds = Field(
        600.0,
        description="Seconds after which a removed engine is forgotten although it still has "
        "requests; they continue. The default is how long an answer may take to begin.",
    )
    k8s_prefill_selector: Selector | None = Field(
        None,
        description="Kubernetes: label selector of the prefill engines' pods, as app=vllm,"
        "role=prefill. docs/discovery.md says what happens when pods come and go.",
    )
    k8s_decode_selector: Selector | None = Field(
        None, description="Kubernetes: label selector of the decode engines' pods."
    )
    k8s_namespace: Namespace | None = Field(
        None,
        description="Kubernetes: the engines' namespace; default: that of the router's pod, or of "
        "the kubeconfig file.",
    )
    k8s_port: PodPorts = Field(
        (8000,),
        description="Kubernetes: the port on which engines listen, a number or the name of a "
        "container's port; with several each is an engine of its own.",
    )
    k8s_config_file: ExistingFile | None = Field(
        None,
        description="Kubernetes: a kubeconfig file; default: the ServiceAccount of the router's "
        "pod, or where there is none the file that kubectl uses.",
    )
    dns_prefill: DnsNames = Field(
        (),
        description="DNS name of the prefill engines: host:port, each address being an engine, or "
        "_http._tcp.host for SRV records; repeat the flag or give a comma list.",
    )
    dns_decode: DnsNames = Field((), description="DNS name of the decode engines, likewise.")

    @property
    def names_prefill(self) -> bool:
        """Whether there should be prefill engines. What an engines file or an operator names is not
        known here."""
        return bool(self.prefill or self.k8s_prefill_selector is not None or self.dns_prefill)

    @property
    def discovers(self) -> bool:
        """Whether engines come and go by a source that is watched."""
        sources = (self.engines_file, self.k8s_decode_selector)
        return any(each is not None for each in sources) or bool(self.dns_decode)
