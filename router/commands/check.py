"""pd-router check: queries every engine, and checks that the pools are compatible."""

import asyncio
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from router.commands.console import cell, make_console, make_table
from router.commands.kv_check import KVFinding, kv_findings
from router.commands.survey import Finding, survey, with_found_engines
from router.commands.trial import trials
from router.core.membership.entry import Target
from router.core.values import Role
from router.net.addresses import SameAddress, same_addresses
from router.settings import Settings

__all__ = ["incompatibilities", "run"]

COLUMNS = ("role", "url", "health", "version", "models", "max_model_len")


def run(settings: Settings, *, tries: bool = False) -> int:
    """Print the findings. Returns 0 if all is well, 1 if an engine or the whole is unusable.

    With `tries` a request is sent over each pair of engines.
    """
    settings, found = asyncio.run(with_found_engines(settings))
    findings, doubtful = asyncio.run(_ask(settings))
    wrong = incompatibilities(findings, settings.disagg_connector_type)
    console = make_console()
    console.print(_table(console, findings))
    for finding in findings:
        if finding.advice is not None:
            console.print(cell(f"{finding.endpoint.role} {finding.endpoint.url}: {finding.advice}"))
    events = _kv_findings(settings, findings, found, tries=tries)
    for sentence in (*wrong, *(f"warning: {pair.warning}" for pair in doubtful)):
        console.print(cell(sentence))
    for each in events:
        console.print(cell(each.line))
    tried = trials(settings, findings) if tries else []
    for trial in tried:
        console.print(cell(trial.line))
    failed = sum(trial.trouble is not None for trial in tried)
    bad = sum(f.advice is not None for f in findings)
    if tries and not tried:
        console.print("No pair of engines could be tried.")
    elif tries:
        console.print(f"{len(tried) - failed} of {len(tried)} trial requests went well.")
    false = sum(each.is_bad for each in events)
    if not any(finding.endpoint.role is Role.DECODE for finding in findings):
        console.print("There is no decode engine, so nothing can be served.")
        return 1
    console.print(_verdict(findings, bad, len(wrong), failed, false))
    return 1 if bad or wrong or failed or false or (tries and not tried) else 0


def _kv_findings(
    settings: Settings, findings: Sequence[Finding], found: Sequence[Target], *, tries: bool
) -> Sequence[KVFinding]:
    if settings.prefix_cache != "events":
        return ()
    return asyncio.run(kv_findings(settings, findings, found, tries=tries))


async def _ask(settings: Settings) -> tuple[list[Finding], list[SameAddress]]:
    """The answers of the engines, and URLs that may belong to the same engine."""
    urls = [*settings.prefill, *settings.decode, *settings.encode]
    return await asyncio.gather(survey(settings), same_addresses(urls))


def _table(console: Console, findings: Sequence[Finding]) -> Table:
    table = make_table(console)
    for column in COLUMNS:
        table.add_column(column, overflow="fold", no_wrap=column not in ("url", "models"))
    for finding in findings:
        known = finding.models or {"-": None}
        models, lengths = list(known), ["-" if n is None else str(n) for n in known.values()]
        if not console.is_terminal:  # in a pipe, one line per engine
            models, lengths = [",".join(models)], [",".join(lengths)]
        table.add_row(
            finding.endpoint.role,
            cell(finding.endpoint.url),
            cell(finding.health, style="green" if finding.advice is None else "red"),
            cell(finding.version or "-"),
            cell(*models),
            cell(*lengths),
        )
    return table


def _verdict(findings: Sequence[Finding], bad: int, wrong: int, failed: int, false: int) -> str:
    if bad:
        return f"{bad} of {len(findings)} engines cannot be used as they are."
    if wrong:
        return "The engines answer, but the pools do not fit together."
    if failed:
        return "The engines answer, but not all of them work together."
    if false:
        return "The engines answer, but not all KV-cache events are right."
    prefill, decode, encode = (sum(f.endpoint.role is role for f in findings) for role in Role)
    if encode:
        return f"All is well: {prefill} prefill, {decode} decode and {encode} encode engines."
    return f"All is well: {prefill} prefill and {decode} decode engines."


def incompatibilities(findings: Sequence[Finding], connector: str) -> list[str]:
    """One sentence per incompatibility of prefill and decode engines.

    Unknown versions and models are ignored, because those findings have their own advice.
    """
    prefill = [f for f in findings if f.endpoint.role is Role.PREFILL]
    decode = [f for f in findings if f.endpoint.role is Role.DECODE]
    if not prefill:
        return []
    versions = _versions([*prefill, *decode]) if connector == "nixl" else []
    return [*versions, *_models(prefill, decode)]


def _versions(findings: Sequence[Finding]) -> list[str]:
    """Different vLLM versions: NixlConnector compares versions when engines connect, and refuses to
    transfer KV caches."""
    known = sorted({f.version for f in findings if f.version is not None})
    if len(known) < 2:
        return []
    where = "; ".join(
        f"{version} on {', '.join(f.endpoint.url for f in findings if f.version == version)}"
        for version in known
    )
    return [f"NIXL needs the same vLLM version on prefill and decode engines, found {where}."]


def _models(prefill: Sequence[Finding], decode: Sequence[Finding]) -> list[str]:
    if any(f.models is None for f in (*prefill, *decode)):
        return []
    found = []
    for model in sorted(_names(prefill) | _names(decode)):
        if model not in _names(prefill):
            found.append(
                f"No prefill engine serves {model}: decode engines will compute its long prompts "
                "themselves. Start a prefill engine with it."
            )
        elif model not in _names(decode):
            found.append(
                f"No decode engine serves {model}: requests for it are answered with 404. Start "
                "a decode engine with it, or give both sides the same --served-model-name."
            )
        else:
            found += _lengths(model, prefill, decode)
    return found


def _lengths(model: str, prefill: Sequence[Finding], decode: Sequence[Finding]) -> list[str]:
    """Different max_model_len: a prefill engine's 400 goes to the client, even if a decode engine
    would accept the prompt."""
    shortest = min(_told(model, prefill), default=None)
    longest = max(_told(model, decode), default=None)
    if shortest is None or longest is None or shortest >= longest:
        return []
    return [
        f"A prefill engine takes {shortest} tokens of {model}, a decode engine {longest}: longer "
        "prompts are refused. Start them with the same --max-model-len."
    ]


def _names(findings: Iterable[Finding]) -> set[str]:
    return {model for f in findings for model in f.models or ()}


def _told(model: str, findings: Iterable[Finding]) -> list[int]:
    lengths = ((f.models or {}).get(model) for f in findings)
    return [length for length in lengths if length is not None]
