"""pd-router explain: what would happen to a request, and why, decided by the router's own parts.

No network: all engines are considered up and idle, and to have listed no models.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from router.commands.console import cell, make_console, make_table
from router.commands.flags import UsageError
from router.core.candidate import Candidate
from router.core.errors import BadRequest
from router.core.events import FellBack, Probed
from router.core.health import HealthSignal
from router.core.plans.steps import Call, Check, Lease, Plan
from router.core.prefix.keys import MIN_TOKENS
from router.core.prefix.trust import KnownPrefix
from router.core.request_facts import NO_KEYS, Facts, ImageRules
from router.core.routes import ROUTES
from router.core.routing.auto_threshold import COLD_THRESHOLD
from router.core.routing.ranking import Ranking
from router.core.values import Decision, Endpoint, Mode, Role, Route
from router.core.wire import facts as facts_of
from router.core.wire.media import media_parts
from router.settings import Settings, suggestion
from router.web.discovery import endpoints_of
from router.web.routing import ENCODE_STRATEGY, PLANS, fleet_of, image_rules_of, scheduler_of

__all__ = ["run"]

ROUTE_BY_KEY = {
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
    "input": "/v1/responses",
}
"""The route that a body is probably meant for, by the key of its prompt. /v1/messages uses
`messages` too, and /v1/embeddings `input`; for these --route is needed."""


def run(settings: Settings, body: str, route: str | None, *, as_json: bool) -> int:
    """Print the explanation. Raises UsageError for an unusable body or route, or without
    a decode engine.

    Without a route, it is inferred from the body.
    """
    rules = image_rules_of(settings)
    facts, key = _guessed(body, rules) if route is None else (_facts(body, route, rules), None)
    explanation = _explain(settings, facts, key)
    if as_json:
        sys.stdout.write(_document(explanation) + "\n")
    else:
        _show(make_console(), explanation)
    return 0


def _guessed(body: str, rules: ImageRules | None) -> tuple[Facts, str]:
    """The facts for the inferred route, and the key that it was inferred from."""
    raw = _read(body)
    given = _parsed(body, ROUTES["/v1/chat/completions"], raw).body
    keys = [key for key in ROUTE_BY_KEY if key in given]
    if len(keys) != 1:
        held = " and ".join(keys) or f"none of {', '.join(ROUTE_BY_KEY)}"
        raise UsageError(f"{body}: holds {held}: name its route with --route PATH")
    return _parsed(body, ROUTES[ROUTE_BY_KEY[keys[0]]], raw, rules), keys[0]


def _facts(body: str, path: str, rules: ImageRules | None) -> Facts:
    if path not in ROUTES:
        near = suggestion(path, ROUTES)
        raise UsageError(f"--route {path}: no such route{near}; {len(ROUTES)} are served")
    return _parsed(body, ROUTES[path], _read(body), rules)


def _parsed(body: str, route: Route, raw: bytes, rules: ImageRules | None = None) -> Facts:
    try:
        return facts_of.read(route, b"application/json", raw, image_rules=rules)
    except BadRequest as error:
        raise UsageError(f"{body}: {error.message}") from None


def _read(body: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if body == "-" else Path(body).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{body}: cannot be read: {reason}") from None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The decisions for a request."""

    settings: Settings
    facts: Facts
    decision: Decision
    rankings: Mapping[Role, Ranking]
    known: Mapping[Role, tuple[KnownPrefix | None, ...]]
    """What is known of the prompt in each candidate's prefix cache."""
    prefill: Call | None
    """The prefill leg's request; None if there is none, or if another connector writes it."""
    fallbacks: tuple[FellBack, ...]
    """Fallbacks that would occur whatever the engines answer."""
    inferred_from: str | None
    """The key of the body from which the route was inferred; None if the user named the route."""


