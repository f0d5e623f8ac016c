"""`pd-router check --try`: a request over each pair of engines, and whether its KV cache was
transferred.

The requests are written by the router's own plan. Nothing is retried, neither on the same engine
nor on another one, so that failures become visible. Every engine is in at least one pair.
"""

import asyncio
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp
import orjson
from prometheus_client.parser import text_string_to_metric_families

from router.commands.survey import Finding
from router.core.events import FellBack
from router.core.plans.direct import direct
from router.core.plans.lmcache import lmcache
from router.core.plans.mooncake import mooncake
from router.core.plans.moriio import moriio
from router.core.plans.nixl import reference
from router.core.plans.steps import AwaitKV, Call, Lease, Plan, Stream
from router.core.request_facts import Facts
from router.core.routes import ROUTES
from router.core.urls import split_rank
from router.core.values import Endpoint, Reply, Role, TransferSource, TransferTarget
from router.core.wire import facts as facts_of
from router.net.engine.engine_session import engine_session, trouble_of
from router.settings import Settings
from router.web.engine_side import engine_tls_of
from router.web.routing import PLANS, receivers_of

__all__ = ["Trial", "trials"]

SENTENCE = "The quick brown fox jumps over the lazy dog. "
SENTENCE_TOKENS = 16
"""Upper bound of a sentence's tokens for any tokenizer; usually 10."""

SENTENCES = 80
"""Sentences of the prompt: about 800 tokens. LMCache transfers chunks of 256, and this is little
load for an engine."""

TOKENS = 8
"""Tokens of the answer."""

ANY_LENGTH = 1 << 30
"""Assumed max_model_len of engines that do not report it."""

PUSH_SECONDS = 1.0
"""Seconds for LMCache to push the prompt's KV cache, which takes some milliseconds. Its
notifications go to the running router, not to this command."""

LOAD_FAILED = 500
"""The status of a failed KV load under vLLM's default kv_load_failure_policy "fail"."""

MAX_MESSAGE_CHARACTERS = 200
"""Characters of an engine's error message that are printed."""

MOVED = ("vllm:prompt_tokens_by_source_total", "external_kv_transfer")
"""vLLM's counter of prompt tokens by the source of their KV cache, and the source that is counted
here."""


KEEPS_ANSWERS = (
    "warning: the decode engine keeps each answer's blocks for minutes after its end, for prefill "
    "engines that never ask: start it without bidirectional_kv_xfer"
)

JSON = {"content-type": "application/json"}


class Failed(Exception):
    """A trial failed; the message says what went wrong and where."""


@dataclass
class Trial:
    """One request over one pair; `prefill` is None without prefill engines."""

    prefill: Endpoint | None
    decode: Endpoint
    prefill_seconds: float | None = None
    seconds: float = 0.0
    moved: int | None = None
    """Prompt tokens that the decode engine loaded from another engine; None if it does not report
    them."""
    prompt: int | None = None
    """Prompt tokens according to the decode engine."""
    keeps_answers: bool = False
    """Whether the decode engine keeps the blocks of its answers for prefill engines."""
    trouble: str | None = None

    @property
    def line(self) -> str:
        """The result as a line of text."""
        via = "" if self.prefill is None else f"{self.prefill.url} -> "
        return f"try {via}{self.decode.url}: {self.trouble or self._success}"

    @property
    def _success(self) -> str:
        if self.prefill_seconds is None:
            return f"ok, answered in {self.seconds:.3f} s"
        of = "" if self.prompt is None else f" of {self.prompt}"
        kv = (
            "the engine does not report whether the KV cache moved"
            if self.moved is None
            else f"the KV cache of {self.moved}{of} prompt tokens moved"
        )
        done = f"ok, prefill {self.prefill_seconds:.3f} s, decode {self.seconds:.3f} s, {kv}"
        return f"{done}; {KEEPS_ANSWERS}" if self.keeps_answers else done


def trials(settings: Settings, findings: Sequence[Finding]) -> list[Trial]:
    """Try all pairs of usable engines that serve the same model, concurrently."""
    return asyncio.run(_trials(settings, findings))


async def _trials(settings: Settings, findings: Sequence[Finding]) -> list[Trial]:
    async with engine_session(
        settings.engine_api_key,
        engine_tls_of(settings).context,
        timeout_seconds=settings.prefill_timeout,
    ) as session:
        pairs = list(_pairs(findings))
        # Pairs that share a decode engine are tried one after the other, because its counter is
        # compared before and after.
        lanes: dict[Endpoint, list[_Attempt]] = {}
        sources = {each.endpoint: each.transfer_source for each in findings}
        for prefill, decode, model, length in pairs:
            attempt = _Attempt(session, settings, Trial(prefill, decode), model, length, sources)
            lanes.setdefault(decode, []).append(attempt)
        await asyncio.gather(*(_in_turn(lane) for lane in lanes.values()))
        return [attempt.trial for lane in lanes.values() for attempt in lane]


