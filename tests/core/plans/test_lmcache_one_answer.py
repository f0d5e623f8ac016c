"""Two engines that share an answer give the answer of one engine, shown with a small engine.

The engine imitates vLLM where an answer could come apart: end of sequence, stop tokens, least and
most tokens, the end of the context, and characters of several tokens. Half a character has no text;
and behind a prompt that ends in half a character, the text of the whole prompt comes again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from hypothesis import event, given, settings
from hypothesis import strategies as st

from router.core.events import FellBack
from router.core.plans.lmcache import lmcache
from router.core.plans.steps import AwaitKV, Call, Lease, Send, Stream
from router.core.request_facts import Facts
from router.core.values import Receiver, Reply, Role
from router.core.wire import sse
from tests.core.fixtures import D0, P0, request

END_OF_SEQUENCE = 0
BYTES = [b"", b"a", b" b", b"\xc3", b"\xa9", "é".encode()]
TOKENS = range(len(BYTES))

Json = dict[str, Any]


def text_of(tokens: Sequence[int]) -> str:
    return b"".join(BYTES[token] for token in tokens).decode(errors="replace")


@dataclass(frozen=True)
class Model:
    """What follows a prompt, by a table; `context` is the most tokens that it can hold."""

    table: tuple[int, ...]
    context: int

    def following(self, tokens: Sequence[int], forbidden: frozenset[int]) -> int:
        wanted = self.table[sum(tokens) % len(self.table)]
        allowed = [(wanted + step) % len(TOKENS) for step in TOKENS]
        return next(token for token in allowed if token not in forbidden)

    def generate(self, body: Mapping[str, Any]) -> Reply | tuple[list[str], str, int | None]:
        """The answer's text by token, why it ends, and the token that ended it."""
        prompt, least = list(body["prompt"]), body.get("min_tokens", 0)
        most = body.get("max_tokens", 16)
        if len(prompt) >= self.context or least > most or most < 1:
            return Reply(400, (), b'{"error":{}}')
        most = min(most, self.context - len(prompt))
        stops = frozenset(body.get("stop_token_ids", ()))
        ends = stops if body.get("ignore_eos") else stops | {END_OF_SEQUENCE}
        shown, pieces = _Shown(prompt), list[str]()
        while True:
            token = self.following(shown.tokens, ends if len(pieces) < least else frozenset())
            if token in ends:
                reason = token if token in stops and token != END_OF_SEQUENCE else None
                return [*pieces, ""], "stop", reason
            pieces.append(shown.add(token))
            if len(pieces) == most:
                return pieces, "length", None


class _Shown:
    """tokenizers' DecodeStream."""

    def __init__(self, prompt: list[int]) -> None:
        self.tokens = prompt
        self._before = text_of(prompt)
        if self._before.endswith("\ufffd"):
            self._before = ""

    def add(self, token: int) -> str:
        self.tokens.append(token)
        text = text_of(self.tokens)
        if len(text) <= len(self._before) or text.endswith("\ufffd"):
            return ""
        new, self._before = text[len(self._before) :], text
        return new


@dataclass
class Engine:
    """Answers /tokenize and /v1/completions."""

    model: Model
    name: str

    def answer(self, path: str, body: Json) -> Reply:
        if path == "/tokenize":
            return Reply(200, (), orjson.dumps({"tokens": tokenize(body["prompt"])}))
        if isinstance(body["prompt"], str):
            body["prompt"] = tokenize(body["prompt"])
        prompt = len(body["prompt"])
        made = self.model.generate(body)
        if isinstance(made, Reply):
            return made
        pieces, finish, reason = made
        if body.get("stream"):
            return Reply(200, (), self._stream(prompt, pieces, finish, reason, body))
        document = self._head([_choice("".join(pieces), finish, reason)])
        document["usage"] = _usage(prompt, len(pieces))
        if "ret_first_tok" in body.get("kv_transfer_params", {}):
            first = self.model.following(body["prompt"][:prompt], self._masked(body))
            document["kv_transfer_params"] = {"first_tok": first}
        return Reply(200, (), orjson.dumps(document))

    def _masked(self, body: Json) -> frozenset[int]:
        stops = frozenset(body.get("stop_token_ids", ()))
        ends = stops if body.get("ignore_eos") else stops | {END_OF_SEQUENCE}
        return ends if body.get("min_tokens") else frozenset()

    def _stream(
        self, prompt: int, pieces: list[str], finish: str, reason: int | None, body: Json
    ) -> bytes:
        options = body.get("stream_options", {})
        out = b""
        for count, piece in enumerate(pieces, 1):
            last = count == len(pieces)
            choice = _choice(piece, finish if last else None, reason if last else None)
            chunk = self._head([choice])
            if options.get("include_usage") and options.get("continuous_usage_stats"):
                chunk["usage"] = _usage(prompt, count)
            out += b"data: %b\n\n" % orjson.dumps(chunk)
        if options.get("include_usage"):
            chunk = self._head([]) | {"usage": _usage(prompt, len(pieces))}
            out += b"data: %b\n\n" % orjson.dumps(chunk)
        return out + sse.DONE

    def _head(self, choices: list[Json]) -> Json:
        return {"id": self.name, "object": "text_completion", "choices": choices}


