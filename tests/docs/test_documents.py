"""The documents agree with the code."""

import argparse
import ast
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
import yaml

from benchmarks import __main__ as bench
from benchmarks.gate import judge, options
from benchmarks.gate.ab import options as ab_options
from benchmarks.gate.cluster import command as cluster
from router import cli
from router.commands.migrate import OTHERS
from router.commands.settings_table import block, table
from router.core import errors
from router.core.errors import RouterError
from router.core.values import FailureKind
from router.core.wire import exposition, facts
from router.core.wire.api_errors import error_body
from router.simulator import __main__ as simulator
from router.simulator.virtual.policies import POLICY_NAMES
from router.simulator.virtual.scenarios.catalogue import SCENARIOS
from tests.docs.blocks import ROOT, blocks, documents, links, tables
from tests.docs.migrate_tables import written

DOCS = ROOT / "docs"

PLACES = ("router", "core", "net", "web", "plans", "settings", "telemetry", "tests", "benchmarks")
"""Folders whose files documents name."""

MADE = frozenset({"tests/fuzz/found", "tests/fuzz/crashes"})
"""Folders that a command makes."""


def text_of(name: str) -> str:
    """A document of docs/."""
    return (DOCS / name).read_text(encoding="utf-8")


def anchors(text: str) -> set[str]:
    """What GitHub makes of the headings."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_somewhere(path: Path, link: str) -> bool:
    """Whether a document's link names an existing file, and heading if any."""
    target, _, anchor = link.partition("#")
    found = (path.parent / target).resolve() if target else path
    if not found.exists():
        return False
    return not anchor or anchor in anchors(found.read_text(encoding="utf-8"))


def test_links_lead_somewhere() -> None:
    for path in documents():
        inner = [link for link in links(path.read_text(encoding="utf-8")) if "://" not in link]
        assert [link for link in inner if not leads_somewhere(path, link)] == [], path


def test_code_blocks_are_fenced_with_a_language() -> None:
    for path in documents():
        fenced = list(blocks(path))
        assert [found.place for found in fenced if not found.language] == []
        prose = path.read_text(encoding="utf-8")
        for found in fenced:
            prose = prose.replace(found.text, "")
        assert [line for line in prose.splitlines() if line.startswith("    ")] == [], path


def test_json_and_yaml_can_be_read() -> None:
    for found in (found for path in documents() for found in blocks(path)):
        if found.language == "json":
            json.loads(found.text)
        elif found.language == "yaml":
            yaml.safe_load(found.text)


def test_files_and_folders_named_in_prose_exist() -> None:
    bases = (ROOT, ROOT / "router", ROOT / "router/core")
    for path in (*documents(), ROOT / "ARCHITECTURE.md"):
        prose = path.read_text(encoding="utf-8")
        named = set(re.findall(rf"`((?:{'|'.join(PLACES)})/[\w/.-]*)`", prose))
        missing = {each for each in named if not any((base / each).exists() for base in bases)}
        wrong = {each for each in missing - MADE if not re.search("NAME|TARGET", each)}
        assert wrong == set(), path


def test_every_document_is_linked_from_the_readme_or_from_one_that_is() -> None:
    linked, todo = set(), [ROOT / "README.md"]
    while todo:
        path = todo.pop()
        if path not in linked and path.suffix == ".md":
            linked.add(path)
            targets = (link.partition("#")[0] for link in links(path.read_text(encoding="utf-8")))
            todo += [(path.parent / target).resolve() for target in targets if "://" not in target]
    assert set(documents()) - linked == set()


# Flags.

FOREIGN = frozenset(
    {
        # vLLM's
        *("--exclude-tools-when-tool-choice-none", "--kv-transfer-config", "--max-num-queued-reqs"),
        *("--enable-prompt-tokens-details", "--kv-events-config", "--ec-transfer-config"),
        *("--enable-return-routed-experts", "--max-num-seqs", "--stream-interval"),
        *("--enable-scale-out", "--kv-offloading-size"),
        # SGLang's and llama.cpp's
        *("--enable-metrics", "--enable-metrics-for-all-schedulers", "--decode-log-interval"),
        *("--alias", "--metrics", "--parallel"),
        "--enable-feature",  # Prometheus'
        *("--backend", "--endpoint", "--tokenizer"),  # load generators'
        "--write",  # of router.commands.settings_table
    }
)
"""Other programs' flags, in prose."""


