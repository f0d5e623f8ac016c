"""Names for finding engines: label selectors, ports of pods, DNS names."""

import re
from typing import NamedTuple

__all__ = ["DnsName", "dns_name", "label_selector", "pod_port"]

_KEY = r"([a-z0-9.-]+/)?[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?"
_VALUE = r"([A-Za-z0-9]([\w.-]*[A-Za-z0-9])?)?"
_REQUIREMENT = re.compile(
    rf"{_KEY}\s*(=|==|!=)\s*{_VALUE}|!?{_KEY}"
    rf"|{_KEY}\s+(in|notin)\s*\(\s*{_VALUE}(\s*,\s*{_VALUE})*\s*\)",
    re.ASCII,
)

# A port name contains a letter, which distinguishes it from a number.
_PORT_NAME = re.compile(r"(?=[^a-z]*[a-z])[a-z0-9-]{1,15}")

_LABEL = r"[A-Za-z0-9_]([\w-]{0,61}[A-Za-z0-9])?"
_SRV = re.compile(rf"_[\w-]+\._(tcp|udp)(\.{_LABEL})+\.?", re.ASCII)
_HOST = re.compile(rf"(?!_){_LABEL}(\.{_LABEL})*\.?", re.ASCII)

MAX_PORT = 65535


def label_selector(text: str) -> str:
    """Validate a label selector in kubectl's format. An empty one, which selects all pods, is
    invalid. Raises ValueError."""
    parts = [part.strip() for part in re.split(r",(?![^(]*\))", text)]
    if wrong := [part for part in parts if not _REQUIREMENT.fullmatch(part)]:
        raise ValueError(f"must be a label selector like app=vllm,role=decode, got {wrong[0]!r}")
    return ",".join(parts)


def pod_port(port: object) -> int | str:
    """A port of a pod by number or name. Raises ValueError."""
    if isinstance(port, str) and _PORT_NAME.fullmatch(port):
        return port
    if re.fullmatch("[0-9]{1,5}", str(port)) and 1 <= int(str(port)) <= MAX_PORT:
        return int(str(port))
    raise ValueError(f"must be a port's number or name, got {port!r}")


class DnsName(NamedTuple):
    """A name that resolves to engines: by addresses, all with this port, or without a port by SRV
    records."""

    host: str
    port: int | None


def dns_name(text: str) -> DnsName:
    """Parse `host:port` or `_service._tcp.host`. Raises ValueError."""
    if _SRV.fullmatch(text):
        return DnsName(text.lower(), None)
    host, _, port = text.rpartition(":")
    if not _HOST.fullmatch(host) or not re.fullmatch("[0-9]{1,5}", port):
        raise ValueError(f"must be like host:8000 or _http._tcp.host, got {text!r}")
    if not 1 <= int(port) <= MAX_PORT:
        raise ValueError(f"{text!r} has no valid port")
    return DnsName(host.lower(), int(port))