def tokenize(text: str) -> list[int]:
    return ["ab".index(letter) + 1 for letter in text]


def _choice(text: str, finish: str | None, reason: int | None) -> Json:
    return {"index": 0, "text": text, "finish_reason": finish, "stop_reason": reason}


def _usage(prompt: int, completion: int) -> Json:
    total = prompt + completion
    return {"prompt_tokens": prompt, "total_tokens": total, "completion_tokens": completion}


@dataclass
class Heard:
    """What a client makes of an answer."""

    text: str = ""
    finish: str | None = None
    stop_reason: int | None = None
    usages: tuple[Json, ...] = ()
    status: int = 200


def hear(facts: Facts, status: int, body: bytes) -> Heard:
    heard = Heard(status=status)
    if status != 200:
        return heard
    chunks = [body]
    if facts.stream:
        assert body.endswith(sse.DONE)
        chunks = [sse.data_of(part) for part in sse.events(body)[:-1]]
    documents = [orjson.loads(part) for part in chunks]
    assert len({document["id"] for document in documents}) == 1
    for document in documents:
        for choice in document["choices"]:
            assert heard.finish is None, "a chunk after the end"
            heard.text += choice["text"]
            heard.finish, heard.stop_reason = choice["finish_reason"], choice["stop_reason"]
    if facts.stream:
        heard.usages = tuple(d["usage"] for d in documents if "usage" in d)
    else:
        heard.usages = (documents[0]["usage"],)
    return heard


def routed(facts: Facts, model: Model, cut: Callable[[bytes], list[bytes]]) -> tuple[Heard, str]:
    """The client's answer through the plan, and the mode of the decode leg."""
    prefill, decode = Engine(model, "p"), Engine(model, "d")
    plan = lmcache(facts, {D0: Receiver("d0", (1,), (2,))}, lambda: "t", notify=True)
    step, way, answer = next(plan), "prefill only", None
    while True:
        match step:
            case Lease(role):
                given: object = P0 if role is Role.PREFILL else D0
            case Call(path=path, body=body):
                given = prefill.answer(path, orjson.loads(body))
            case AwaitKV():
                given = True
            case FellBack():
                given = None
                assert step.reason == "splice_refused", step
            case Stream():
                given, answer = _relayed(decode, step, cut)
                way = "own" if step.splice is None else "spliced"
            case Send():
                given, answer = None, (step.reply.status, step.reply.body)
            case _:
                given = None
        try:
            step = plan.send(given)
        except StopIteration:
            assert answer is not None
            return hear(facts, *answer), way


def _relayed(
    decode: Engine, step: Stream, cut: Callable[[bytes], list[bytes]]
) -> tuple[Reply | None, tuple[int, bytes] | None]:
    body = orjson.loads(step.body)
    reply = decode.answer(step.path, body)
    if reply.status in step.keep:
        return reply, None
    out = reply.body
    if step.splice is not None and reply.status == 200:
        is_stream = body.get("stream")
        splice = step.splice
        out = b"".join(map(splice.events, cut(out))) if is_stream else splice.body(out)
    return None, (reply.status, out)


bodies = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.sampled_from(TOKENS), min_size=1, max_size=4)
        | st.text("ab", min_size=1)
    },
    optional={
        "max_tokens": st.integers(1, 6),
        "min_tokens": st.integers(0, 6),
        "ignore_eos": st.booleans(),
        "stop_token_ids": st.lists(st.sampled_from(TOKENS[1:]), max_size=2),
    },
)
streams: st.SearchStrategy[Json] = st.just({}) | st.fixed_dictionaries(
    {"stream": st.just(True)},
    optional={
        "stream_options": st.fixed_dictionaries(
            {"include_usage": st.booleans(), "continuous_usage_stats": st.booleans()}
        )
    },
)
models = st.builds(
    Model,
    st.lists(st.sampled_from(TOKENS), min_size=1, max_size=5).map(tuple),
    st.integers(3, 12),
)


@settings(max_examples=400)
@given(bodies, streams, models, st.randoms(use_true_random=False))
def test_the_client_gets_the_answer_of_one_engine(
    body: Json, stream: Json, model: Model, rng: Any
) -> None:
    def cut(data: bytes) -> list[bytes]:
        """Whole events, several at a time."""
        parts: list[bytes] = []
        for part in sse.events(data):
            if parts and rng.random() < 0.5:
                parts[-1] += part
            else:
                parts.append(part)
        return parts

    facts = request(**body, **stream)
    alone = Engine(model, "alone").answer(facts.path, orjson.loads(facts.raw))
    heard, way = routed(facts, model, cut)
    event(way)
    assert heard == hear(facts, alone.status, alone.body)
