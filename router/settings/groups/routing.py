"""How a request is routed: direct or remote prefill, and to which engine."""

from typing import Literal

from pydantic import Field

from router.settings.engine_values import KVEventSources, LimitByEngine
from router.settings.groups.group import LIVE, Group
from router.settings.values import ALL, Impact, Strategy, Threshold

__all__ = ["Routing"]


class Routing(Group):
    """The threshold, the strategies and what they know of the engines."""

    routing_threshold: Threshold = Field(
        "auto",
        description="auto: each prompt takes the mode, direct or remote prefill, in which its "
        "first token is expected sooner, by the speed and load of both engines and the cost of "
        "transfers. A number: requests of at least this many estimated input tokens are prefilled "
        "remotely; 0 means always, which keeps prompts from delaying streams and makes short "
        "ones wait for a transfer.",
        json_schema_extra=LIVE,
    )
    max_itl_impact: Impact = Field(
        2.0,
        description="With --routing-threshold auto: by how much, as a share, prompts that a decode "
        "engine computes itself may lengthen the gaps between its streams' tokens; 1 is twice as "
        "long. Beyond it prompts are prefilled remotely even if that takes longer. The default "
        "bounds what streams lose when prefill engines are overloaded.",
        json_schema_extra=LIVE,
    )
    threshold_on: Literal["prompt", "uncached"] = Field(
        "prompt",
        description="What the threshold is compared with: the whole prompt, or the part of it that "
        "the chosen decode engine would have to compute because its prefix cache does not hold it "
        "(uncached; not with --prefix-cache off).",
        json_schema_extra=LIVE,
    )
    load_balancing_strategy: Strategy = Field(
        "shortest_expected_delay",
        description="How engines are chosen: shortest_expected_delay, which knows how fast each "
        "engine really is, least_loaded or round_robin.",
        json_schema_extra=LIVE,
    )
    prefill_load_balancing_strategy: Strategy | None = Field(
        None,
        description="The strategy for prefill engines, if it differs.",
        json_schema_extra=LIVE,
    )
    decode_load_balancing_strategy: Strategy | None = Field(
        None,
        description="The strategy for decode engines, if it differs.",
        json_schema_extra=LIVE,
    )
    prefix_cache: Literal["off", "history", "events"] = Field(
        "history",
        description="How shortest_expected_delay learns which prompt tokens are in an engine's "
        "prefix cache and need not be computed again: history (what this router sent where), "
        "events (what the engines announce; history for those that announce nothing), or off. "
        "With --kv-events it is events by default.",
    )
    kv_events: KVEventSources = Field(
        None,
        description="Where engines publish their KV-cache events (vLLM's --kv-events-config); "
        "--prefix-cache is events then. JSON (or @FILE) from engine URL to endpoint "
        "(tcp://host:5557), replay_endpoint and topic, or to a list of these for data-parallel "
        "ranks; auto: each engine is asked at /kv_event_sources, as with --prefix-cache events "
        "alone.",
    )
    engine_max_num_seqs: LimitByEngine = Field(
        {},
        description="Sequences that a decode engine runs concurrently, vLLM's --max-num-seqs: a "
        "number for all, or JSON (or @FILE) from decode URL (or *) to number. By default it is "
        "learned while requests queue; an engine's KV cache may hold fewer.",
    )

    def max_num_seqs(self, url: str) -> int | None:
        """What the operator says that a decode engine runs side by side; None: learn it."""
        stated = self.engine_max_num_seqs
        return stated.get(url, stated.get(ALL))
