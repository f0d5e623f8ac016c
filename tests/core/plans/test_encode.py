"""The encode step: what an encode engine is asked for, what is remembered of it, and that nothing
which it does changes the answer."""

from typing import Any

import orjson
import pytest

from router.core.errors import RouterError
from router.core.events import FellBack
from router.core.plans.encode import (
    EC_KEY,
    ENCODED_SECONDS,
    MAX_ENCODED,
    MAX_PARAMS,
    EncodedMedia,
    encode,
)
from router.core.plans.steps import Call, Check, LeaseHealthy, Plan, Release, Step
from router.core.request_facts import Facts
from router.core.values import ENCODE, Endpoint, Failure, Reply, Role
from router.core.wire.media import MAX_PARTS, media_parts
from tests.core.fixtures import (
    BUSY,
    CHAT,
    JSON,
    MESSAGES,
    NO_ENGINE,
    REFUSED,
    RESET,
    RESPONSES,
    SILENT,
    read,
    reply,
)

E0, E1 = (Endpoint(f"http://e{number}:8000", ENCODE) for number in range(2))
PARAMS = {"hash-of-a": {"item_indices": [0], "metadata": {}}}
ENCODED = reply(200, orjson.dumps({"choices": [], EC_KEY: PARAMS}))
USUAL = Check(Role.DECODE)
"""The first step of the usual plan."""


