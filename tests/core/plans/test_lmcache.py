"""The dialogues of the lmcache plan: what each engine is asked, and what becomes of failures."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

from router.core.errors import EngineFailed, EngineTimedOut, NoEngine
from router.core.events import FellBack
from router.core.plans.first_token_splice import FirstToken
from router.core.plans.lmcache import lmcache
from router.core.plans.lmcache_receivers import Receiver
from router.core.plans.steps import AwaitKV, Call, Lease, Plan, Release, Retry, Send, Stream
from router.core.values import Endpoint, Facts, Reply, Role
from tests.core.fixtures import (
    BROKEN,
    CHAT,
    COMPLETIONS,
    D0,
    D1,
    D2,
    MESSAGES,
    P0,
    P1,
    REFUSED,
    RESET,
    RESPONSES,
    SILENT,
    read,
    reply,
    request,
    sample,
)
from tests.core.plans.conversation import END, Conversation, Raises

Converse = Callable[[Plan], Conversation]

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

NO_ENGINE = NoEngine("no such engine")
BUSY = reply(503, sample("queue_full.json"))
LOAD_FAILED = reply(500, b'{"error":{"message":"Internal server error","code":500}}')
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


SPLICED = frozenset({500, 503, *range(400, 500)})


def decodes_text(endpoint: Endpoint, token: int = 212, text: str = "X") -> Stream:
    body = (
        b'{"model":"tiny","prompt":[5,6,7,%d],"max_tokens":7,"min_tokens":2,"stream":true}' % token
    )
    return Stream(endpoint, COMPLETIONS, body, SPLICED, hold=True, splice=FirstToken(text))


def decodes_ids(endpoint: Endpoint) -> Stream:
    body = b'{"prompt":[5,6,7,212],"temperature":0,"max_tokens":15}'
    return Stream(endpoint, COMPLETIONS, body, SPLICED, hold=True, splice=FirstToken("X"))


def decodes_own(facts: Facts, endpoint: Endpoint) -> Stream:
    """The client's own request, to the decode engine that has the KV cache."""
    return Stream(endpoint, facts.path, facts.raw, frozenset({429, 500, 503}), hold=True)


def computes(facts: Facts, endpoint: Endpoint) -> Stream:
    """The client's own request, to an engine that need not have anything."""
    return Stream(endpoint, facts.path, facts.raw, frozenset({429, 503}))


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


# Sharing the answer.


def test_a_text_prompt_is_tokenised_prefilled_and_continued(converse: Converse) -> None:
    (
        converse(plan(TEXT))
        << Lease(Role.DECODE, computes=False)
        >> D0
        << Lease(Role.PREFILL)
        >> P0
        << tokenizes(P0)
        >> TOKENS
        << prefills_text(P0)
        >> sampled()
        << Release(P0)
        << decodes_text(D0)
        >> None
        << END
    )


def test_token_ids_are_not_tokenised_and_absent_max_tokens_are_16(converse: Converse) -> None:
    (
        converse(plan(IDS))
        << Lease(Role.DECODE, computes=False)
        >> D0
        << Lease(Role.PREFILL)
        >> P0
        << prefills_ids(P0)
        >> sampled()
        << Release(P0)
        << decodes_ids(D0)
        >> None
        << END
    )


def test_the_recorded_reply_of_an_lmcache_engine_is_understood(converse: Converse) -> None:
    recorded = (
        b'{"id":"cmpl-af990225c8bca062","object":"text_completion","created":1795235638,"model":'
        b'"tiny","choices":[{"index":0,"text":"\\u0015","logprobs":null,"finish_reason":"length",'
        b'"stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,'
        b'"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-c30e91bf",'
        b'"usage":{"prompt_tokens":6,"total_tokens":7,"completion_tokens":1,'
        b'"prompt_tokens_details":null,"completion_tokens_details":null},'
        b'"kv_transfer_params":{"first_tok":212},"ec_transfer_params":null,"metrics":null}'
    )
    talk = prefilled(converse, reply(200, recorded))
    body = b'{"prompt":[5,6,7,212],"temperature":0,"max_tokens":15}'
    splice = FirstToken("\x15")
    _ = talk << Stream(D0, COMPLETIONS, body, SPLICED, hold=True, splice=splice) >> None << END


def prefilled(
    converse: Converse, answer: Reply, facts: Facts = IDS, *, notify: bool = False
) -> Conversation:
    """A conversation up to the prefill's reply, for a prompt that needs no tokenising."""
    talk = converse(plan(facts, notify=notify)) << Lease(Role.DECODE, computes=False) >> D0
    talk = talk << Lease(Role.PREFILL) >> P0
    asked = talk._said  # the dialogue under test begins after it
    assert isinstance(asked, Call)
    return talk << asked >> answer << Release(P0)


