"""The dialogues of the lmcache plan: the requests to each engine."""

from dataclasses import replace

import pytest

from router.core.events import FellBack
from router.core.plans.splices import FirstToken
from router.core.plans.steps import AwaitKV, Call, Lease, Release, Send, Stream
from router.core.request_facts import Facts
from router.core.values import Reply, Role
from tests.core.fixtures import (
    CHAT,
    COMPLETIONS,
    D0,
    D2,
    MESSAGES,
    P0,
    RESPONSES,
    read,
    reply,
    request,
)
from tests.core.plans.conversation import END, Converse
from tests.core.plans.lmcache_dialogue import (
    IDS,
    SPLICED,
    TALK,
    TEXT,
    TOKENS,
    UNKNOWN,
    computes,
    decodes_ids,
    decodes_own,
    decodes_text,
    plan,
    prefilled,
    prefills_ids,
    prefills_talk,
    prefills_text,
    sampled,
    tokenizes,
)

# Sharing the answer.


def test_a_text_prompt_is_tokenised_prefilled_and_continued(converse: Converse) -> None:
    (
        converse(plan(TEXT))
        << (Lease(Role.DECODE, computes=False), D0)
        << (Lease(Role.PREFILL), P0)
        << (tokenizes(P0), TOKENS)
        << (prefills_text(P0), sampled())
        << Release(P0)
        << (decodes_text(D0), None)
        << END
    )


def test_token_ids_are_not_tokenised_and_absent_max_tokens_are_16(converse: Converse) -> None:
    (
        converse(plan(IDS))
        << (Lease(Role.DECODE, computes=False), D0)
        << (Lease(Role.PREFILL), P0)
        << (prefills_ids(P0), sampled())
        << Release(P0)
        << (decodes_ids(D0), None)
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
    splice = FirstToken("\x15", UNKNOWN)
    _ = talk << Stream(D0, COMPLETIONS, body, SPLICED, hold=True, splice=splice) >> None << END


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
        << (Lease(Role.DECODE, computes=False), D0)
        << (Lease(Role.PREFILL), P0)
        << (prefills_talk(P0), reply(200, b'{"choices":[],"kv_transfer_params":null}'))
        << Release(P0)
        << (decodes_own(TALK, D0), None)
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
        << (asked, sampled())
        << Release(P0)
        << (replace(decodes_own(facts, D0), lead=facts.lead), None)
        << END
    )


def test_completions_with_stop_strings_do_not_share(converse: Converse) -> None:
    facts = request(prompt=[5, 6, 7], stop=["\n"])
    talk = prefilled(converse, sampled(), facts)
    _ = talk << decodes_own(facts, D0) >> None << END


@pytest.mark.parametrize("text", ["", "\ufffd", "ab\ufffd", None, 7])
def test_a_first_token_without_text_is_generated_by_the_decode_engine(
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
def test_without_first_token_decode_computes(answer: Reply, converse: Converse) -> None:
    _ = (
        prefilled(converse, answer, notify=True)
        << FellBack(Role.PREFILL, "no_first_tok")
        << Release(D0)
        << (Lease(Role.DECODE), D0)
        << (computes(IDS, D0), None)
        << END
    )


def test_a_decode_engine_without_a_receiver_computes(converse: Converse) -> None:
    """One that was discovered, and that no registry names."""
    (
        converse(plan(TEXT))
        << (Lease(Role.DECODE, computes=False), D2)
        << FellBack(Role.PREFILL, "no_receiver")
        << Release(D2)
        << (Lease(Role.DECODE), D0)
        << (computes(TEXT, D0), None)
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
def test_missing_cache_is_recorded_and_computed(facts: Facts, converse: Converse) -> None:
    (
        prefilled(converse, sampled(), facts, notify=True)
        << (AwaitKV("t1", 2), False)
        << FellBack(Role.PREFILL, "kv_ready_timeout")
        << Release(D0)
        << (Lease(Role.DECODE), D0)
        << (computes(facts, D0), None)
        << END
    )


def test_a_token_that_cannot_be_shown_is_waited_for_too(converse: Converse) -> None:
    talk = prefilled(converse, sampled(text=""), notify=True)
    _ = talk << AwaitKV("t1", 2) >> True << decodes_own(IDS, D0) >> None << END
