"""Waits until the endpoint gives a real answer and every expected worker is usable.

As in the validator (reference 1.6): one short unary chat completion with content. A 200 from
/health does not count.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.gate.endpoint.control_client import Answer, ControlClient, Unanswered

# Limit in bytes of an answer of four tokens.
BODY_LIMIT = 8192
# Time-out of /version and /v1/models, which a server answers at once.
VERSION_S = 5.0
# Statuses that waiting does not change: a wrong request, key, port or model.
PERMANENT = frozenset({400, 401, 403, 404})
# So many of one kind in a row end the wait; a single one may come from a rollout.
LEAST_PERMANENT = 3
# Most models that are named.
MAX_MODELS = 8

Unusable = Callable[[], Awaitable[str | None]]
"""Why workers are missing; None if none is."""


class NotReady(Exception):
    """Not ready in time; the text is the last reason. `served`: workers were missing only."""

    def __init__(self, text: str, *, served: bool) -> None:
        super().__init__(text)
        self.served = served


@dataclass(frozen=True, slots=True)
class ReadinessLimits:
    """Limits of the wait for a usable endpoint, in seconds: for one try, between two tries, and in
    all (reference 1.6)."""

    tries: float = 120.0
    between: float = 10.0
    window: float = 300.0


def question(model: str) -> dict[str, Any]:
    """The validator's request."""
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


def served(answer: Answer) -> str | None:
    """Why this is not a valid answer; None if it is."""
    if answer.status != 200:
        return f"status {answer.status}{_said(answer)}"
    found = answer.json()
    if not isinstance(found, dict):
        return "the answer is not a JSON object"
    try:
        content = found["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        return "the answer has no choices[0].message.content"
    if not isinstance(content, str) or not content:
        return "the answer has no content (a reasoning parser may have left it empty)"
    return None


def _said(answer: Answer) -> str:
    found = answer.json()
    error = found.get("error") if isinstance(found, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return f": {message[:200]}" if isinstance(message, str) else ""


async def wait(
    control_client: ControlClient,
    model: str,
    unusable: Unusable,
    limits: ReadinessLimits,
    tell: Callable[[str], None],
) -> None:
    """Return once the endpoint serves and its workers are usable. Raises NotReady, at once if the
    endpoint refuses the request for good."""
    end = time.monotonic() + limits.window
    serves, wrong, refused = False, "it was never asked", 0
    while (left := end - time.monotonic()) > 0:
        if not serves:
            limit, before = min(limits.tries, left), wrong
            status, why = await _try(control_client, model, limit)
            serves, wrong = why is None, why or ""
            refused = 0 if status not in PERMANENT else refused + 1 if wrong == before else 1
            if refused == LEAST_PERMANENT:
                raise NotReady(
                    f"{wrong}, {refused} times: {await _advice(control_client, status)}",
                    served=False,
                )
        if serves:
            found = await unusable()
            if found is None:
                return
            wrong = found
        tell(f"not ready: {wrong}; asking again every {limits.between:g} s")
        await asyncio.sleep(max(min(limits.between, end - time.monotonic()), 0.0))
    waited = f"after {limits.window:g} s"
    if serves:
        raise NotReady(f"under-provisioned {waited}: {wrong}", served=True)
    text = f"timed out waiting for inference endpoint to serve requests ({waited}): {wrong}"
    raise NotReady(text, served=False)


async def _try(
    control_client: ControlClient, model: str, timeout: float
) -> tuple[int | None, str | None]:
    """The status, and why the answer is not good; None: no status, a good one."""
    try:
        answer = await control_client.endpoint(
            "/v1/chat/completions", question(model), timeout=timeout, limit=BODY_LIMIT
        )
    except Unanswered as error:
        return None, str(error)
    return answer.status, served(answer)


async def _advice(control_client: ControlClient, status: int | None) -> str:
    """What to do about a request that is refused for good."""
    if status in (401, 403):
        return "give the key by --api-key-env or --api-key-file"
    if status == 400:
        return "the endpoint does not take the request"
    try:
        models = await control_client.endpoint("/v1/models", timeout=VERSION_S)
        ready = await control_client.endpoint("/ready", timeout=VERSION_S)
    except Unanswered as error:
        return f"and /v1/models has no answer either ({error})"
    if models.status == 200:
        return f"the endpoint serves {_names(models) or 'no model'}; give one of them by --model"
    if ready.status in (200, 503):  # pd-router's: vLLM has no such route
        return "this is the router's admin port; give the public one by --url"
    return "nothing is served there; give the base URL, without a path, by --url"


def _names(models: Answer) -> str:
    """The models that are listed."""
    found = models.json()
    cards = found.get("data") if isinstance(found, dict) else None
    named = [card.get("id") for card in cards or () if isinstance(card, dict)]
    more = f" and {len(named) - MAX_MODELS} more" if len(named) > MAX_MODELS else ""
    return ", ".join(map(str, named[:MAX_MODELS])) + more


def check_warm_up(answers: Iterable[tuple[int | None, str | None]]) -> None:
    """Raise NotReady if all of these statuses and errors are one that waiting does not change."""
    found = list(answers)
    [(status, error), *others] = set(found) or {(None, None)}
    if status in PERMANENT and not others and len(found) >= LEAST_PERMANENT:
        text = f"all {len(found)} warm-up requests failed in the same way: {error or status}"
        raise NotReady(text, served=False)


async def version(control_client: ControlClient) -> str | None:
    """The version that the endpoint reports; None if it reports none."""
    try:
        answer = await control_client.endpoint("/version", timeout=VERSION_S, limit=BODY_LIMIT)
    except Unanswered:
        return None
    found = answer.json() if answer.status == 200 else None
    told = found.get("version") if isinstance(found, dict) else None
    return told[:80] if isinstance(told, str) else None


async def count(control_client: ControlClient, model: str, text: str) -> int | None:
    """Tokens of a text by the server's own tokenizer, as vLLM offers it; None where it does not."""
    body = {"model": model, "prompt": text, "add_special_tokens": False}
    try:
        answer = await control_client.endpoint("/tokenize", body, timeout=10.0)
    except Unanswered:
        return None
    found = answer.json() if answer.status == 200 else None
    tokens = found.get("count") if isinstance(found, dict) else None
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) else None