# What does not share its answer.


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_other_apis_keep_their_route_and_body(path: str, converse: Converse) -> None:
    raw = b'{ "messages":[{"role":"user","content":"Hi"}], "input":"Hi", "tools":[{"x":1.50}] }'
    facts = read(path, raw)
    talk = prefilled(converse, sampled(), facts)
    _ = talk << decodes_own(facts, D0) >> None << END


def test_a_chat_gets_its_first_token_from_the_decode_engine(converse: Converse) -> None:
    (
        converse(plan(TALK))
        << Lease(Role.DECODE, computes=False)
        >> D0
        << Lease(Role.PREFILL)
        >> P0
        << prefills_talk(P0)
        >> reply(200, b'{"choices":[],"kv_transfer_params":null}')
        << Release(P0)
        << decodes_own(TALK, D0)
        >> None
        << END
    )


def test_a_large_body_is_sent_in_pieces(converse: Converse) -> None:
    facts = read(CHAT, b'{"messages":[{"role":"user","content":"Hi"}]}')
    facts.lead, facts.raw = (facts.raw[:9],), facts.raw[9:]
    facts.body = {}
    facts.prefill = (b'{"max', b'_tokens":1}')
    talk = converse(plan(facts)) << Lease(Role.DECODE, computes=False) >> D0
    talk = talk << Lease(Role.PREFILL) >> P0
    asked = talk._said
    assert isinstance(asked, Call)
    assert asked.lead == (b'{"max',)
    assert asked.body.startswith(b'_tokens":1,"kv_transfer_params":{"disagg_spec":')
    _ = (
        talk
        << asked
        >> sampled()
        << Release(P0)
        << replace(decodes_own(facts, D0), lead=facts.lead)
        >> None
        << END
    )


def test_completions_with_stop_strings_do_not_share(converse: Converse) -> None:
    facts = request(prompt=[5, 6, 7], stop=["\n"])
    talk = prefilled(converse, sampled(), facts)
    _ = talk << decodes_own(facts, D0) >> None << END


@pytest.mark.parametrize("text", ["", "\ufffd", "ab\ufffd", None, 7])
def test_a_first_token_that_cannot_be_shown_is_left_to_the_decode_engine(
    text: object, converse: Converse
) -> None:
    """An engine whose prompt ends within a character shows the whole prompt with its rest."""
    _ = prefilled(converse, sampled(text=text)) << decodes_own(IDS, D0) >> None << END


@pytest.mark.parametrize(
    "answer",
    [
        sampled(token=None),
        sampled(token="212"),
        sampled(token=True),
        sampled(token=-1),
        sampled(kv_transfer_params=None),
        sampled(kv_transfer_params=[212]),
        sampled(kv_transfer_params={}),
        sampled(choices=[]),
        sampled(choices=[None]),
        sampled(choices=None),
        sampled(finish="abort"),
        sampled(finish=None),
        reply(200, b"[]"),
        reply(200, b'{"choices":'),
        reply(304, b""),
    ],
)
def test_without_a_first_token_the_decode_engine_computes(
    answer: Reply, converse: Converse
) -> None:
    _ = (
        prefilled(converse, answer, notify=True)
        << FellBack(Role.PREFILL, "no_first_tok")
        << Release(D0)
        << Lease(Role.DECODE)
        >> D0
        << computes(IDS, D0)
        >> None
        << END
    )


def test_a_decode_engine_without_a_receiver_computes(converse: Converse) -> None:
    """One that was discovered, and that no registry names."""
    (
        converse(plan(TEXT))
        << Lease(Role.DECODE, computes=False)
        >> D2
        << FellBack(Role.PREFILL, "no_receiver")
        << Release(D2)
        << Lease(Role.DECODE)
        >> D0
        << computes(TEXT, D0)
        >> None
        << END
    )


# Answers that end with their first token.


def test_an_end_of_sequence_is_the_whole_answer(converse: Converse) -> None:
    answer = sampled(text="", finish="stop")
    without = answer.body.replace(b',"kv_transfer_params":{"first_tok":212}', b"")
    assert b"first_tok" not in without
    talk = prefilled(converse, answer, notify=True)
    _ = talk << Send(Reply(200, answer.headers, without)) << END


def test_one_wanted_token_is_the_whole_answer(converse: Converse) -> None:
    facts = request(prompt=[5, 6, 7], max_tokens=1, stream=True)
    stream = (
        b'data: {"id":"cmpl-p","object":"text_completion","created":1,"model":"tiny","choices":'
        b'[{"index":0,"text":"X","logprobs":null,"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
    )
    headers = ((b"content-type", b"text/event-stream; charset=utf-8"),)
    talk = prefilled(converse, sampled(token=None), facts, notify=True)
    _ = talk << Send(Reply(200, headers, stream)) << END


# Notifications.