async def _in_turn(lane: "Sequence[_Attempt]") -> None:
    for attempt in lane:
        await attempt.carry_out()


def _pairs(findings: Sequence[Finding]) -> Iterator[tuple[Endpoint | None, Endpoint, str, int]]:
    """Yields pairs, one for each engine of the larger pool, with a model that both serve and the
    number of tokens that both accept."""
    sound = [f for f in findings if f.advice is None]
    prefill = [f for f in sound if f.endpoint.role is Role.PREFILL]
    decode = [f for f in sound if f.endpoint.role is Role.DECODE]
    if not decode or (not prefill and any(f.endpoint.role is Role.PREFILL for f in findings)):
        return
    for place in range(max(len(prefill), len(decode))):
        last = decode[place % len(decode)]
        first = prefill[place % len(prefill)] if prefill else None
        of_first, of_last = (first or last).models or {}, last.models or {}
        model = next((name for name in of_last if name in of_first), None)
        if model is not None:
            lengths = [n for n in (of_first[model], of_last[model]) if n is not None]
            endpoint = None if first is None else first.endpoint
            yield endpoint, last.endpoint, model, min(lengths, default=ANY_LENGTH)


@dataclass
class _Attempt:
    """One trial in progress."""

    session: aiohttp.ClientSession
    settings: Settings
    trial: Trial
    model: str
    max_tokens: int
    """Of prompt and answer together."""
    sources: Mapping[Endpoint, TransferSource | None]
    headers: dict[str, str] = field(
        default_factory=lambda: JSON | {"x-request-id": f"try-{uuid.uuid4().hex}"}
    )
    """Both legs have one id, by which NixlPushConnector matches them."""

    async def carry_out(self) -> None:
        """Perform the trial and fill in the result. Does not raise."""
        trial = self.trial
        try:
            await self._refuse_read_mode()
            before = await self._moved()
            trial.prompt = await self._run(self._plan(self._facts()))
            after = await self._moved()
        except Failed as error:
            trial.trouble = str(error)
            return
        if trial.prefill is None or before is None or after is None:
            return
        trial.moved = after - before
        if not trial.moved:
            trial.trouble = (
                "the answer is right, but the decode engine computed the prompt itself: no KV "
                "cache moved; see whether both engines have the same --kv-transfer-config connector"
            )

    async def _refuse_read_mode(self) -> None:
        """Raise Failed if the decode engine takes a prompt without parameters for loaded."""
        if self.settings.disagg_connector_type != "moriio":
            return
        before = await self._moved()
        await self._run(direct(self._facts()))
        if await self._moved() != before:
            raise Failed(
                f"decode {self.trial.decode.url} runs MoRIIO in READ mode, in which answers to "
                "short prompts are wrong: start all engines without read_mode"
            )

    def _facts(self) -> Facts:
        room = (self.max_tokens - TOKENS) // SENTENCE_TOKENS - 2  # reserve for the text before them
        # It begins with a new UUID, so that it is in no cache.
        prompt = f"{uuid.uuid4()} {SENTENCE * max(1, min(SENTENCES, room))}"
        body = {"model": self.model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        route = ROUTES["/v1/completions"]
        return facts_of.read(route, b"application/json", orjson.dumps({**body, "ignore_eos": True}))

    def _plan(self, facts: Facts) -> Plan:
        if self.trial.prefill is None:
            return direct(facts)
        if (plan := PLANS.get(self.settings.disagg_connector_type)) is not None:
            return plan(facts)
        if self.settings.disagg_connector_type == "mooncake":
            return mooncake(facts, self.sources.get, _new_id)
        if self.settings.disagg_connector_type == "moriio":
            return moriio(facts, self._target, _new_id)
        return lmcache(facts, receivers_of(self.settings), _new_id, notify=True)

    def _target(self, endpoint: Endpoint) -> TransferTarget:
        return self.settings.target(split_rank(endpoint.url)[0])

    async def _run(self, plan: Plan) -> int | None:
        """Perform the plan's steps up to the answer. Returns the prompt's tokens. Raises Failed."""
        answer: object = None
        try:
            while True:
                step = plan.send(answer)
                match step:
                    case Lease():
                        answer = self._endpoint(step.role)
                    case Call():
                        began = time.monotonic()
                        answer = await self._good(step)
                        if step.endpoint == self.trial.prefill:
                            self.trial.prefill_seconds = time.monotonic() - began
                    case AwaitKV():
                        await asyncio.sleep(PUSH_SECONDS)
                        answer = True
                    case Stream():
                        began = time.monotonic()
                        reply = await self._good(step)
                        self.trial.seconds = time.monotonic() - began
                        self.trial.keeps_answers = _keeps_answers(reply)
                        return _prompt_tokens(step.endpoint, reply)
                    case FellBack():
                        raise Failed(self._gave_up(step))
                    case _:
                        answer = None
        finally:
            plan.close()

    def _endpoint(self, role: Role) -> Endpoint:
        prefill = self.trial.prefill
        return prefill if role is Role.PREFILL and prefill is not None else self.trial.decode

    def _gave_up(self, step: FellBack) -> str:
        if step.reason == "no_kv_params":
            return (
                f"prefill {self._endpoint(Role.PREFILL).url} keeps no KV cache for "
                f"{self.settings.disagg_connector_type}: start it with that connector "
                "(--kv-transfer-config), or name the one that it has (--disagg-connector-type)"
            )
        if step.reason == "no_engine_id":
            return (
                f"prefill {self._endpoint(Role.PREFILL).url} has several data-parallel ranks, "
                "which only a router tells apart"
            )
        if step.reason == "no_receiver":
            return f"where LMCache of decode {self.trial.decode.url} receives is not known"
        return f"{step.leg} {self._endpoint(step.leg).url}: {step.reason}"

    async def _good(self, step: Call | Stream) -> Reply:
        """An engine's 200. Raises Failed otherwise."""
        endpoint = step.endpoint
        reply = await self._post(endpoint, step.path, step.body)
        if reply.status != 200:
            said = _said(reply.body)
            hint = ""
            if reply.status == LOAD_FAILED and self.trial.prefill not in (None, endpoint):
                hint = (
                    ". It could not load the KV cache, or see its log: does it reach the prefill "
                    f"engine's {self._side_channel}?"
                )
            raise Failed(f"{endpoint.role} {endpoint.url} answers {reply.status}: {said}{hint}")
        return reply

    @property
    def _side_channel(self) -> str:
        if self.settings.disagg_connector_type == "mooncake":
            return "bootstrap server (VLLM_MOONCAKE_BOOTSTRAP_PORT) and worker ports"
        return "side channel (VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT)"

    async def _post(self, endpoint: Endpoint, path: str, body: bytes) -> Reply:
        """Send a request. Raises Failed if there is no response."""
        try:
            async with self.session.post(
                endpoint.url + path, data=body, headers=self.headers, allow_redirects=False
            ) as response:
                return Reply(response.status, body=await response.read())
        except TimeoutError:
            seconds = self.settings.prefill_timeout
            raise Failed(
                f"{endpoint.role} {endpoint.url} has not answered in {seconds:g} s "
                "(--prefill-timeout)"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            advice = trouble_of(error).advice
            raise Failed(f"{endpoint.role} {endpoint.url}: {advice}") from None

    async def _moved(self) -> int | None:
        """Prompt tokens that the decode engine has loaded from other engines since its start."""
        if self.trial.prefill is None:
            return None
        try:
            url = f"{self.trial.decode.url}/metrics"
            async with self.session.get(url, allow_redirects=False) as response:
                return _count(await response.text()) if response.status == 200 else None
        except (aiohttp.ClientError, OSError, ValueError, OverflowError):
            return None


def _new_id() -> str:
    return f"try-{uuid.uuid4().hex}"


def _count(exposition: str) -> int | None:
    """The counter's value on a /metrics page. Raises ValueError if it cannot be parsed, and
    OverflowError if it is infinite."""
    name, source = MOVED
    found = [
        sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
        if sample.name == name and sample.labels.get("source") == source
    ]
    return int(sum(found)) if found else None


def _prompt_tokens(endpoint: Endpoint, reply: Reply) -> int | None:
    """The prompt tokens in an answer's usage. Raises Failed if it is not a completion."""
    try:
        document = orjson.loads(reply.body)
        assert document["choices"][0]["text"]
    except (orjson.JSONDecodeError, AssertionError, LookupError, TypeError):
        raise Failed(
            f"{endpoint.role} {endpoint.url} answers with no completion: {_said(reply.body)}"
        ) from None
    usage = document.get("usage")
    tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) else None


def _keeps_answers(reply: Reply) -> bool:
    """Whether an answer has the reference with which a prefill engine could load it."""
    params = reference(reply)
    return params is not None and orjson.loads(params).get("do_remote_decode") is True


def _said(body: bytes) -> str:
    """An engine's error message, or the beginning of what it sent instead."""
    try:
        document = orjson.loads(body)
        error = document.get("error", document)
        text = str(error.get("message") or error)
    except (orjson.JSONDecodeError, AttributeError):
        text = body.decode(errors="replace")
    return text if len(text) <= MAX_MESSAGE_CHARACTERS else f"{text[:MAX_MESSAGE_CHARACTERS]}..."
