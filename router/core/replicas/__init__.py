"""Sibling replicas of the router: the loads that they report, and how a report is written. Other
rooms import from here only."""

from router.core.replicas.peer_loads import (
    SAME_SECONDS,
    STALE_SECONDS,
    PeerBoard,
    PeerLoad,
    SiblingLoad,
    seconds_between_reports,
)
from router.core.replicas.peer_messages import (
    MAX_LINE_BYTES,
    PeerHistory,
    PeerReport,
    decode_message,
    encode_history,
    encode_report,
)

__all__ = [
    "MAX_LINE_BYTES",
    "SAME_SECONDS",
    "STALE_SECONDS",
    "PeerBoard",
    "PeerHistory",
    "PeerLoad",
    "PeerReport",
    "SiblingLoad",
    "decode_message",
    "encode_history",
    "encode_report",
    "seconds_between_reports",
]