@pytest.mark.parametrize("facts", [IDS, TALK])
def test_each_rank_is_waited_for_when_engines_notify(facts: Facts, converse: Converse) -> None:
    talk = prefilled(converse, sampled(), facts, notify=True)
    decodes = decodes_ids(D0) if facts is IDS else decodes_own(TALK, D0)
    _ = talk << AwaitKV("t1", 2) >> True << decodes >> None << END


@pytest.mark.parametrize("facts", [IDS, TALK])
def test_a_cache_that_does_not_arrive_is_recorded_and_computed(
    facts: Facts, converse: Converse
) -> None:
    (
        prefilled(converse, sampled(), facts, notify=True)
        << AwaitKV("t1", 2)
        >> False
        << FellBack(Role.PREFILL, "kv_ready_timeout")
        << Release(D0)
        << Lease(Role.DECODE)
        >> D0
        << computes(facts, D0)
        >> None
        << END
    )


def test_a_token_that_cannot_be_shown_is_waited_for_too(converse: Converse) -> None:
    talk = prefilled(converse, sampled(text=""), notify=True)
    _ = talk << AwaitKV("t1", 2) >> True << decodes_own(IDS, D0) >> None << END


# Failures of the prefill leg.


def test_another_prefill_engine_gets_an_id_of_its_own_and_the_same_tokens(
    converse: Converse,
) -> None:
    (
        converse(plan(TEXT, notify=True))
        << Lease(Role.DECODE, computes=False)
        >> D1
        << Lease(Role.PREFILL)
        >> P0
        << tokenizes(P0)
        >> TOKENS
        << Call(P0, COMPLETIONS, _to_d1(prefills_text(P0, "t1")))
        >> RESET
        << Release(P0)
        << FellBack(Role.PREFILL, "reset")
        << Lease(Role.PREFILL, frozenset({P0}))
        >> P1
        << Call(P1, COMPLETIONS, _to_d1(prefills_text(P1, "t2")))
        >> sampled()
        << Release(P1)
        << AwaitKV("t2", 1)
        >> True
        << decodes_text(D1)
        >> None
        << END
    )


def _to_d1(call: Call) -> bytes:
    """The same prefill, into the other decode engine's receiver."""
    transfer_id = "t1" if b'"t1"' in call.body else "t2"
    return call.body.replace(
        spec(transfer_id).encode(), spec(transfer_id, "d1-kv", ranks=1).encode()
    )


@pytest.mark.parametrize("failure", [REFUSED, SILENT, reply(500), reply(503), reply(429)])
def test_an_engine_that_cannot_tokenise_is_passed_over(failure: object, converse: Converse) -> None:
    reason = "refused" if failure is REFUSED else "timeout"
    if isinstance(failure, Reply):
        reason = "status_5xx" if failure.status == 500 else "busy"
    (
        converse(plan(TEXT))
        << Lease(Role.DECODE, computes=False)
        >> D0
        << Lease(Role.PREFILL)
        >> P0
        << tokenizes(P0)
        >> failure
        << Release(P0)
        << FellBack(Role.PREFILL, reason)
        << Lease(Role.PREFILL, frozenset({P0}))
        >> P1
        << tokenizes(P1)
        >> TOKENS
        << prefills_text(P1)
        >> sampled()
        << Release(P1)
        << decodes_text(D0)
        >> None
        << END
    )


@pytest.mark.parametrize(
    "answer",
    [
        reply(404, TOKENS.body),
        reply(200, b"{}"),
        reply(200, b"nothing"),
        reply(200, b'{"tokens":[]}'),
        reply(200, b'{"tokens":[1,true]}'),
        reply(200, b'{"tokens":"567"}'),
    ],
)
def test_where_nothing_tokenises_both_engines_get_the_own_request(
    answer: Reply, converse: Converse
) -> None:
    own = (
        '{"model":"tiny","prompt":"Hello","max_tokens":1,"stream":false,"ignore_eos":true,'
        f'"kv_transfer_params":{{"disagg_spec":{spec("t1")}}}}}'
    )
    (
        converse(plan(TEXT))
        << Lease(Role.DECODE, computes=False)
        >> D0
        << Lease(Role.PREFILL)
        >> P0
        << tokenizes(P0)
        >> answer
        << FellBack(Role.PREFILL, "tokenize_failed")
        << Call(P0, COMPLETIONS, own.encode())
        >> sampled(finish="stop")
        << Release(P0)
        << decodes_own(TEXT, D0)
        >> None
        << END
    )


@pytest.mark.parametrize("facts", [IDS, TALK])
@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_a_4xx_of_the_prefill_engine_is_the_clients(
    status: int, facts: Facts, converse: Converse
) -> None:
    answer = reply(status, b'{"error":{}}')
    _ = prefilled(converse, answer, facts) << Send(answer) << END


