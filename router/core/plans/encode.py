"""Encode: an engine of the encode pool makes the embeddings of media before the usual plan.

The protocol is vLLM's disaggregated encoder (EPD: `--ec-transfer-config`, examples/disaggregated/
disaggregated_encoder, 0.32). An encode engine answers a chat without tokens, and keeps the
embedding of each image, recording or video under a hash of its content. The next engine finds it
there, or fetches it by the reply's `ec_transfer_params`. What this module guarantees:

- An answer is right whatever the encode engine does, because the next engine gets the client's own
  body and encodes what it does not find. So one encode engine is asked, once. After any failure the
  request goes on without it; of a wrong image the next engine reports the error.
- A part that was encoded lately is not sent again while the engine that did it is usable.
"""

from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, NamedTuple

import orjson

from router.core.errors import NoEngine
from router.core.events import FellBack
from router.core.plans.steps import Call, LeaseHealthy, Plan, Release, Step
from router.core.request_facts import NO_KEYS, Facts, PrefixKeys
from router.core.retry import reason_of
from router.core.values import ENCODE, Endpoint, Reply
from router.core.wire.jsonspan import engine_json, with_member
from router.core.wire.media import SHAPING, MediaParts, media_parts

__all__ = ["EC_KEY", "ENCODE_SECONDS", "EncodedMedia", "encode"]

EC_KEY: Final = "ec_transfer_params"

MAX_ENCODED: Final = 8192
"""Most parts that are remembered, in some 8 MB. Their embeddings take 64 GB (1,000 tokens of 8 kB
each), which is more than most stores keep."""

MAX_PARAMS: Final = 8192
"""Most bytes of a part's parameters. An image has 300, a long video (Qwen3-VL's timestamps) some
thousands. All that are remembered take at most 67 MB."""

ENCODED_SECONDS: Final = 300.0
"""Seconds for which a part counts as encoded, from its request on, and not from its last use: what
a store has dropped would otherwise stay unencoded while it is in use. The next turn of a
conversation mostly comes sooner."""

ENCODE_SECONDS: Final = 30.0
"""For the reply of an encode engine, which takes less than a second per image. The next engine can
encode as fast, so a long wait gains nothing."""


class _Encoded(NamedTuple):
    """What is remembered of a part."""

    endpoint: Endpoint
    asked_at: float
    params: bytes
    """Its members of the reply's `ec_transfer_params`."""


class EncodedMedia:
    """The parts that encode engines have encoded lately, for this process. The first ones are
    forgotten first. `up_since`: since when an engine may get requests; None if it may not."""

    def __init__(self, up_since: Callable[[Endpoint], float | None]) -> None:
        self._up_since = up_since
        self._parts: OrderedDict[int, _Encoded] = OrderedDict()

    def params(self, key: int, now: float) -> bytes | None:
        """The parameters of a part that is encoded; None if it is not. An engine that was down may
        have lost it."""
        known = self._parts.get(key)
        if known is None or now >= known.asked_at + ENCODED_SECONDS:
            return None
        since = self._up_since(known.endpoint)
        return known.params if since is not None and since <= known.asked_at else None

    def add(self, key: int, endpoint: Endpoint, params: bytes, now: float) -> None:
        """Note that an engine has encoded a part."""
        self._parts[key] = _Encoded(endpoint, now, params)
        self._parts.move_to_end(key)
        if len(self._parts) > MAX_ENCODED:
            self._parts.popitem(last=False)


def encode(plan: Plan, facts: Facts, model: str | None, encoded: EncodedMedia, now: float) -> Plan:
    """Have an encode engine of a model encode the media that are not encoded yet, then follow
    `plan`."""
    params = yield from _all_encoded(facts, model, encoded, now)
    if params:
        _announce(facts, b"{%b}" % b",".join(params))
    yield from plan


def _all_encoded(
    facts: Facts, model: str | None, encoded: EncodedMedia, now: float
) -> Generator[Step, Any, dict[bytes, None]]:
    """The parameters of all parts that are encoded in the end, each once."""
    given = media_parts(facts) if facts.media is None else facts.media
    # What is made of a part differs by model.
    parts = {hash((model, key)): part for key, part in given.items()}
    given.clear()  # they may be as large as the body
    found: dict[bytes, None] = {}
    for key in tuple(parts):
        params = encoded.params(key, now)
        if params is not None:
            found[params] = None
            del parts[key]
    if parts:
        made = yield from _encoded(facts, model, parts, encoded, now)
        found |= dict.fromkeys(made)
    return found


def _encoded(
    facts: Facts, model: str | None, parts: MediaParts, encoded: EncodedMedia, now: float
) -> Generator[Step, Any, Iterable[bytes]]:
    """The parameters of parts that an engine encodes now; none, with a fallback event, if it
    fails."""
    keys = tuple(parts)
    own = Facts(facts.route, model, False, facts.media_tokens, facts.rule, None, b"")
    own.prefix = NO_KEYS
    # As a session, a part goes to the engine that had it last: it may have it still.
    own.session = PrefixKeys(keys, (0,) * len(keys))
    try:
        engine = yield LeaseHealthy(ENCODE, own)
    except NoEngine:
        yield FellBack(ENCODE, "no_encode_engine")
        return ()
    call = Call(engine, facts.path, _body(facts, model, parts), is_prefill=False)
    parts.clear()
    outcome = yield call
    yield Release(engine)
    if not isinstance(outcome, Reply) or outcome.status >= 400:
        yield FellBack(ENCODE, reason_of(outcome))
        return ()
    params = _params(outcome)
    made = [(key, params[place]) for place, key in enumerate(keys) if place in params]
    if not made:
        yield FellBack(ENCODE, "no_ec_params")
    for key, part in made:
        encoded.add(key, engine, part, now)
    return [part for _, part in made]


def _body(facts: Facts, model: str | None, parts: MediaParts) -> bytes:
    """A chat with these parts only, since nothing is generated."""
    body: dict[str, Any] = {"max_tokens": 1, "stream": False}
    if model is not None:
        body["model"] = model
    head = orjson.dumps(body | {key: facts.body[key] for key in SHAPING if key in facts.body})
    message = b'[{"role":"user","content":[%b]}]' % b",".join(parts.values())
    return with_member(head, "messages", message)


def _params(reply: Reply) -> dict[object, bytes]:
    """The members of the reply's `ec_transfer_params`, by the places of the parts to which they
    belong; none if one of them is malformed. Those above MAX_PARAMS are left out."""
    found: dict[object, bytes] = {}
    try:
        for name, entry in engine_json(reply.body)[EC_KEY].items():
            own = orjson.dumps({name: entry})[1:-1]
            if len(own) <= MAX_PARAMS:
                found |= dict.fromkeys(entry["item_indices"], own)
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}
    return found


def _announce(facts: Facts, params: bytes) -> None:
    """Add the parameters to the request for all engines that follow."""
    facts.raw = with_member(facts.raw, EC_KEY, params)
    if facts.prefill:
        facts.prefill = (*facts.prefill[:-1], with_member(facts.prefill[-1], EC_KEY, params))
    facts.body = {**facts.body, EC_KEY: orjson.Fragment(params)}
