"""pd-router explain: what would happen to a request, and why. No network.

The router's own parts decide, for a fleet in which all engines are up and idle and have listed no
models.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import orjson
from rich import box
from rich.console import Console
from rich.table import Table

from router.commands.console import cell, make_console
from router.commands.usage import UsageError
from router.core.errors import BadRequest
from router.core.events import FellBack, Probed
from router.core.health import HealthSignal
from router.core.plans.nixl import nixl
from router.core.plans.steps import Call, Check, Lease, Plan
from router.core.prefix.coverage import KnownPrefix
from router.core.prefix.keys import MIN_TOKENS
from router.core.routes import ROUTES
from router.core.routing.auto_threshold import COLD_THRESHOLD
from router.core.routing.ranking import Ranking
from router.core.values import NO_KEYS, Candidate, Decision, Endpoint, Facts, Mode, Role, Route
from router.core.wire import facts as facts_of
from router.settings import Settings, suggestion
from router.web.routing_parts import fleet_of, scheduler_of
from router.web.sources import endpoints_of

__all__ = ["run"]

MAX_TEXT = 200
"""Characters of a prompt that are printed for readers; --json prints all."""


ROUTE_BY_KEY = {
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
    "input": "/v1/responses",
}
"""The route that a body is probably meant for, by the key of its prompt. /v1/messages uses
`messages` too, and /v1/embeddings `input`; for these --route is needed."""


@dataclass(frozen=True, slots=True)
class _Explanation:
    """The decisions for a request."""

    facts: Facts
    decision: Decision
    threshold: int | Literal["auto"]
    strategies: Mapping[Role, str]
    rankings: Mapping[Role, Ranking]
    known: Mapping[Role, tuple[KnownPrefix | None, ...]]
    """What is known of the prompt in each candidate's prefix cache."""
    prefill: Call | None
    """The prefill leg's request; None if there is none, or if another connector writes it."""
    fallbacks: tuple[FellBack, ...]
    """Fallbacks that would occur whatever the engines answer."""
    prefix_cache: str
    """The setting for engines' prefix caches."""
    inferred_from: str | None = None
    """The key of the body from which the route was inferred; None if the user named the route."""


def run(settings: Settings, body: str, route: str | None, *, as_json: bool) -> int:
    """Print the explanation. Raises UsageError for an unusable body or route.

    Without a route, it is inferred from the body.
    """
    facts, key = (_facts(body, route), None) if route is not None else _guessed(body)
    explanation = replace(_explain(settings, facts), inferred_from=key)
    if as_json:
        sys.stdout.write(_json(explanation) + "\n")
    else:
        _print(make_console(), explanation)
    return 0


def _guessed(body: str) -> tuple[Facts, str]:
    """The facts for the inferred route, and the key that it was inferred from."""
    raw = _read(body)
    given = _parsed(body, ROUTES["/v1/chat/completions"], raw).body
    keys = [key for key in ROUTE_BY_KEY if key in given]
    if len(keys) != 1:
        held = " and ".join(keys) or f"none of {', '.join(ROUTE_BY_KEY)}"
        raise UsageError(f"{body}: holds {held}: name its route with --route PATH")
    return _parsed(body, ROUTES[ROUTE_BY_KEY[keys[0]]], raw), keys[0]


def _facts(body: str, path: str) -> Facts:
    if path not in ROUTES:
        near = suggestion(path, ROUTES)
        raise UsageError(f"--route {path}: no such route{near}; {len(ROUTES)} are served")
    return _parsed(body, ROUTES[path], _read(body))


def _parsed(body: str, route: Route, raw: bytes) -> Facts:
    try:
        return facts_of.read(route, b"application/json", raw)
    except BadRequest as error:
        raise UsageError(f"{body}: {error.message}") from None