def image(name: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{name}"}}


def chat(*parts: dict[str, Any], model: str = "m", **more: Any) -> Facts:
    content = [{"type": "text", "text": "What is this?"}, *parts]
    messages = [{"role": "user", "content": "Hi"}, {"role": "user", "content": content}]
    return read(CHAT, orjson.dumps({"model": model, "messages": messages, **more}))


def usual() -> Plan:
    yield USUAL


class Requests:
    """Requests of one router."""

    def __init__(self) -> None:
        self.up_since = {E0: 0.0, E1: 0.0}
        self.encoded = EncodedMedia(self.up_since.get)

    def steps(
        self,
        facts: Facts,
        outcome: Reply | Failure = ENCODED,
        engine: Endpoint | RouterError = E0,
        now: float = 0.0,
    ) -> list[Step]:
        """All steps of a request."""
        plan, found = encode(usual(), facts, facts.model, self.encoded, now), []
        answer: Any = None
        try:
            while True:
                raises = isinstance(answer, RouterError)
                step = plan.throw(answer) if raises else plan.send(answer)
                found.append(step)
                answer = {LeaseHealthy: engine, Call: outcome}.get(type(step))
        except StopIteration:
            return found

    def asked(self, facts: Facts, **more: Any) -> list[dict[str, Any]]:
        """The parts that an encode engine is sent."""
        calls = [step for step in self.steps(facts, **more) if isinstance(step, Call)]
        return [part for call in calls for part in _parts(call)]


@pytest.fixture
def requests() -> Requests:
    return Requests()


SIZES = list(enumerate({"a": MAX_PARAMS, "b": MAX_PARAMS - 100}.items()))


def params(own: object) -> Reply:
    """The reply of an encode engine with these parameters."""
    return reply(200, orjson.dumps({EC_KEY: own}))


def announced(facts: Facts) -> Any:
    """The parameters that the next engines get."""
    return orjson.loads(facts.raw).get(EC_KEY)


def _parts(call: Call) -> list[dict[str, Any]]:
    [message] = orjson.loads(call.body)["messages"]
    parts: list[dict[str, Any]] = message["content"]
    return parts


def test_the_media_go_to_an_encode_engine_before_the_usual_plan(requests: Requests) -> None:
    facts = chat(image("a"), image("b"), stream=True, max_tokens=99, tools=[{}])
    lease, call, release, last = requests.steps(facts)
    assert isinstance(lease, LeaseHealthy)
    assert (lease.role, lease.facts.model, lease.facts.tokens) == (ENCODE, "m", facts.media_tokens)
    assert isinstance(call, Call)
    assert (call.endpoint, call.path, call.is_prefill) == (E0, CHAT, False)
    assert orjson.loads(call.body) == {
        "model": "m",
        "max_tokens": 1,
        "stream": False,
        "messages": [{"role": "user", "content": [image("a"), image("b")]}],
    }
    assert (release, last) == (Release(E0), USUAL)


def test_the_next_engines_get_the_parameters_of_the_reply(requests: Requests) -> None:
    facts = chat(image("a"))
    before = facts.raw
    requests.steps(facts)
    assert orjson.loads(facts.raw) == {**orjson.loads(before), EC_KEY: PARAMS}
    assert orjson.loads(orjson.dumps(facts.body)) == orjson.loads(facts.raw)


def test_what_is_encoded_is_not_sent_again(requests: Requests) -> None:
    requests.steps(chat(image("a")))
    facts = chat(image("a"), image("a"), stream=True)
    assert requests.steps(facts) == [USUAL]
    assert announced(facts) == PARAMS


def test_only_missing_parts_are_sent_and_all_are_announced(requests: Requests) -> None:
    requests.steps(chat(image("a")))
    others = {"hash-of-b": {"item_indices": [0], "metadata": {}}}
    facts = chat(image("a"), image("b"))
    assert requests.asked(facts, outcome=params(others)) == [image("b")]
    assert announced(facts) == PARAMS | others


def test_of_parts_encoded_together_each_has_its_own_parameters(requests: Requests) -> None:
    own = {"ab": {"item_indices": [0, 1]}, "c": {"item_indices": [2]}, "d": {"item_indices": [3]}}
    facts = chat(image("a"), image("b"), image("c"))
    requests.steps(facts, params(own))
    assert announced(facts) == {"ab": own["ab"], "c": own["c"]}
    for name, known in (("a", "ab"), ("b", "ab"), ("c", "c")):
        facts = chat(image(name))
        assert requests.asked(facts) == []
        assert announced(facts) == {known: own[known]}


def test_parameters_above_a_limit_are_neither_kept_nor_announced(requests: Requests) -> None:
    own = {name: {"item_indices": [place], "x": "x" * size} for place, (name, size) in SIZES}
    facts = chat(image("a"), image("b"))
    requests.steps(facts, params(own))
    assert announced(facts) == {"b": own["b"]}
    assert requests.asked(chat(image("a"), image("b"))) == [image("a")]


def test_it_is_sent_again_after_a_while_and_best_to_the_same_engine(requests: Requests) -> None:
    first, *_ = requests.steps(chat(image("a")))
    assert requests.steps(chat(image("a")), now=ENCODED_SECONDS - 1) == [USUAL]
    second, *_ = requests.steps(chat(image("a")), now=ENCODED_SECONDS)
    assert isinstance(first, LeaseHealthy)
    assert isinstance(second, LeaseHealthy)
    assert first.facts.session == second.facts.session is not None


def test_it_is_sent_again_if_its_engine_is_not_usable(requests: Requests) -> None:
    requests.steps(chat(image("a")))
    del requests.up_since[E0]
    assert requests.asked(chat(image("a")), engine=E1) == [image("a")]
    assert requests.asked(chat(image("a"))) == []


def test_it_is_sent_again_if_its_engine_has_been_down(requests: Requests) -> None:
    requests.steps(chat(image("a")))
    requests.up_since[E0] = 9.0
    assert requests.asked(chat(image("a")), now=10.0) == [image("a")]
    assert requests.asked(chat(image("a")), now=11.0) == []


def test_a_part_that_a_client_names_is_not_encoded_apart(requests: Requests) -> None:
    """vLLM finds the embedding by that name, which other clients may use."""
    named = [image("a") | {"uuid": name} for name in ("b", "", None)]
    assert requests.asked(chat(*named)) == named[2:]


DEEP = b'{"ec_transfer_params":{"a":{"item_indices":[0],"x":%b}}}' % (b"[" * 300 + b"]" * 300)
"""It can be parsed, and not be written."""
DENSE = b',"x":[%b{}]}' % (b"{}," * 40_000)
"""Parsing much of it blocks the event loop."""


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (REFUSED, "refused"),
        (RESET, "reset"),
        (SILENT, "timeout"),
        (BUSY, "busy"),
        (reply(500), "status_5xx"),
        (reply(400, b'{"error":{"message":"no image"}}'), "status_4xx"),
        (reply(200, b'{"ec_transfer_params":null}'), "no_ec_params"),
        (reply(200, b'{"ec_transfer_params":{}}'), "no_ec_params"),
        (reply(200, b'{"ec_transfer_params":"x"}'), "no_ec_params"),
        (reply(200, b'{"ec_transfer_params":{"a":{}}}'), "no_ec_params"),
        (reply(200, b'{"ec_transfer_params":{"a":{"item_indices":[1]}}}'), "no_ec_params"),
        (reply(200, DEEP), "no_ec_params"),
        (reply(200, b'{"ec_transfer_params":{"a":{"item_indices":[0]}}' + DENSE), "no_ec_params"),
        (reply(200, b"[]"), "no_ec_params"),
        (reply(200, b"<html>"), "no_ec_params"),
    ],
)
def test_after_a_failure_the_request_goes_on_as_it_came(
    requests: Requests, outcome: Reply | Failure, reason: str
) -> None:
    facts = chat(image("a"))
    before = facts.raw
    steps = requests.steps(facts, outcome)
    assert steps[2:] == [Release(E0), FellBack(ENCODE, reason), USUAL]
    assert facts.raw == before
    assert requests.asked(chat(image("a"))) == [image("a")]


