"""`pd-router check` with --prefix-cache events: what each engine announces about its prefix cache,
and with --try whether the announced blocks are found there.

The router's own parts receive the events. A trial sends the same prompt of token ids twice, each
time for one token.
"""

import asyncio
import random
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
import orjson

from router.commands.survey import Finding
from router.core.events import Probed
from router.core.fleet.cache_log import state_text
from router.core.fleet.fleet import Fleet
from router.core.health import HealthSignal
from router.core.judge.member import Member
from router.core.kv_events import EngineCache, SourceState, cached_tokens
from router.core.membership.entry import Target
from router.core.request_facts import PromptTokens
from router.net.engine.engine_session import ERRORS, engine_session, read_bounded, trouble_of
from router.net.tasks import TaskSet
from router.settings import Settings
from router.web.discovery import endpoints_of
from router.web.engine_side import engine_tls_of, kv_source_finder
from router.web.routing import fleet_of

__all__ = ["KVFinding", "kv_findings"]

MAX_ANSWER_BYTES: Final = 1 << 20

CONNECT_SECONDS: Final = 5.0
"""Seconds for connections and replays, which take some milliseconds."""

EVENT_TIMEOUT_SECONDS: Final = 3.0
"""Seconds for an engine to announce what it has computed, which it does at the end of a step."""

POLL_SECONDS: Final = 0.02

PROMPT_TOKENS: Final = 2_200
"""Prompt tokens of a trial: more than two of the largest blocks (1,056 tokens)."""

IDS: Final = range(33, 127)
"""Token ids that every vocabulary has; in most they are single characters."""


class Failed(Exception):
    """A trial failed; the message says why."""


@dataclass(frozen=True, slots=True)
class KVFinding:
    """The result for one engine."""

    line: str
    is_bad: bool
    """Whether the announced blocks were not found."""


async def kv_findings(
    settings: Settings, findings: Sequence[Finding], found: Sequence[Target], *, tries: bool
) -> list[KVFinding]:
    """The results for the usable engines, in their order. `found`: engines from discovery. Raises
    SettingsError if the extra is not installed."""
    fleet = fleet_of(settings, endpoints=endpoints_of(settings))
    ports = {target.endpoint: target.kv_events_port for target in found}
    for member in fleet:
        member.entry = member.entry._replace(kv_events_port=ports.get(member.endpoint))
    models = {f.endpoint: f.models or {} for f in findings if f.advice is None}
    for endpoint in models:
        fleet.observe(Probed(endpoint, HealthSignal.OK), time.monotonic())
    tls, tasks = engine_tls_of(settings), TaskSet()
    finder = kv_source_finder(settings, fleet, tls, tasks)
    assert finder is not None, "events are used"
    finder.start(logs=False)
    try:
        members = [member for member in fleet if member.endpoint in models]
        await _until(lambda: all(map(_is_live, members)), CONNECT_SECONDS)
        async with engine_session(
            settings.engine_api_key, tls.context, timeout_seconds=settings.prefill_timeout
        ) as session:
            checks = (_Check(session, fleet, m, models[m.endpoint]) for m in members)
            return await asyncio.gather(*(check.run(tries=tries) for check in checks))
    finally:
        await tasks.close()
        await finder.close()


def _cache(member: Member) -> EngineCache:
    assert member.prompts.events is not None, "each has one where events are used"
    return member.prompts.events


def _is_live(member: Member) -> bool:
    return _cache(member).state is SourceState.LIVE


async def _until(holds: Callable[[], bool], seconds: float) -> None:
    """Wait for a condition, for up to `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:  # noqa: ASYNC110 - of many parts
        await asyncio.sleep(POLL_SECONDS)


class _Check:
    """The check of one engine. `models`: its models with their max_model_len."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        fleet: Fleet,
        member: Member,
        models: Mapping[str, int | None],
    ) -> None:
        self._session = session
        self._fleet = fleet
        self._member = member
        self._models = models
        self._cache = _cache(member)

    async def run(self, *, tries: bool) -> KVFinding:
        """Run the check. Returns the finding."""
        trial, is_bad = "", False
        if tries and self._models and _is_live(self._member):
            try:
                trial = await self._try()
            except Failed as error:
                trial, is_bad = str(error), True
        endpoint, state = self._member.endpoint, self._cache.state
        parts = [state_text(self._cache, state)]
        if state is SourceState.LIVE:
            parts.append(self._form())
        text = "; ".join([*parts, *([trial] if trial else [])])
        mark = "" if state is SourceState.LIVE else "warning: "
        return KVFinding(f"{mark}{endpoint.role} {endpoint.url} {text}", is_bad)

    def _form(self) -> str:
        """The format of the received events."""
        source = self._cache.sources[0]
        if source.form is None:
            return "it has announced nothing yet"
        return f"events are {source.form}, blocks have {source.blocks.block_size} tokens"

    async def _try(self) -> str:
        """Try a prompt. Returns the text of the finding. Raises Failed."""
        model, longest = next(iter(self._models.items()))
        count = max(1, min(PROMPT_TOKENS, (longest or PROMPT_TOKENS) - 2))
        ids = random.SystemRandom().choices(IDS, k=count)
        data = array("I", ids).tobytes()
        prompt = PromptTokens(data, count, None, None, is_whole=True)
        await self._ask(model, ids)
        await _until(lambda: self._announced(prompt) > 0, EVENT_TIMEOUT_SECONDS)
        announced = self._announced(prompt)
        if not announced:
            raise Failed(
                f"it announces nothing of a prompt of {count} tokens that it has computed: are "
                "these its events?"
            )
        found = cached_tokens(await self._ask(model, ids))
        if not found:
            return (
                f"of a prompt of {count} tokens it announces {announced}, and its answers do not "
                "tell how many it finds: start it with --enable-prompt-tokens-details, or what is "
                "announced is not compared with what is found"
            )
        size = max(source.blocks.block_size or 0 for source in self._cache.sources)
        if not announced - size <= found <= announced:
            raise Failed(f"of a prompt of {count} tokens it announces {announced}, finds {found}")
        if found < announced:
            return (
                f"of a prompt of {count} tokens it announces {announced}, and finds {found}: with "
                "EAGLE or MTP vLLM computes the last block again"
            )
        return f"of a prompt of {count} tokens it announces {announced}, and finds as many"

    def _announced(self, prompt: PromptTokens) -> int:
        events = self._fleet.cache_events
        assert events is not None, "they are used"
        return self._cache.held(events.blocks.match(prompt)) or 0

    async def _ask(self, model: str, ids: Sequence[int]) -> bytes:
        """Send a prompt and return the response. Raises Failed."""
        url = self._member.endpoint.url
        headers = {"content-type": "application/json"}
        body = orjson.dumps({"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0})
        try:
            async with self._session.post(
                f"{url}/v1/completions", data=body, headers=headers, allow_redirects=False
            ) as response:
                answer = await read_bounded(response, MAX_ANSWER_BYTES)
        except ERRORS as error:
            raise Failed(f"it does not answer a prompt: {trouble_of(error).advice}") from None
        if response.status != 200:
            raise Failed(f"it answers {response.status} to a prompt of token ids")
        return answer