def _read(body: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if body == "-" else Path(body).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{body}: cannot be read: {reason}") from None


def _explain(settings: Settings, facts: Facts) -> _Explanation:
    fleet = fleet_of(settings, endpoints=endpoints_of(settings))
    for member in fleet:
        fleet.observe(Probed(member.endpoint, HealthSignal.OK), 0.0)
    scheduler = scheduler_of(settings, fleet, tries=False)
    decision = scheduler.decide(facts, 0.0)
    is_remote = decision.mode is Mode.REMOTE
    # The order in which a plan leases engines.
    roles = (Role.DECODE, Role.PREFILL) if is_remote else (Role.DECODE,)
    rankings = {role: scheduler.rank(role, facts) for role in roles}
    chosen = {role: ranking.endpoint for role, ranking in rankings.items()}
    call: Call | None = None
    fallbacks: tuple[FellBack, ...] = ()
    if is_remote and settings.disagg_connector_type == "nixl":
        call, fallbacks = _first_call(nixl(facts), chosen)
    common = settings.load_balancing_strategy
    return _Explanation(
        facts,
        decision,
        settings.routing_threshold,
        {
            Role.PREFILL: settings.prefill_load_balancing_strategy or common,
            Role.DECODE: settings.decode_load_balancing_strategy or common,
        },
        rankings,
        {role: scheduler.known_prefixes(role, facts, of) for role, of in rankings.items()},
        call,
        fallbacks,
        settings.prefix_cache,
    )


def _first_call(
    plan: Plan, chosen: Mapping[Role, Endpoint]
) -> tuple[Call | None, tuple[FellBack, ...]]:
    """Run a plan with the chosen engines up to its first call."""
    fallbacks = []
    step = next(plan)
    while isinstance(step, Check | Lease | FellBack):
        if isinstance(step, FellBack):
            fallbacks.append(step)
        step = plan.send(chosen[step.role] if isinstance(step, Lease) else None)
    plan.close()
    return (step if isinstance(step, Call) else None), tuple(fallbacks)


# JSON output.


def _json(explanation: _Explanation) -> str:
    facts = explanation.facts
    document = {
        "route": facts.route.path,
        "model": facts.model,
        "stream": facts.stream,
        "estimate": {"tokens": facts.tokens, "rule": facts.rule},
        "threshold": explanation.threshold,
        "mode": explanation.decision.mode,
        "reason": explanation.decision.reason,
        "delay": _delay(explanation.decision),
        "prefix": _prefix(explanation),
        "decode": _ranking(explanation, Role.DECODE),
        "prefill": _ranking(explanation, Role.PREFILL),
        "fallbacks": [{"leg": f.leg, "reason": f.reason} for f in explanation.fallbacks],
        "prefill_request": explanation.prefill and _request(explanation.prefill),
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _prefix(explanation: _Explanation) -> dict[str, Any]:
    """How engines' prefix caches are known, and how much of the prompt can be looked up."""
    facts = explanation.facts
    keys = facts.prefix or NO_KEYS
    known = None if facts.known_tokens is None else facts.known_tokens.count
    tokens = keys.ends[-1] if keys.keys else 0
    return {"cache": explanation.prefix_cache, "tokens": tokens, "known_ids": known}


def _delay(decision: Decision) -> dict[str, float] | None:
    """The expected seconds to the first token; None if a rule decided."""
    return None if decision.delay is None else decision.delay._asdict()


_UNKNOWN = dict.fromkeys(KnownPrefix._fields)
"""Of a prompt that is not looked up."""


def _ranking(explanation: _Explanation, role: Role) -> dict[str, Any] | None:
    ranking = explanation.rankings.get(role)
    if ranking is None:
        return None
    return {
        "strategy": explanation.strategies[role],
        "chosen": ranking.endpoint.url,
        "regret": ranking.regret,
        "candidates": [
            {
                "url": candidate.endpoint.url,
                "in_flight": candidate.in_flight,
                "tokens": candidate.tokens,
                "other_requests": candidate.other_requests,
                "slowdown": candidate.slowdown,
                "slow_start_weight": candidate.slow_start_weight,
                "score": score,
                "uncached": uncached,
                **(_UNKNOWN if known is None else known._asdict()),
            }
            for candidate, score, uncached, known in zip(
                ranking.candidates,
                ranking.scores,
                ranking.uncached,
                explanation.known[role],
                strict=True,
            )
        ],
    }


def _request(call: Call) -> dict[str, Any]:
    return {"url": call.endpoint.url + call.path, "body": orjson.Fragment(call.body)}


# Text output.


def _print(console: Console, explanation: _Explanation) -> None:
    facts, decision = explanation.facts, explanation.decision
    key = explanation.inferred_from
    guess = "" if key is None else f" (from the body's `{key}`; --route names another)"
    for name, text in (
        ("route", f"{facts.route.path}{guess}"),
        ("model", facts.model or "-"),
        ("estimate", f"{facts.tokens} input tokens ({facts.rule})"),
        ("threshold", _threshold(explanation.threshold)),
        ("mode", decision.mode),
        ("reason", decision.reason),
        ("prefix", _prefix_text(_prefix(explanation))),
        *(("fallback", f"{fallback.leg}: {fallback.reason}") for fallback in explanation.fallbacks),
    ):
        console.print(cell(f"{name:<11}{text}"))
    for role, ranking in explanation.rankings.items():
        console.print(f"\n{role}, {explanation.strategies[role]} (the lowest score wins):")
        known = explanation.known[role]
        console.print(_ranking_table(ranking, known, is_terminal=console.is_terminal))
    if explanation.prefill is not None:
        console.print(
            cell("", f"POST {explanation.prefill.endpoint.url}{explanation.prefill.path}")
        )
        body = _shortened(orjson.loads(explanation.prefill.body))
        text = orjson.dumps(body, option=orjson.OPT_INDENT_2).decode()
        console.print(cell(*text.split("\n")))


def _prefix_text(prefix: Mapping[str, Any]) -> str:
    if prefix["cache"] == "off":
        return "engines' prefix caches do not count (--prefix-cache off)"
    if not prefix["tokens"]:
        return f"too short to be found in prefix caches (below {MIN_TOKENS} tokens)"
    if prefix["cache"] == "history":
        return f"{prefix['tokens']} tokens, by what was sent where (--prefix-cache history)"
    if prefix["known_ids"] is None:
        return (
            f"{prefix['tokens']} tokens, by what was sent where: the prompt's token ids are not "
            "known, so KV-cache events tell nothing of it until an answer has told them "
            "(return_token_ids)"
        )
    return f"by KV-cache events: the prompt's {prefix['known_ids']} token ids are known"


def _threshold(threshold: int | Literal["auto"]) -> str:
    if threshold == "auto":
        return f"auto ({COLD_THRESHOLD} tokens until both ways are measured)"
    return f"{threshold} tokens"


def _ranking_table(
    ranking: Ranking, known: Sequence[KnownPrefix | None], *, is_terminal: bool
) -> Table:
    table = Table(box=box.SIMPLE_HEAD if is_terminal else None, pad_edge=False)
    table.add_column("")
    table.add_column("url", overflow="fold")
    for column in ("in flight", "tokens", "others", "uncached", "held", "trust", "score"):
        table.add_column(column, justify="right")
    for place, candidate in enumerate(ranking.candidates):
        mark = "chosen" if place == ranking.chosen else ""
        table.add_row(
            mark,
            *_cells(candidate),
            str(ranking.uncached[place]),
            *_prefix_cells(known[place]),
            f"{ranking.scores[place]:g}",
        )
    return table


def _cells(candidate: Candidate) -> tuple[str, str, str, str]:
    others = "-" if candidate.other_requests is None else str(candidate.other_requests)
    return candidate.endpoint.url, str(candidate.in_flight), str(candidate.tokens), others


def _prefix_cells(known: KnownPrefix | None) -> tuple[str, str]:
    return ("-", "-") if known is None else (str(known.held), f"{known.trust:g}")


def _shortened(value: Any) -> Any:
    """A document with long strings and lists shortened, for reading."""
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return f"{value[:MAX_TEXT]}... ({len(value)} characters)"
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        kept = [_shortened(item) for item in value[:MAX_TEXT]]
        return kept if len(value) <= MAX_TEXT else [*kept, f"... ({len(value)} items)"]
    return value