def test_without_an_engine_the_request_goes_on(requests: Requests) -> None:
    lease, *rest = requests.steps(chat(image("a")), engine=NO_ENGINE)
    assert isinstance(lease, LeaseHealthy)
    assert rest == [FellBack(ENCODE, "no_encode_engine"), USUAL]


def test_media_are_distinguished_by_model_and_by_what_shapes_them(requests: Requests) -> None:
    requests.steps(chat(image("a")))
    assert requests.asked(chat(image("a"), model="other")) == [image("a")]
    shaped: dict[str, Any] = {"mm_processor_kwargs": {"num_crops": 4}}
    [_, call, *_] = requests.steps(chat(image("a"), **shaped))
    assert isinstance(call, Call)
    assert orjson.loads(call.body).items() >= shaped.items()


def test_without_a_model_none_is_asked_for(requests: Requests) -> None:
    facts = read(CHAT, orjson.dumps({"messages": [{"role": "user", "content": [image("a")]}]}))
    [_, call, *_] = requests.steps(facts)
    assert isinstance(call, Call)
    assert "model" not in orjson.loads(call.body)


def test_a_url_is_encoded_by_its_text(requests: Requests) -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    assert requests.asked(chat(part)) == [part]
    assert requests.asked(chat(part)) == []


def test_all_kinds_of_media_are_encoded(requests: Requests) -> None:
    parts = [
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": "https://example.com/a.wav"}},
        {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}},
    ]
    assert requests.asked(chat(*parts)) == parts


def test_a_request_has_a_limit_of_parts(requests: Requests) -> None:
    parts = [image(str(number)) for number in range(MAX_PARTS + 1)]
    assert requests.asked(chat(*parts)) == parts[:MAX_PARTS]


def test_other_apis_encode_nothing() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "a"}
    content: list[Any] = [{"type": "image", "source": source}]
    messages = read(MESSAGES, orjson.dumps({"messages": [{"role": "user", "content": content}]}))
    content = [{"type": "input_image", "image_url": "data:image/png;base64,a"}]
    responses = read(RESPONSES, orjson.dumps({"input": [{"role": "user", "content": content}]}))
    assert messages.media_tokens
    assert responses.media_tokens
    assert media_parts(messages) == media_parts(responses) == {}


@pytest.mark.parametrize("messages", [None, "x", [1], [{"content": None}], [{"content": [1, "x"]}]])
def test_malformed_messages_hold_nothing(messages: object) -> None:
    assert media_parts(read(CHAT, orjson.dumps({"messages": messages}), JSON)) == {}


def test_a_part_that_cannot_be_written_encodes_nothing() -> None:
    deep = b'{"type":"image_url","image_url":{"url":"data:a"},"x":' + b"[" * 300 + b"]" * 300 + b"}"
    facts = read(CHAT, b'{"messages":[{"role":"user","content":[%b]}]}' % deep)
    assert facts.media_tokens
    assert media_parts(facts) == {}


def test_a_large_body_has_its_parts_and_its_prefill_request_the_parameters(
    requests: Requests,
) -> None:
    small = chat(image("a"))
    large = read(CHAT, b'{"model":"m","messages":[]}')
    large.media, large.media_tokens = media_parts(small), small.media_tokens
    large.body, large.prefill = {}, (b'{"messages":[', b"]}")
    assert requests.asked(large) == [image("a")]
    assert large.media == {}
    value = orjson.dumps(PARAMS)
    assert large.raw == b'{"model":"m","messages":[],"ec_transfer_params":%b}' % value
    assert large.prefill == (b'{"messages":[', b'],"ec_transfer_params":%b}' % value)
    assert requests.asked(chat(image("a"))) == []


def test_the_first_parts_are_forgotten_first() -> None:
    encoded = EncodedMedia(lambda endpoint: 0.0)
    for key in (*range(MAX_ENCODED), 0, MAX_ENCODED):
        encoded.add(key, E0, b"x", 0.0)
    known = [encoded.params(key, 0.0) for key in (0, 1, 2, MAX_ENCODED)]
    assert known == [b"x", None, b"x", b"x"]
