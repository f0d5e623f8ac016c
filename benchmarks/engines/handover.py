"""`kv_transfer_params` in NIXL's format: made by a prefill engine, checked by a decode engine.

Pure.
"""

from typing import Any

BLOCK_TOKENS = 16


def given(engine: int, prompt_tokens: int) -> dict[str, Any]:
    """What a prefill engine gives to the decode leg (vLLM 0.33, NIXL pull)."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(range(7, 7 + 1 + prompt_tokens // BLOCK_TOKENS))],
        "remote_engine_id": f"bench-prefill-{engine}",
        "remote_request_id": "chatcmpl-1b4e28ba-2fa1-11d2-883f-0016d3cca427-a1b2c3d4",
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "remote_num_tokens": prompt_tokens,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_registration_generation": 0,
        "remote_prefill_cached_tokens": 0,
    }


def intact(params: dict[str, Any]) -> bool:
    """Whether these are parameters that `given` gave, unchanged where a decode engine looks."""
    blocks = params.get("remote_block_ids") or [[]]
    known = str(params.get("remote_engine_id")).startswith("bench-prefill-")
    whole = blocks == [list(range(7, 7 + len(blocks[0])))] and blocks[0] != []
    return known and whole and params.get("do_remote_prefill") is True
