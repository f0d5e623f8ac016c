"""What an lmcache plan asks of engines, and how its dialogues begin."""

from typing import Any

import orjson

from router.core.plans.lmcache import lmcache
from router.core.plans.splices import FirstToken, PrefillSplice
from router.core.plans.steps import Call, Lease, Plan, Release, Stream
from router.core.request_facts import Facts
from router.core.values import Endpoint, Receiver, Reply, Role
from tests.core.fixtures import CHAT, COMPLETIONS, D0, D1, KEPT, P0, read, reply
from tests.core.plans.conversation import Conversation, Converse

RECEIVERS = {
    D0: Receiver("d0-kv", (7300, 7301), (7400, 7401)),
    D1: Receiver("d1-kv", (7300,), (7400,)),
}

TEXT = read(
    COMPLETIONS,
    b'{ "model":"tiny", "prompt":"Hello", "max_tokens":8, "min_tokens":3,"stream":true}',
)
IDS = read(COMPLETIONS, b'{ "prompt":[5,6,7], "temperature":0, "add_special_tokens":true }')
TALK = read(CHAT, b'{ "messages":[{"role":"user","content":"Hi"}], "max_tokens":9, "stream":true }')

TOKENS = reply(200, b'{"count":3,"max_model_len":4096,"tokens":[5,6,7],"token_strs":null}')


def plan(facts: Facts, *, notify: bool = False) -> Plan:
    """The plan, with the transfers t1, t2, ..."""
    numbers = iter(range(1, 9))
    return lmcache(facts, RECEIVERS, lambda: f"t{next(numbers)}", notify=notify)


def spec(transfer_id: str, host: str = "d0-kv", ranks: int = 2) -> str:
    """The disagg_spec of a transfer."""
    init, alloc = list(range(7300, 7300 + ranks)), list(range(7400, 7400 + ranks))
    return (
        f'{{"req_id":"{transfer_id}","receiver_host":"{host}","receiver_init_port":{init},'
        f'"receiver_alloc_port":{alloc}}}'
    ).replace(", ", ",")


def tokenizes(endpoint: Endpoint) -> Call:
    return Call(endpoint, "/tokenize", b'{"model":"tiny","prompt":"Hello"}', is_prefill=False)


def prefills_text(endpoint: Endpoint, transfer_id: str = "t1") -> Call:
    """One token of TEXT's answer, sampled as its client asked."""
    body = (
        '{"model":"tiny","prompt":[5,6,7],"max_tokens":1,"stream":false,"min_tokens":1,'
        f'"kv_transfer_params":{{"ret_first_tok":true,"disagg_spec":{spec(transfer_id)}}}}}'
    )
    return Call(endpoint, COMPLETIONS, body.encode())


def prefills_ids(endpoint: Endpoint, transfer_id: str = "t1") -> Call:
    body = (
        '{"prompt":[5,6,7],"temperature":0,"max_tokens":1,"stream":false,'
        f'"kv_transfer_params":{{"ret_first_tok":true,"disagg_spec":{spec(transfer_id)}}}}}'
    )
    return Call(endpoint, COMPLETIONS, body.encode())


def prefills_talk(endpoint: Endpoint, transfer_id: str = "t1") -> Call:
    """TALK's own request for one token of any kind."""
    body = (
        '{"messages":[{"role":"user","content":"Hi"}],"max_tokens":1,"stream":false,'
        f'"ignore_eos":true,"kv_transfer_params":{{"disagg_spec":{spec(transfer_id)}}}}}'
    )
    return Call(endpoint, CHAT, body.encode())


SPLICED = KEPT | frozenset(range(400, 500))
UNKNOWN = PrefillSplice(None)
"""The prefill engine does not state how much of the prompt was cached."""


def decodes_text(endpoint: Endpoint, token: int = 212, text: str = "X") -> Stream:
    body = (
        b'{"model":"tiny","prompt":[5,6,7,%d],"max_tokens":7,"min_tokens":2,"stream":true}' % token
    )
    return Stream(endpoint, COMPLETIONS, body, SPLICED, hold=True, splice=FirstToken(text, UNKNOWN))


def decodes_ids(endpoint: Endpoint) -> Stream:
    body = b'{"prompt":[5,6,7,212],"temperature":0,"max_tokens":15}'
    return Stream(endpoint, COMPLETIONS, body, SPLICED, hold=True, splice=FirstToken("X", UNKNOWN))


def decodes_own(facts: Facts, endpoint: Endpoint) -> Stream:
    """The client's own request, to the decode engine that has the KV cache."""
    return Stream(endpoint, facts.path, facts.raw, KEPT, hold=True, splice=UNKNOWN)


def computes(facts: Facts, endpoint: Endpoint) -> Stream:
    """The client's own request, to an engine that need not have anything."""
    return Stream(endpoint, facts.path, facts.raw, KEPT)


def sampled(
    token: object = 212, text: object = "X", finish: object = "length", **more: Any
) -> Reply:
    """A prefill engine's reply."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    document = {
        "id": "cmpl-p",
        "object": "text_completion",
        "created": 1,
        "model": "tiny",
        "choices": [choice],
        "usage": {"prompt_tokens": 3, "total_tokens": 4, "completion_tokens": 1},
        "kv_transfer_params": {"first_tok": token},
    }
    return reply(200, orjson.dumps(document | more))


def prefilled(
    converse: Converse, answer: Reply, facts: Facts = IDS, *, notify: bool = False
) -> Conversation:
    """A conversation up to the prefill's reply, for a prompt that needs no tokenising."""
    talk = converse(plan(facts, notify=notify)) << Lease(Role.DECODE, computes=False) >> D0
    talk = talk << Lease(Role.PREFILL) >> P0
    asked = talk._said  # the dialogue under test begins after it
    assert isinstance(asked, Call)
    return talk << asked >> answer << Release(P0)
