"""What engines announce of their prefix caches (vLLM's KV-cache events), and what follows for a
prompt. Other packages import from here only.

A message is put in order (`ordering`), taken apart (`batches`, `parsing`) and applied to the blocks
of its source (`kv_sources`, `source_blocks`), all of which one index knows (`block_index`). Events
refer to token ids: `lookups` finds those of a prompt, and asks the index which engines hold them.
"""

from router.core.kv_events.block_index import BlockIndex
from router.core.kv_events.kv_sources import EngineCache, KVSource, SourceState
from router.core.kv_events.lookups import (
    CacheEvents,
    Lookup,
    PromptFeedback,
    cached_tokens,
    given_ids,
)
from router.core.kv_events.ordering import Apply, Clear, Step
from router.core.kv_events.parsing import BadBatch

__all__ = [
    "Apply",
    "BadBatch",
    "BlockIndex",
    "CacheEvents",
    "Clear",
    "EngineCache",
    "KVSource",
    "Lookup",
    "PromptFeedback",
    "SourceState",
    "Step",
    "cached_tokens",
    "given_ids",
]
