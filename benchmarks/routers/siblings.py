"""Several routers of ours that report their requests and prompts to each other."""

from collections.abc import Sequence

from benchmarks.system.ports import free_port

__all__ = ["siblings"]


def siblings(count: int) -> list[Sequence[str]]:
    """The flags of each of so many routers; none for a single one."""
    if count == 1:
        return [()]
    ports = [free_port() for _ in range(count)]
    urls = ",".join(f"http://127.0.0.1:{port}" for port in ports)
    common = ("--peers", urls, "--peer-key", "only-for-replicas")
    return [("--admin-port", str(port), *common) for port in ports]
