"""pd-router check: queries every engine, and checks that the pools are compatible."""

import asyncio
from collections.abc import Sequence

from rich import box
from rich.table import Table

from router.commands.compatibility import incompatibilities
from router.commands.console import cell, make_console
from router.commands.found_engines import with_found_engines
from router.commands.kv_check import KVFinding, kv_findings
from router.commands.survey import Finding, survey
from router.commands.trial import trials
from router.core.membership.entry import Target
from router.core.values import Role
from router.net.addresses import SameAddress, same_addresses
from router.settings import Settings

__all__ = ["run"]

COLUMNS = ("role", "url", "health", "version", "models", "max_model_len")


def run(settings: Settings, *, tries: bool = False) -> int:
    """Print the findings. Returns 0 if all is well, 1 if an engine or the whole is unusable.

    With `tries` a request is sent over each pair of engines.
    """
    settings, found = asyncio.run(with_found_engines(settings))
    findings, doubtful = asyncio.run(_ask(settings))
    wrong = incompatibilities(findings, settings.disagg_connector_type)
    console = make_console()
    console.print(_table(findings, is_terminal=console.is_terminal))
    for finding in findings:
        if finding.advice is not None:
            console.print(cell(f"{finding.endpoint.role} {finding.endpoint.url}: {finding.advice}"))
    told = _kv_findings(settings, findings, found, tries=tries)
    for sentence in (*wrong, *(f"warning: {pair.warning}" for pair in doubtful)):
        console.print(cell(sentence))
    for each in told:
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
    false = sum(each.is_bad for each in told)
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
    urls = [*settings.prefill, *settings.decode]
    return await asyncio.gather(survey(settings), same_addresses(urls))


def _table(findings: Sequence[Finding], *, is_terminal: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD if is_terminal else None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, overflow="fold", no_wrap=column not in ("url", "models"))
    for finding in findings:
        known = finding.models or {"-": None}
        models, lengths = list(known), ["-" if n is None else str(n) for n in known.values()]
        if not is_terminal:  # in a pipe, one line per engine
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
    prefill = sum(f.endpoint.role is Role.PREFILL for f in findings)
    return f"All is well: {prefill} prefill and {len(findings) - prefill} decode engines."
