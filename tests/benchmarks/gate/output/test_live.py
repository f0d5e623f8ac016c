from array import array
from io import StringIO

from rich.console import Console

from benchmarks.gate.output.live import Board, Figures, Live, table
from benchmarks.gate.traffic.load import Progress


def progress(ended: int, chunks: int, *firsts: float, flying: int = 4, errors: int = 0) -> Progress:
    return Progress(flying, ended, errors, chunks, array("d", firsts))


def test_processes_are_added_up() -> None:
    board = Board()
    board.begin("smoke", 40, 100.0)
    board.hear(0, progress(2, 20, 0.1, 0.3))
    board.hear(1, progress(1, 10, flying=3, errors=1))
    board.hear(0, progress(1, 10, flying=5))
    figures = board.figures(102.0)
    assert (figures.done, figures.total, figures.errors, figures.in_flight) == (4, 40, 1, 8)
    assert (figures.requests_rate, figures.chunks_rate) == (2.0, 20.0)
    assert (figures.ttft_p50_ms, figures.worst) == (200.0, None)


def test_rates_are_of_the_last_seconds() -> None:
    board = Board()
    board.begin("smoke", 40, 0.0)
    board.hear(0, progress(30, 300))
    for second in range(1, 9):
        board.figures(float(second))
    assert board.figures(9.0).requests_rate == 0.0
    assert board.figures(9.0).done == 30


def test_a_new_phase_begins_with_nothing() -> None:
    board = Board()
    board.begin("warm-up", 4, 0.0)
    board.hear(0, progress(4, 40, 0.1))
    board.begin("smoke", 40, 1.0)
    figures = board.figures(2.0)
    assert (figures.phase, figures.done, figures.ttft_p50_ms) == ("smoke", 0, None)


FIGURES = Figures("smoke", 4, 40, 2.0, 1000.0, 8, 1, 20.0, 30.5, ("http://w2", 54.0))


def test_a_log_line_has_all_fields() -> None:
    assert FIGURES.line == (
        "smoke: 4 of 40, 2.0 requests/s, 1000 chunks/s, 8 in flight, 1 errors, "
        "TTFT p50 20 ms p99 30 ms, fullest worker http://w2 (54)"
    )
    nothing = Board()
    nothing.begin("smoke", 40, 0.0)
    assert nothing.figures(1.0).line.endswith("TTFT none yet")


def test_the_display_agrees() -> None:
    out = StringIO()
    Console(file=out, width=100).print(table(FIGURES))
    for words in ("4 of 40, 1 failed", "1,000 chunks", "p50 20 ms", "http://w2: 54 in flight"):
        assert words in out.getvalue()


async def test_texts_are_unchanged() -> None:
    out = StringIO()
    async with Live(Board(), Console(file=out, width=20), drawn=True) as live:
        live.say("[a] line that is longer than the console is wide: 12")
    assert out.getvalue() == "[a] line that is longer than the console is wide: 12\n"


async def test_a_terminal_is_drawn_on_and_left_tidy() -> None:
    out = StringIO()
    board = Board()
    board.begin("smoke", 40, 0.0)
    async with Live(board, Console(file=out, force_terminal=True), drawn=True) as live:
        live.say("a line")
    assert "a line" in out.getvalue()
    assert "\x1b[?25h" in out.getvalue()  # the cursor is shown again
