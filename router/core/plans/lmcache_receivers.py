"""The address at which a decode engine's LMCache receives KV caches (LMCache's `disagg_spec`).

A prefill engine pushes to the ports of its own tensor-parallel rank, so both lists of ports have
one entry per rank. router/settings/checks.py validates them at start-up.
"""

from typing import Any, NamedTuple

__all__ = ["Receiver"]


class Receiver(NamedTuple):
    """The address of a decode engine for KV caches."""

    host: str
    init_ports: tuple[int, ...]
    alloc_ports: tuple[int, ...]

    @property
    def ranks(self) -> int:
        """Number of tensor-parallel ranks; each rank of the prefill engine reports its part as
        sent."""
        return len(self.init_ports)

    def spec(self, transfer_id: str) -> dict[str, Any]:
        """LMCache's `disagg_spec` for one transfer."""
        return {
            "req_id": transfer_id,
            "receiver_host": self.host,
            "receiver_init_port": self.init_ports,
            "receiver_alloc_port": self.alloc_ports,
        }
