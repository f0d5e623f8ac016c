"""pd-router check: asks every engine, and checks that the pools are compatible."""

import asyncio
from collections.abc import Sequence

from rich import box
from rich.table import Table

from router.commands.compatibility import incompatibilities
from router.commands.console import cell, make_console
from router.commands.survey import Finding, survey
from router.core.values import Role
from router.settings import Settings

__all__ = ["run"]

COLUMNS = ("role", "url", "health", "version", "models", "max_model_len")


def run(settings: Settings) -> int:
    """Print the findings; 0 if all is well, 1 if an engine or a combination is unusable."""
    findings = asyncio.run(survey(settings))
    wrong = incompatibilities(findings, settings.disagg_connector_type)
    console = make_console()
    console.print(_table(findings, is_terminal=console.is_terminal))
    for finding in findings:
        if finding.advice is not None:
            console.print(cell(f"{finding.endpoint.role} {finding.endpoint.url}: {finding.advice}"))
    for sentence in wrong:
        console.print(cell(sentence))
    bad = sum(f.advice is not None for f in findings)
    console.print(_verdict(findings, bad, len(wrong)))
    return 1 if bad or wrong else 0


def _table(findings: Sequence[Finding], *, is_terminal: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD if is_terminal else None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, overflow="fold", no_wrap=column not in ("url", "models"))
    for finding in findings:
        known = finding.models or {"-": None}
        models, lengths = list(known), ["-" if n is None else str(n) for n in known.values()]
        if not is_terminal:  # in a pipe an engine is one line
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


def _verdict(findings: Sequence[Finding], bad: int, wrong: int) -> str:
    if bad:
        return f"{bad} of {len(findings)} engines cannot be used as they are."
    if wrong:
        return "The engines answer, but the pools do not fit together."
    prefill = sum(f.endpoint.role is Role.PREFILL for f in findings)
    return f"All is well: {prefill} prefill and {len(findings) - prefill} decode engines."
