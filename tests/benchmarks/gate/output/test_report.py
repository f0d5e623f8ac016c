from html.parser import HTMLParser

import pytest

from benchmarks.gate.analysis.constraints import Constraints
from benchmarks.gate.analysis.metrics import ErrorCount, Metrics, summarise
from benchmarks.gate.analysis.records import Diagnosis, Kind
from benchmarks.gate.analysis.verdict import judge, series
from benchmarks.gate.output.report import CAPTIONS, MEANING, Judged, html
from benchmarks.gate.output.results import Result
from tests.benchmarks.gate.runs import loop, round_robin

ASKED = Constraints(">= 500", "<= 300")
VOID = ("meta", "br", "img")


class Balance(HTMLParser):
    """Remembers what is open, and complains of what is closed without having been."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID and tag != "th":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == "th":
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


ROWS = {"endpoint": "http://r<1>, model m", "client": "2 cores"}


def page(*names: str, kind: Kind = Kind.BACKUP, metrics: Metrics | None = None) -> str:
    seen = loop(round_robin)
    figures = metrics or summarise(seen)
    verdict = judge(figures, ASKED)
    why = Diagnosis(kind, "w<2>", "w<2> held 61 & more.")
    runs = [
        Judged(
            Result(name, figures, None if metrics else seen, provenance={**ROWS, "policy": name}),
            verdict,
            why,
            {"workers": b"png"},
        )
        for name in names
    ]
    return html(runs, series([verdict] * len(names), [figures] * len(names)), ASKED)


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("names", [("a",), ("a", "b", "c")])
def test_the_page_is_well_formed_for_every_kind_of_run(kind: Kind, names: tuple[str, ...]) -> None:
    checked = Balance()
    text = page(*names, kind=kind)
    checked.feed(text)
    assert (checked.wrong, checked.open) == ([], [])
    assert kind.value in text
    assert MEANING[kind].split("'")[0] in text


def test_nothing_from_outside_becomes_markup() -> None:
    text = page("<script>alert(1)</script>", "b")
    assert "<script" not in text
    assert "w&lt;2&gt; held 61 &amp; more." in text


def test_several_runs_are_a_table_first() -> None:
    text = page("first", "second")
    assert text.index("2 of 2 passed") < text.index("<td>first</td>") < text.index("<figure>")


def test_provenance_is_a_table_before_the_figures() -> None:
    text = page("alone")
    assert text.count("Who, what, how") == 1
    for cell in ("http://r&lt;1&gt;, model m", "2 cores", "alone"):
        assert f"<td class='text'>{cell}</td>" in text
    assert text.index("Who, what, how") < text.index("<h2>Figures</h2>")


def test_common_notes_of_several_runs_appear_once() -> None:
    text = page("first", "second")
    assert text.count("<td class='text'>2 cores</td>") == 1
    for name in ("first", "second"):
        assert text.count(f"<td class='text'>{name}</td>") == 1


def test_missing_figures_are_dashes() -> None:
    nothing = Metrics(errors=9, requests=0, error_summary=(ErrorCount(503, "status 503", 9),))
    text = page("dead", metrics=nothing, kind=Kind.ERRORS)
    assert "– tokens/sec" in text
    assert "9 failed" in text
    assert "<td>status 503</td><td>503</td><td>9</td>" in text


def test_every_picture_has_a_caption() -> None:
    assert set(CAPTIONS) == {"workers", "first-tokens", "throughput", "distributions"}
