"""An explanation as JSON, and as text for readers."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import orjson
from rich import box
from rich.console import Console
from rich.table import Table

from router.commands.console import cell
from router.commands.explanation import Explanation
from router.core.candidate import Candidate
from router.core.plans.steps import Call
from router.core.prefix.keys import MIN_TOKENS
from router.core.prefix.trust import KnownPrefix
from router.core.request_facts import NO_KEYS
from router.core.routing.auto_threshold import COLD_THRESHOLD
from router.core.routing.ranking import Ranking
from router.core.values import Decision, Role

__all__ = ["as_json", "show"]

MAX_TEXT = 200
"""Characters of a prompt that are printed for readers; --json prints all."""


def as_json(explanation: Explanation) -> str:
    """One JSON document."""
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


def _prefix(explanation: Explanation) -> dict[str, Any]:
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


def _ranking(explanation: Explanation, role: Role) -> dict[str, Any] | None:
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


def _request(call: Call) -> dict[str, Any]:
    return {"url": call.endpoint.url + call.path, "body": orjson.Fragment(call.body)}


def show(console: Console, explanation: Explanation) -> None:
    """Print it for readers."""
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
    others = _others(candidate)
    shown = "-" if others is None else str(others)
    return candidate.endpoint.url, str(candidate.in_flight), str(candidate.tokens), shown


def _others(candidate: Candidate) -> int | None:
    return None if candidate.other_requests is None else round(candidate.other_requests)


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