@pytest.mark.parametrize("facts", [IDS, TALK])
def test_without_prefill_engines_the_decode_engine_computes(
    facts: Facts, converse: Converse
) -> None:
    (
        converse(plan(facts))
        << Lease(Role.DECODE, computes=False)
        >> D0
        << Lease(Role.PREFILL)
        >> NO_ENGINE
        << FellBack(Role.PREFILL, "no_prefill_engine")
        << Release(D0)
        << Lease(Role.DECODE)
        >> D0
        << computes(facts, D0)
        >> None
        << END
    )


def test_without_decode_engines_there_is_no_answer(converse: Converse) -> None:
    _ = converse(plan(IDS)) << Lease(Role.DECODE, computes=False) >> NO_ENGINE << Raises(NoEngine)


def test_a_body_that_cannot_be_written_anew_is_computed(converse: Converse) -> None:
    deep = b"[" * 300 + b"]" * 300
    facts = read(CHAT, b'{"messages":[],"tools":%b}' % deep)
    (
        converse(plan(facts))
        << Lease(Role.DECODE, computes=False)
        >> D0
        << FellBack(Role.PREFILL, "nested_too_deep")
        << Release(D0)
        << Lease(Role.DECODE)
        >> D0
        << computes(facts, D0)
        >> None
        << END
    )


# Failures of the decode leg.


@pytest.mark.parametrize("status", [400, 404, 422, 499])
def test_a_refused_continuation_is_asked_in_the_clients_own_words(
    status: int, converse: Converse
) -> None:
    """A prompt that fills the context has no place for the first token: 400 to the longer one."""
    (
        prefilled(converse, sampled())
        << decodes_ids(D0)
        >> reply(status)
        << FellBack(Role.DECODE, "splice_refused")
        << computes(IDS, D0)
        >> None
        << END
    )


def test_an_error_event_for_the_own_request_is_the_clients(converse: Converse) -> None:
    refused = reply(400, b'data: {"error":{"code":400}}\n\n')
    _ = (
        prefilled(converse, sampled(), TALK)
        << decodes_own(TALK, D0)
        >> refused
        << Send(refused)
        << END
    )


@pytest.mark.parametrize("facts", [IDS, TALK])
def test_a_failed_load_is_worth_one_more_prefill(facts: Facts, converse: Converse) -> None:
    prefills, decodes = (
        (prefills_ids, decodes_ids(D0)) if facts is IDS else (prefills_talk, decodes_own(TALK, D0))
    )
    (
        prefilled(converse, sampled(), facts)
        << decodes
        >> LOAD_FAILED
        << Retry(Role.DECODE)
        >> True
        << FellBack(Role.DECODE, "kv_load_failed")
        << Lease(Role.PREFILL)
        >> P1
        << prefills(P1, "t2")
        >> sampled()
        << Release(P1)
        << decodes
        >> LOAD_FAILED
        << Retry(Role.DECODE)
        >> True
        << FellBack(Role.DECODE, "kv_load_failed")
        << Release(D0)
        << Lease(Role.DECODE)
        >> D0
        << computes(facts, D0)
        >> None
        << END
    )


def test_without_a_retry_left_a_failed_load_is_the_clients_answer(converse: Converse) -> None:
    (
        prefilled(converse, sampled())
        << decodes_ids(D0)
        >> LOAD_FAILED
        << Retry(Role.DECODE)
        >> False
        << Send(LOAD_FAILED)
        << END
    )


@pytest.mark.parametrize(
    ("outcome", "reason"), [(REFUSED, "refused"), (RESET, "reset"), (BUSY, "busy")]
)
@pytest.mark.parametrize("facts", [IDS, TALK])
def test_another_decode_engine_computes_the_prompt_itself(
    facts: Facts, outcome: object, reason: str, converse: Converse
) -> None:
    (
        prefilled(converse, sampled(), facts)
        << (decodes_ids(D0) if facts is IDS else decodes_own(TALK, D0))
        >> outcome
        << Release(D0)
        << Lease(Role.DECODE, frozenset({D0}))
        >> D1
        << FellBack(Role.DECODE, reason)
        << computes(facts, D1)
        >> None
        << END
    )


def test_with_no_other_decode_engine_the_client_hears_of_the_failure(converse: Converse) -> None:
    (
        prefilled(converse, sampled())
        << decodes_ids(D0)
        >> BROKEN
        << Release(D0)
        << Lease(Role.DECODE, frozenset({D0}))
        >> NO_ENGINE
        << Raises(EngineFailed, "broken off")
    )


def test_a_silent_decode_engine_is_not_replaced(converse: Converse) -> None:
    talk = prefilled(converse, sampled())
    _ = talk << decodes_ids(D0) >> SILENT << Raises(EngineTimedOut)
