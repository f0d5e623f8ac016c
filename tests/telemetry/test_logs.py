"""Log lines: whole, one each, and not forgeable by clients or engines."""

import asyncio
import fcntl
import itertools
import json
import logging
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from select import PIPE_BUF
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from router.core.events import Continuation, Decided, FellBack, LegFailed, RequestEnded
from router.core.values import Decision, Endpoint, FailureKind, Mode, PromptDelay, Role
from router.core.wire import headers
from router.telemetry.access_log import AccessLog, _fields
from router.telemetry.log_words import pairs
from router.telemetry.logs import BatchedHandler, LineWriter, configure

QUICK = examples(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

ANY_TEXT = st.text() | st.text(st.characters(categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1)


@pytest.fixture(autouse=True)
def _logging_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root, uvicorn = logging.getLogger(), logging.getLogger("uvicorn.error")
    before = root.level, root.handlers[:], uvicorn.level
    for name in ("logThreads", "logProcesses", "logMultiprocessing", "_srcfile"):
        monkeypatch.setattr(logging, name, getattr(logging, name))
    # configure() closes the handlers that it finds, and pytest's are among them.
    root.handlers = []
    yield
    for handler in root.handlers:
        handler.close()
    root.level, root.handlers, uvicorn.level = before


@pytest.fixture
def lines(capfd):
    """Configures logging as asked, logs by calling a function, and returns the lines."""

    def run(log, form: str = "text", level: str = "info") -> list[str]:
        configure(level, form)
        log()
        [handler] = logging.getLogger().handlers
        handler.flush()
        out, err = map(str, capfd.readouterr())
        assert out == ""
        assert err == "" or err.endswith("\n")
        assert "Logging error" not in err
        return err.split("\n")[:-1]

    return run


def a_request(**changes: object) -> RequestEnded:
    record = RequestEnded("id-1", "/v1/completions", started=100.0)
    record.ended = 101.5
    for name, value in changes.items():
        setattr(record, name, value)
    return record


WHOLE = {
    "model": "tiny",
    "tokens": 7,
    "mode": Mode.REMOTE,
    "reason": "at_or_above_threshold",
    "encode": Endpoint("http://e0", Role.ENCODE),
    "prefill": Endpoint("http://p0", Role.PREFILL),
    "decode": Endpoint("http://d0", Role.DECODE),
    "fallbacks": (FellBack(Role.PREFILL, "busy"), FellBack(Role.DECODE, "refused")),
    "status": 200,
    "outcome": "ok",
    "api_key": "team-a",
    "continuation": Continuation("continued", 9, 1, 0.75),
    "queue_seconds": 0.5,
    "prefill_seconds": 0.25,
    "first_byte": 100.5,
    "chunks": 3,
    "bytes_out": 99,
}


def parse(line: str) -> dict[str, str]:
    """The words of a text line, read by the documented rule only."""
    time, level, message, rest = re.fullmatch(r"(\S+) (\S+) +(\w+) (.*)", line).groups()  # type: ignore[union-attr]
    fields = re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|[^ "=]*)(?: |$)', rest)
    assert " ".join(f"{key}={value}" for key, value in fields) == rest
    assert len({key for key, _ in fields}) == len(fields)
    unquoted = {k: json.loads(v) if v.startswith('"') else v for k, v in fields}
    return {"time": time, "level": level, "message": message, **unquoted}


# A request's line.


def test_a_request_is_one_line_of_text(lines):
    [line] = lines(lambda: AccessLog().observe([a_request(**WHOLE)]))
    fields = parse(line)
    assert fields.pop("time").endswith("Z")
    assert fields == {
        "level": "WARNING",
        "message": "request",
        "id": "id-1",
        "route": "/v1/completions",
        "status": "200",
        "outcome": "ok",
        "api_key": "team-a",
        "model": "tiny",
        "mode": "remote_prefill",
        "reason": "at_or_above_threshold",
        "tokens": "7",
        "encode": "http://e0",
        "prefill": "http://p0",
        "decode": "http://d0",
        "fallbacks": "prefill:busy,decode:refused",
        "continuation": "continued",
        "pause_s": "0.7500",
        "queue_s": "0.5000",
        "prefill_s": "0.2500",
        "first_byte_s": "0.5000",
        "total_s": "1.5000",
        "chunks": "3",
        "bytes": "99",
    }


def test_a_request_is_one_line_of_json(lines):
    [line] = lines(lambda: AccessLog().observe([a_request(**WHOLE)]), "json")
    fields = json.loads(line)
    assert fields.pop("time").endswith("Z")
    assert fields == {
        "level": "warning",
        "logger": "pd_router.access",
        "message": "request",
        "id": "id-1",
        "route": "/v1/completions",
        "status": 200,
        "outcome": "ok",
        "api_key": "team-a",
        "model": "tiny",
        "mode": "remote_prefill",
        "reason": "at_or_above_threshold",
        "tokens": 7,
        "encode": "http://e0",
        "prefill": "http://p0",
        "decode": "http://d0",
        "fallbacks": "prefill:busy,decode:refused",
        "continuation": "continued",
        "pause_s": 0.75,
        "queue_s": 0.5,
        "prefill_s": 0.25,
        "first_byte_s": 0.5,
        "total_s": 1.5,
        "chunks": 3,
        "bytes": 99,
        "error": None,
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_batched_requests_keep_their_end_times(form, lines):
    log, now = AccessLog(), time.monotonic()

    def tell() -> None:
        for ago in (7.5, 0.25):
            log.observe([a_request(ended=now - ago)])

    texts = [json.loads(e)["time"] if form == "json" else e.split()[0] for e in lines(tell, form)]
    first, second = map(datetime.fromisoformat, texts)
    assert (second - first).total_seconds() == pytest.approx(7.25, abs=0.002)


def test_unknown_values_are_not_in_a_text_line(lines):
    [line] = lines(lambda: AccessLog().observe([a_request()]))
    assert not {"model", "mode", "prefill", "decode", "first_byte_s", "error"} & set(parse(line))


@pytest.mark.parametrize(
    ("level", "count"), [("debug", 1), ("info", 1), ("warning", 0), ("error", 0)]
)
def test_requests_are_logged_at_info(level, count, lines):
    assert len(lines(lambda: AccessLog().observe([a_request()]), level=level)) == count


def test_other_events_are_counted_not_logged(lines):
    failed = LegFailed(Endpoint("http://d0", Role.DECODE), FailureKind.REFUSED)
    assert lines(lambda: AccessLog().observe([failed])) == []


@pytest.mark.parametrize("form", ["text", "json"])
def test_time_is_utc_to_the_millisecond(form, lines):
    before = datetime.now(UTC)
    [line] = lines(lambda: logging.getLogger("router").info("x"), form)
    text = json.loads(line)["time"] if form == "json" else line.split()[0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
    seconds = (datetime.fromisoformat(text) - before).total_seconds()
    assert -0.001 <= seconds <= 60


# Nobody breaks or forges it.


@QUICK
@given(text=ANY_TEXT)
@pytest.mark.parametrize("name", ["model", "error"])
def test_client_input_stays_in_its_field(name, text, lines):
    [line] = lines(lambda: AccessLog().observe([a_request(**{name: text})]))
    assert line.isprintable()
    assert line.isascii()
    fields = parse(line)
    # Two halves of a surrogate pair are one character in JSON.
    assert fields[name] == json.loads(json.dumps(text))
    plain = parse(lines(lambda: AccessLog().observe([a_request()]))[0])
    assert set(fields) - {name} == set(plain) - {name}


@QUICK
@given(request_id=st.from_regex(headers._REQUEST_ID, fullmatch=True))
def test_any_id_that_is_accepted_stays_in_its_field(request_id, lines):
    [line] = lines(lambda: AccessLog().observe([a_request(request_id=request_id)]))
    assert parse(line)["id"] == request_id


@pytest.mark.parametrize("text", ["a status=500", "", '"', "x\n2026-01-01T00:00:00.000Z INFO    y"])
def test_text_like_another_field_or_line_is_quoted(text, lines):
    [line] = lines(lambda: AccessLog().observe([a_request(model=text)]))
    assert f"model={json.dumps(text)} " in line


@QUICK
@given(text=ANY_TEXT)
def test_a_message_is_one_line(text, lines):
    [line] = lines(lambda: logging.getLogger("router").warning("%s", text))
    assert line.isprintable()


@QUICK
@given(text=ANY_TEXT)
def test_a_traceback_is_indented_for_any_message(text, lines):
    def fail() -> None:
        logging.getLogger("router").error("request %s failed", "id-1", exc_info=ValueError(text))

    head, *rest = lines(fail)
    assert head.endswith("ERROR   request id-1 failed")
    assert rest
    assert all(line.startswith("    ") and line.isprintable() for line in rest)


# JSON is valid.


@QUICK
@given(text=ANY_TEXT)
def test_any_text_makes_valid_json(text, lines):
    def log() -> None:
        AccessLog().observe([a_request(model=text)])
        logging.getLogger("router").error("%s", text, exc_info=ValueError(text))

    request, failure = (json.loads(line) for line in lines(log, "json"))
    whole = text.encode(errors="backslashreplace").decode()
    assert request["model"] == failure["message"] == whole
    assert failure["exception"].startswith("ValueError")


@pytest.mark.parametrize(
    ("value", "logged"),
    [(2**70, str(2**70)), (math.nan, None), (Role.DECODE, "decode"), (object, "<class 'object'>")],
)
def test_any_value_makes_valid_json(value, logged, lines):
    log = logging.getLogger("router")
    [line] = lines(lambda: log.info("x", extra={"fields": {"value": value}}), "json")
    assert json.loads(line, parse_constant=pytest.fail)["value"] == logged


# What is set up.


@pytest.mark.parametrize(("level", "count"), [("debug", 1), ("warning", 1), ("error", 0)])
def test_uvicorn_warns_unless_warnings_are_off_and_never_chats(level, count, lines):
    def log() -> None:
        logging.getLogger("uvicorn.error").info("started")
        logging.getLogger("uvicorn.error").warning("invalid")

    assert len(lines(log, level=level)) == count


def test_lines_go_to_standard_error_once_however_often_it_is_set_up(lines):
    configure("info", "json")
    assert len(lines(lambda: logging.getLogger("router").info("x"))) == 1


@QUICK
@given(
    changes=st.fixed_dictionaries(
        {},
        optional={
            "request_id": st.from_regex(headers._REQUEST_ID, fullmatch=True),
            "model": ANY_TEXT,
            "error": ANY_TEXT,
            "prefill": st.just(Endpoint("http://p0", Role.PREFILL)),
            "decode": st.just(Endpoint("http://d0", Role.DECODE)),
            "fallbacks": st.just((FellBack(Role.PREFILL, "timeout"), FellBack(Role.DECODE, "x"))),
            "api_key": st.none() | st.just("team-a"),
            "continuation": st.builds(Continuation, st.just("no_ids"), pause=st.floats(0, 9)),
            "queue_seconds": st.none() | st.floats(0, 1e3),
            "prefill_seconds": st.floats(0, 1e3),
            "first_byte": st.floats(100, 1e3),
            "mode": st.just(Mode.REMOTE),
            "reason": st.just("at_threshold"),
        },
    )
)
def test_the_fast_path_writes_the_formatters_line(changes: dict[str, Any]) -> None:
    record = a_request(**changes)
    line = AccessLog()._text(record)
    level = "WARNING" if record.is_bad else "INFO   "
    assert line.partition(f" {level} ")[2] == f"request {pairs(_fields(record))}"


BAD = [
    {"status": 503, "outcome": "error"},
    {"status": 200, "outcome": "broken"},
    {"status": 200, "outcome": "ok", "fallbacks": (FellBack(Role.PREFILL, "refused"),)},
]
FINE = [
    {"status": 200, "outcome": "ok"},
    {"status": 400, "outcome": "error"},
    {"status": 0, "outcome": "client_left"},
]


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("changes", BAD)
def test_user_visible_failures_are_warnings(lines, form: str, changes: dict[str, Any]) -> None:
    def log() -> None:
        AccessLog().observe([a_request(**changes)])

    [line] = lines(log, form, level="warning")
    assert " WARNING request " in line or json.loads(line)["level"] == "warning"


@pytest.mark.parametrize("changes", FINE)
def test_a_request_without_one_gives_none(lines, changes: dict[str, Any]) -> None:
    def log() -> None:
        AccessLog().observe([a_request(**changes)])

    assert lines(log, level="warning") == []
    [line] = lines(log)
    assert " INFO    request " in line


def test_a_sampled_decision_has_both_sums(lines):
    decided = Decided("id-1", Decision(Mode.REMOTE, "cheaper_remote", PromptDelay(0.5, 0.25)))
    (line,) = lines(lambda: AccessLog().observe([decided]))
    assert line.endswith(
        "decision id=id-1 mode=remote_prefill reason=cheaper_remote direct_s=0.5000 remote_s=0.2500"
    )
    assert lines(lambda: AccessLog().observe([decided]), level="warning") == []


# Processes: all lines are written, once each.

LOGS = """
import asyncio, logging, os
from router.telemetry.logs import LineWriter
from router.telemetry.logs import BatchedHandler, configure
configure("info", "text")
log = logging.getLogger("router")
"""

FORKS = """
for number in range(10):
    log.info("before %d", number)
child = os.fork()
log.info("%s", "after in the parent" if child else "after in the child")
if child:
    print("forked", flush=True)
    os.waitpid(child, 0)
else:
    logging.shutdown()
    os._exit(0)
"""

ENDS = """
async def main():
    log.info("the last line")
    raise SystemExit(3)
asyncio.run(main())
"""


def test_a_forked_process_leaves_its_parents_lines_to_it() -> None:
    reading, writing = os.pipe()
    size = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writing, b"x" * (size - 1) + b"\n")  # it is full: all lines wait when it forks
    with subprocess.Popen(
        # Python 3.12 and later warn of forks beside threads, on the full pipe.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", LOGS + FORKS],
        stdout=subprocess.PIPE,
        stderr=writing,
    ) as process:
        os.close(writing)
        assert process.stdout is not None
        assert process.stdout.readline() == b"forked\n"
        with open(reading) as pipe:
            _, *lines = pipe.read().splitlines()
    assert process.returncode == 0
    said = sorted(line.partition("INFO    ")[2] for line in lines)
    wanted = [f"before {number}" for number in range(10)]
    assert said == sorted([*wanted, "after in the parent", "after in the child"])


def test_the_last_lines_of_a_process_are_written() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOGS + ENDS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert done.stderr.endswith("INFO    the last line\n")


def test_a_process_without_standard_error_loses_its_lines_only() -> None:
    command = f"exec {sys.executable} -c '{LOGS + ENDS}' 2>&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
    assert done.returncode == 3


HALF = PIPE_BUF // 2
LENGTHS = st.sampled_from([0, HALF - 1, HALF, PIPE_BUF - 1, PIPE_BUF]) | st.integers(0, 9000)


@given(st.lists(LENGTHS, max_size=12))
def test_whole_lines_leave_in_blocks_that_a_pipe_takes_at_once(sizes: list[int]) -> None:
    blocks: list[bytes] = []

    async def log() -> None:
        handler = BatchedHandler()
        for size in sizes:
            handler.add(size * "x")
        handler.flush()
        handler.close()

    with mock.patch.object(LineWriter, "write", lambda _, block: blocks.append(block)):
        asyncio.run(log())
    assert b"".join(blocks) == b"".join(size * b"x" + b"\n" for size in sizes)
    assert all(len(block) <= PIPE_BUF or block.count(b"\n") == 1 for block in blocks)
    assert all(len(one) + len(next_) > PIPE_BUF for one, next_ in itertools.pairwise(blocks))
