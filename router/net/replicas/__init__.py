"""Sends reports to sibling replicas of the router, and takes theirs. Other packages import from
here only."""

from router.net.replicas.siblings import Siblings
from router.net.replicas.stream import PEERS_PATH, SendStatus

__all__ = ["PEERS_PATH", "SendStatus", "Siblings"]
