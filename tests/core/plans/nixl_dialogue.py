"""What a nixl plan asks of engines, and how its dialogues begin."""

from router.core.events import FellBack
from router.core.plans.nixl import nixl
from router.core.plans.splices import PrefillSplice
from router.core.plans.steps import Call, Check, Lease, Release, Retry, Stream
from router.core.request_facts import Facts
from router.core.values import Endpoint, Failure, Reply, Role
from tests.core.fixtures import CHAT, D0, KEPT, LOAD_FAILED, P0, P1, read, reply
from tests.core.plans.conversation import Conversation, Converse

RAW = b'{ "model":"tiny", "messages":[{"role":"user","content":"Hello"}], "stream":true }'
FACTS = read(CHAT, RAW)

PREFILL_BODY = (
    b'{"model":"tiny","messages":[{"role":"user","content":"Hello"}],"stream":false,'
    b'"max_tokens":1,"ignore_eos":true,"kv_transfer_params":{"do_remote_decode":true,'
    b'"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
    b'"remote_host":null,"remote_port":null}}'
)

# No JSON parser would give these bytes back: the space, the large integer and the float stay.
REFERENCE = b'{"remote_block_ids": [[18446744073709551617]],"remote_host":"p0","expiry":1.50}'
REFERENCE_2 = b'{"remote_block_ids":[[2]],"remote_host":"p1"}'


def prefilled(reference: bytes, usage: bytes = b"null") -> Reply:
    """A prefill engine's reply with a KV reference."""
    body = b'{"id":"x","usage":%b,"kv_transfer_params":%b,"metrics":null}' % (usage, reference)
    return reply(200, body)


def prefills(endpoint: Endpoint) -> Call:
    """The request to the prefill engine: one token, and keep the blocks."""
    return Call(endpoint, CHAT, PREFILL_BODY)


def decodes(endpoint: Endpoint, reference: bytes = REFERENCE) -> Stream:
    """The decode engine gets the client's bytes with the reference added at their end."""
    body = RAW[:-1] + b',"kv_transfer_params":' + reference + b"}"
    splice = PrefillSplice(None)
    return Stream(endpoint, CHAT, body, KEPT, hold=True, replay=False, splice=splice, keeps_id=True)


def computes(endpoint: Endpoint, facts: Facts = FACTS) -> Stream:
    """The decode engine gets the client's bytes and computes the prompt itself."""
    return Stream(endpoint, facts.path, facts.raw, keep=KEPT)


def p0_answers(converse: Converse, outcome: Reply | Failure) -> Conversation:
    """A conversation up to where the prefill engine P0 has answered, and is released."""
    return (
        converse(nixl(FACTS))
        << (Check(Role.DECODE), None)
        << (Lease(Role.PREFILL), P0)
        << (prefills(P0), outcome)
        << Release(P0)
    )


def after_prefill(converse: Converse, reference: bytes = REFERENCE) -> Conversation:
    """A conversation up to the request to the decode engine D0."""
    return p0_answers(converse, prefilled(reference)) << (Lease(Role.DECODE, computes=False), D0)


def after_failed_load(converse: Converse) -> Conversation:
    """A conversation up to where the prompt is prefilled for the second time, for D0."""
    return (
        after_prefill(converse)
        << (decodes(D0), LOAD_FAILED)
        << Release(D0)
        << (Check(Role.DECODE), None)
        << (Retry(Role.DECODE), True)
        << FellBack(Role.DECODE, "kv_load_failed")
        << (Lease(Role.PREFILL), P1)
        << prefills(P1)
    )