def _explain(settings: Settings, facts: Facts, inferred_from: str | None) -> Explanation:
    """Decide the request as a router that has just started would. Raises UsageError if no decode
    engine is known without network."""
    endpoints = endpoints_of(settings, with_draining=False)
    if all(endpoint.role is not Role.DECODE for endpoint in endpoints):
        raise UsageError(
            "no decode engine is named, or all are draining: name one with --decode or in "
            "--engines-file, because explain uses no network to find them"
        )
    fleet = fleet_of(settings, endpoints=endpoints)
    for member in fleet:
        fleet.observe(Probed(member.endpoint, HealthSignal.OK), 0.0)
    scheduler = scheduler_of(settings, fleet, tries=False)
    decision = scheduler.decide(facts, 0.0)
    is_remote = decision.mode is Mode.REMOTE
    # The order in which a plan leases engines.
    roles = [Role.DECODE, Role.PREFILL] if is_remote else [Role.DECODE]
    if scheduler.encodes and media_parts(facts):
        roles.append(Role.ENCODE)
    rankings = {role: scheduler.rank(role, facts) for role in roles}
    chosen = {role: ranking.endpoint for role, ranking in rankings.items()}
    call: Call | None = None
    fallbacks: tuple[FellBack, ...] = ()
    plan = PLANS.get(settings.disagg_connector_type) if is_remote else None
    if plan is not None:
        call, fallbacks = _first_call(plan(facts), chosen)
    return Explanation(
        settings,
        facts,
        decision,
        rankings,
        {role: scheduler.known_prefixes(role, facts, of) for role, of in rankings.items()},
        call,
        fallbacks,
        inferred_from,
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


MAX_TEXT = 200
"""Characters of a prompt that are printed for readers; --json prints all."""


def _document(explanation: Explanation) -> str:
    """One JSON document."""
    facts, decision, call = explanation.facts, explanation.decision, explanation.prefill
    document = {
        "route": facts.route.path,
        "model": facts.model,
        "stream": facts.stream,
        "estimate": {"tokens": facts.tokens, "rule": facts.rule},
        "threshold": explanation.settings.routing_threshold,
        "mode": decision.mode,
        "reason": decision.reason,
        # The expected seconds to the first token; None if a rule decided.
        "delay": None if decision.delay is None else decision.delay._asdict(),
        "prefix": _prefix(explanation),
        "decode": _ranking(explanation, Role.DECODE),
        "prefill": _ranking(explanation, Role.PREFILL),
        "encode": _ranking(explanation, Role.ENCODE),
        "fallbacks": [{"leg": f.leg, "reason": f.reason} for f in explanation.fallbacks],
        "prefill_request": call
        and {"url": call.endpoint.url + call.path, "body": orjson.Fragment(call.body)},
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _prefix(explanation: Explanation) -> dict[str, Any]:
    """How engines' prefix caches are known, and how much of the prompt can be looked up."""
    facts = explanation.facts
    keys = facts.prefix or NO_KEYS
    known = None if facts.known_tokens is None else facts.known_tokens.count
    tokens = keys.ends[-1] if keys.keys else 0
    return {"cache": explanation.settings.prefix_cache, "tokens": tokens, "known_ids": known}


def _strategy(settings: Settings, role: Role) -> str:
    if role is Role.ENCODE:
        return ENCODE_STRATEGY
    return getattr(settings, f"{role}_load_balancing_strategy") or settings.load_balancing_strategy


_UNKNOWN = dict.fromkeys(KnownPrefix._fields)
"""Of a prompt that is not looked up."""


def _ranking(explanation: Explanation, role: Role) -> dict[str, Any] | None:
    ranking = explanation.rankings.get(role)
    if ranking is None:
        return None
    return {
        "strategy": _strategy(explanation.settings, role),
        "chosen": ranking.endpoint.url,
        "regret": ranking.regret,
        "candidates": [
            {
                "url": candidate.endpoint.url,
                "in_flight": candidate.in_flight,
                "tokens": candidate.tokens,
                "other_requests": _others(candidate),
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


def _show(console: Console, explanation: Explanation) -> None:
    """Print it for readers."""
    facts, decision = explanation.facts, explanation.decision
    key = explanation.inferred_from
    guess = "" if key is None else f" (from the body's `{key}`; --route names another)"
    tokens = explanation.settings.routing_threshold
    threshold = f"{tokens} tokens"
    if tokens == "auto":
        threshold = f"auto ({COLD_THRESHOLD} tokens until both ways are measured)"
    for name, text in (
        ("route", f"{facts.route.path}{guess}"),
        ("model", facts.model or "-"),
        ("estimate", f"{facts.tokens} input tokens ({facts.rule})"),
        ("threshold", threshold),
        ("mode", decision.mode),
        ("reason", decision.reason),
        ("prefix", _prefix_text(_prefix(explanation))),
        *(("fallback", f"{fallback.leg}: {fallback.reason}") for fallback in explanation.fallbacks),
    ):
        console.print(cell(f"{name:<11}{text}"))
    for role, ranking in explanation.rankings.items():
        console.print(f"\n{role}, {_strategy(explanation.settings, role)} (the lowest score wins):")
        known = explanation.known[role]
        console.print(_ranking_table(console, ranking, known))
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
            "known, so KV-cache events show nothing of it until an answer has named them "
            "(return_token_ids)"
        )
    return f"by KV-cache events: the prompt's {prefix['known_ids']} token ids are known"


def _ranking_table(
    console: Console, ranking: Ranking, known: Sequence[KnownPrefix | None]
) -> Table:
    table = make_table(console)
    table.add_column("")
    table.add_column("url", overflow="fold")
    for column in ("in flight", "tokens", "others", "uncached", "held", "trust", "score"):
        table.add_column(column, justify="right")
    for place, candidate in enumerate(ranking.candidates):
        others, prefix = _others(candidate), known[place]
        table.add_row(
            "chosen" if place == ranking.chosen else "",
            candidate.endpoint.url,
            str(candidate.in_flight),
            str(candidate.tokens),
            "-" if others is None else str(others),
            str(ranking.uncached[place]),
            *(("-", "-") if prefix is None else (str(prefix.held), f"{prefix.trust:g}")),
            f"{ranking.scores[place]:g}",
        )
    return table


def _others(candidate: Candidate) -> int | None:
    return None if candidate.other_requests is None else round(candidate.other_requests)


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