def flags_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """All flags of a command and of the commands below it."""
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from flags_of(below)


PARSERS = (
    *(cli._parser(()), bench.parser(), options.parser(), ab_options.parser(), cluster.parser()),
    *(judge._parser("judge", ""), simulator._parser()),
)


THEIRS = {name for other in OTHERS.values() for row in other.rows for name in row.theirs.split()}
"""Flags of other routers, in the tables of docs/migrate.md."""


def test_flags_in_prose_exist() -> None:
    known = {flag for parser in PARSERS for flag in flags_of(parser)} | FOREIGN
    for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))):
        inline = set(re.findall(r"`([^`\n]+)`", path.read_text(encoding="utf-8")))
        if path.name == "migrate.md":
            inline -= THEIRS
        named = {flag for code in inline for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", code)}
        # `--decoder-*` names several.
        assert {flag for flag in named - known if not flag.endswith("-")} == set(), path


# Tables.


def test_the_settings_table_is_the_one_that_the_settings_make() -> None:
    """If not: python -m router.commands.settings_table --write"""
    assert block(text_of("settings.md")) == table()


def test_the_tables_of_other_routers_are_those_that_migrate_reads() -> None:
    """If not: python -m tests.docs.migrate_tables --write"""
    assert text_of("migrate.md") == written(text_of("migrate.md"))
    assert [f"<!-- migrate: {name} -->" in text_of("migrate.md") for name in OTHERS] == [True] * 6


def rows_with(name: str, head: str) -> Iterator[list[str]]:
    """The rows of a document's tables whose first column has this head."""
    for first, *rows in tables(text_of(name)):
        if first[0] == head:
            yield from rows


def test_every_error_of_the_router_is_documented() -> None:
    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, RouterError) and kind is not RouterError
    ]
    documented = [(row[0], row[1].strip("`")) for row in rows_with("errors.md", "status")]
    assert len(set(documented)) == len(documented)
    assert set(documented) == {(str(kind.status), kind.type) for kind in kinds}


def test_anthropics_type_of_every_error_is_documented() -> None:
    documented = {
        status: kind.strip("`")
        for statuses, kind in rows_with("errors.md", "of the status")
        for status in statuses.split(", ")
    }
    for kind in RouterError.__subclasses__():
        body = orjson.loads(error_body(kind("x"), b"/v1/messages"))
        row = documented.get(str(kind.status), documented["any other 4xx"])
        assert body["error"]["type"] == row


def words_in(cell: str) -> set[str]:
    """Words in backquotes."""
    return set(re.findall(r"`([^`]+)`", cell))


def test_every_reason_of_a_fallback_is_documented() -> None:
    documented = {word for row in rows_with("errors.md", "reason") for word in words_in(row[0])}
    given = {*FailureKind, "busy", "status_4xx", "status_5xx", "retry_budget"}
    for path in (ROOT / "router/core").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id="FellBack"), args=[_, reason]):
                    values = (getattr(each, "value", None) for each in ast.walk(reason))
                    given |= {value for value in values if isinstance(value, str)}
    assert documented == given


def test_every_reason_for_a_direct_request_is_documented() -> None:
    documented = {word for row in rows_with("connectors.md", "reason") for word in words_in(row[0])}
    # By the prompt, by the engines' version, and of large bodies only.
    others = {"several_prompts", "media_url", "forced_tool", "nested_too_deep"}
    assert documented == others | {name for name, _ in facts._DIRECT_RULES}


def test_every_scenario_and_policy_of_the_simulator_is_documented() -> None:
    named = {word for row in rows_with("simulate.md", "scenario") for word in words_in(row[0])}
    assert named == set(SCENARIOS)
    policies = text_of("simulate.md").partition("## Policies")[2].partition("##")[0]
    assert words_in(policies) == set(POLICY_NAMES)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("## A `b`: c/d, e\n", {"a-b-cd-e"}),
        ("```sh\n# no heading\n```\n# Yes\n", {"yes"}),
    ],
)
def test_anchors_are_githubs(text: str, found: set[str]) -> None:
    assert anchors(text) == found


def test_the_series_of_other_engines_are_documented() -> None:
    named = set(re.findall(r"`((?:sglang|trtllm|llamacpp)[:_]\w+)`", text_of("engines.md")))
    read = {name.decode() for name in exposition.SERIES if not name.startswith(b"vllm:")}
    assert named == read
