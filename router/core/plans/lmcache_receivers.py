"""Where a decode engine's LMCache takes KV caches, as LMCache's `disagg_spec` names it.

A prefill engine pushes the cache to the ports of its own tensor-parallel rank, so both lists hold
one port per rank. What is wrong with them is found in
router/settings/checks.py, before the first request.
"""

from typing import Any, NamedTuple

__all__ = ["Receiver"]


class Receiver(NamedTuple):
    """A decode engine's address for KV caches."""

    host: str
    init_ports: tuple[int, ...]
    alloc_ports: tuple[int, ...]

    @property
    def ranks(self) -> int:
        """Tensor-parallel ranks; each of the prefill engine's reports its part as sent."""
        return len(self.init_ports)

    def spec(self, transfer_id: str) -> dict[str, Any]:
        """LMCache's `disagg_spec` for one transfer."""
        return {
            "req_id": transfer_id,
            "receiver_host": self.host,
            "receiver_init_port": self.init_ports,
            "receiver_alloc_port": self.alloc_ports,
        }
