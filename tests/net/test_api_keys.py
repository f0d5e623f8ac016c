"""Requests without a key get no answer; keys change at run time and appear nowhere."""

import logging
from pathlib import Path
from typing import Any

import pytest

from router.core.errors import LimitReached
from router.core.limits.key_limits import KeyUsage
from router.core.membership.roster import Roster
from router.net.processes.shared_state import SharedState
from router.net.watched_files import KeyFile
from tests.net.client import Answer, request
from tests.net.engine import chunk, json_reply, sse_head
from tests.net.harness import Harness, Running, eventually
from tests.net.payloads import COMPLETIONS, DONE, STREAM, completion, event, token

KEY, OTHER = b"sk-0123456789abcdef", b"sk-fedcba9876543210"
BEARER = (b"authorization", b"Bearer " + KEY)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with one key."""
    path = tmp_path / "keys"
    path.write_bytes(b"team-a " + KEY)
    return path


async def guarded(harness: Harness, file: Path, **settings: Any) -> Running:
    """A router that requires keys."""
    engine = await harness.engine()
    engine.answer_all(lambda call: call.send(json_reply({})))
    return await harness.router(engine, api_key_file=file, **settings)


def test_a_byte_order_mark_is_no_mistake(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert KeyFile(file).keys.names == {"team-a"}


@pytest.mark.parametrize("header", [None, (b"authorization", b"Bearer " + OTHER)])
@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/embeddings", "/tokenize", "/v1/nonsense"])
async def test_without_a_key_there_is_nothing(
    harness: Harness, file: Path, path: str, header: tuple[bytes, bytes] | None
) -> None:
    router = await guarded(harness, file)
    answer = await router.ask(path, completion(), *([header] if header else []))
    assert answer.status == 401
    assert answer.error["type"] == "AuthenticationError"
    assert answer.values(b"www-authenticate") == [b"Bearer"]
    assert OTHER not in answer.body
    client = await router.client()
    assert (await client.get("/v1/models")).status == 401
    assert (await client.get("/health")).status == 200
    assert harness.engines[0].seen == 0


@pytest.mark.parametrize("header", [BEARER, (b"x-api-key", KEY)])
async def test_with_a_key_all_is_served_and_the_engine_never_sees_it(
    harness: Harness, file: Path, header: tuple[bytes, bytes]
) -> None:
    engine, router = await harness.single(api_key_file=file)
    client = await router.client()
    for _ in range(2):  # the second head is a known one
        await client.send(request(COMPLETIONS, completion(), header))
        call = await engine.call()
        assert KEY not in b"".join(value for _, value in call.headers)
        call.send(json_reply({}))
        assert (await client.answer()).status == 200
    records = await router.records(2)
    assert [record.api_key for record in records] == ["team-a", "team-a"]


async def test_names_are_counted_and_keys_appear_nowhere(
    harness: Harness, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    router = await guarded(harness, file)
    await router.ask(COMPLETIONS, completion("x" * 400), BEARER)
    await router.ask(COMPLETIONS, completion(), (b"x-api-key", OTHER))
    text = await router.router.counts.exposition()
    assert b'pd_router_api_key_requests_total{api_key="team-a",outcome="ok"} 1.0' in text
    assert b'pd_router_api_key_input_tokens_total{api_key="team-a"} 100.0' in text
    for secret in (KEY, OTHER):
        assert secret not in text
        assert secret.decode() not in caplog.text
        assert secret.decode() not in repr(router.router.settings)


@pytest.mark.parametrize(
    ("limit", "what"), [(b"requests=1", b"requests"), (b"tokens=1", b"tokens")]
)
async def test_a_used_up_key_gets_429_and_others_do_not(
    harness: Harness, file: Path, limit: bytes, what: bytes
) -> None:
    _write(file, b"team-a %b %b\nteam-b %b" % (KEY, limit, OTHER))
    router = await guarded(harness, file)
    client = await router.client()
    assert (await client.ask(COMPLETIONS, completion("x" * 400), BEARER)).status == 200
    answer = await client.ask(COMPLETIONS, completion(), BEARER)
    assert answer.status == 429
    assert answer.error["type"] == "RateLimitError"
    assert 0 < int(answer.values(b"retry-after")[0]) <= 6000
    assert answer.values(b"x-ratelimit-remaining-" + what) == [b"0"]
    assert harness.engines[0].seen == 1
    assert (await client.ask(COMPLETIONS, completion(), _bearer(OTHER))).status == 200
    records = await router.records(3)
    assert [record.api_key for record in records] == ["team-a", "team-a", "team-b"]


async def test_refusals_are_counted_by_key_and_limit(harness: Harness, file: Path) -> None:
    _write(file, b"team-a %b requests=1 streams=9\nteam-b %b" % (KEY, OTHER))
    router = await guarded(harness, file)
    name = b"pd_router_api_key_refusals_total{"
    text = await router.router.counts.exposition()
    assert name + b'api_key="team-a",limit="requests"} 0.0' in text
    assert name + b'api_key="team-a",limit="streams"} 0.0' in text
    for status in (200, 429, 429):
        assert (await router.ask(COMPLETIONS, completion(), BEARER)).status == status
    assert (await router.ask(COMPLETIONS, completion(), _bearer(OTHER))).status == 200
    text = await router.router.counts.exposition()
    assert name + b'api_key="team-a",limit="requests"} 2.0' in text
    assert name + b'api_key="team-a",limit="streams"} 0.0' in text
    assert text.count(b"\n" + name) == 2
    _write(file, b"team-a %b requests=1\nteam-b %b tokens=5" % (KEY, OTHER))
    assert router.router.handler.network.api_keys is not None
    router.router.handler.network.api_keys.refresh()
    text = await router.router.counts.exposition()
    assert name + b'api_key="team-b",limit="tokens"} 0.0' in text


ENGINES_OWN = b"x-ratelimit-limit-requests: 5", b"X-RateLimit-Remaining-Requests: 4"


def _limits_told(answer: Answer) -> dict[bytes, bytes]:
    """The limit headers of an answer; each appears once."""
    found = [(name, value) for name, value in answer.headers if name.startswith(b"x-ratelimit-")]
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_every_answer_to_a_key_with_limits_has_the_routers_own_limit_headers(
    harness: Harness, file: Path, *, is_stream: bool
) -> None:
    _write(file, b"team-a %b requests=60 tokens=5000\nteam-b %b" % (KEY, OTHER))
    engine, router = await harness.single(api_key_file=file)
    client = await router.client()
    for key in (KEY, OTHER):
        await client.send(request(COMPLETIONS, STREAM if is_stream else completion(), _bearer(key)))
        call = await engine.call()
        if is_stream:
            call.send(sse_head(*ENGINES_OWN), chunk(token("a")), chunk(DONE))
            call.end()
        else:
            call.send(json_reply({}, 200, *ENGINES_OWN))
        answer = await client.answer()
        assert answer.status == 200
        told = _limits_told(answer)
        if key == OTHER:
            assert told[b"x-ratelimit-limit-requests"] == b"5"
            continue
        assert told[b"x-ratelimit-limit-requests"] == b"60"
        assert told[b"x-ratelimit-remaining-requests"] in (b"59", b"60")
        assert told[b"x-ratelimit-limit-tokens"] == b"5000"
        assert told.keys() == {
            b"x-ratelimit-%b-%b" % (word, what)
            for word in (b"limit", b"remaining", b"reset")
            for what in (b"requests", b"tokens")
        }


USAGE = {"usage": {"prompt_tokens": 2, "completion_tokens": 3000, "total_tokens": 3002}}


@pytest.mark.parametrize("is_told", [False, True])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_generated_tokens_are_charged_by_usage_or_by_count(
    harness: Harness, file: Path, *, is_stream: bool, is_told: bool
) -> None:
    _write(file, b"team-a %b tokens=5000" % KEY)
    engine, router = await harness.single(api_key_file=file)
    client = await router.send(COMPLETIONS, STREAM if is_stream else completion(), BEARER)
    call = await engine.call()
    if is_stream:
        call.send(sse_head(), *(chunk(token("a")) for _ in range(9)))
        call.send(*([chunk(event({"choices": [], **USAGE}))] if is_told else []), chunk(DONE))
        call.end()
    else:
        call.send(json_reply({"choices": [], **(USAGE if is_told else {})}))
    assert (await client.answer()).status == 200
    record = await router.record()
    counted = record.chunks if is_stream else 0
    assert record.answer_tokens == (3000 if is_told else counted)
    usages = router.router.handler.network.api_keys
    assert usages is not None
    taken = sum(usages.usages["team-a"]._cells.tokens) * 5000 / 60
    assert taken == pytest.approx(record.tokens + record.answer_tokens)


async def test_errors_to_a_key_with_limits_have_its_headers_too(
    harness: Harness, file: Path
) -> None:
    _write(file, b"team-a %b requests=60" % KEY)
    router = await guarded(harness, file)
    answer = await router.ask(COMPLETIONS, b"{", BEARER)
    assert answer.status == 400
    assert _limits_told(answer)[b"x-ratelimit-remaining-requests"] == b"60"
    assert not _limits_told(await router.ask(COMPLETIONS, b"{", _bearer(OTHER)))


async def test_a_full_queue_reports_zero_remaining_requests_for_every_key(
    harness: Harness, file: Path
) -> None:
    _write(file, b"team-a %b requests=60" % KEY)
    _, router = await harness.single(api_key_file=file, max_in_flight=1, queue_size=1)
    gate = router.router.handler.network.admission
    assert gate is not None
    for _ in range(2):
        await router.send(COMPLETIONS, completion(), BEARER)
        await eventually(lambda: gate.admission.in_flight == 1)
    await eventually(lambda: gate.admission.waiting == 1)
    answer = await router.ask(COMPLETIONS, completion(), BEARER)
    assert answer.status == 429
    assert _limits_told(answer)[b"x-ratelimit-remaining-requests"] == b"0"


@pytest.mark.parametrize("end", ["done", "reset", "left", "refused"])
async def test_stream_counts_until_its_end(harness: Harness, file: Path, end: str) -> None:
    _write(file, b"team-a %b streams=1" % KEY)
    engine, router = await harness.single(api_key_file=file)
    one, other = await router.client(), await router.client()
    await one.send(request(COMPLETIONS, STREAM, BEARER))
    call = await engine.call()
    assert (await other.ask(COMPLETIONS, STREAM, BEARER)).status == 429
    if end == "refused":
        call.send(json_reply({"error": {"message": "no"}}, 400))
    elif end == "reset":
        call.stream(token("a"))
        await (await one.begin()).until(token("a"))
        call.reset()
    elif end == "left":
        one.leave()
    else:
        call.stream_whole(token("a"), DONE)
    await router.is_quiet()
    await other.send(request(COMPLETIONS, STREAM, BEARER))
    call = await engine.call()
    call.stream_whole(token("b"), DONE)
    assert (await other.answer()).body == token("b") + DONE


def test_limits_change_with_the_file_and_usage_is_kept(file: Path) -> None:
    file.write_bytes(b"team-a %b requests=4 streams=8" % KEY)
    key_file = KeyFile(file)
    usage = key_file.usages["team-a"]
    usage.enter(1, 0.0, is_stream=True)
    file.write_bytes(b"team-a %b streams=1" % KEY)
    key_file.refresh()
    assert key_file.usages["team-a"] is usage
    with pytest.raises(LimitReached, match="as many streams"):
        usage.enter(1, 0.0, is_stream=True)
    file.write_bytes(b"team-a " + KEY)
    key_file.refresh()
    assert key_file.usages == {}


def test_a_limit_that_only_the_leader_has_read_is_shared_when_the_others_look(file: Path) -> None:
    file.write_bytes(b"team-a %b requests=4" % KEY)
    state = SharedState(2, Roster(8, 60.0))
    other = KeyFile(file, state.key_rows(1))
    usage = other.usages["team-a"]
    other.refresh()
    assert [_is_let_in(usage) for _ in range(3)] == [True, True, False]  # its share
    leader = KeyFile(file, state.key_rows(0))
    other.refresh()
    taken = [_is_let_in(each) for each in (usage, leader.usages["team-a"]) for _ in range(3)]
    assert taken == [True, True, True, True, False, False]
    file.write_bytes(b"team-a %b requests=4\nteam-b %b requests=2" % (KEY, OTHER))
    other.refresh()
    leader.refresh()
    other.refresh()
    taken = [_is_let_in(each.usages["team-b"]) for each in (other, leader, other, leader)]
    assert taken == [True, True, False, False]
    state.close()


def _is_let_in(usage: KeyUsage) -> bool:
    try:
        usage.enter(1, 0.0, is_stream=False)
    except LimitReached:
        return False
    return True


async def test_a_key_that_is_taken_away_is_good_no_longer(harness: Harness, file: Path) -> None:
    router = await guarded(harness, file)
    client = await router.client()
    assert (await client.ask(COMPLETIONS, completion(), BEARER)).status == 200
    _write(file, b"team-b " + OTHER)
    key_file = router.router.handler.network.api_keys
    assert key_file is not None
    await eventually(lambda: key_file.keys.names == {"team-b"})
    assert (await client.ask(COMPLETIONS, completion(), BEARER)).status == 401


def test_wrong_file_keeps_the_old_keys(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    key_file = KeyFile(file)
    file.write_bytes(b"team-b short")
    for _ in range(3):
        key_file.refresh()
    file.write_bytes(b"team-b shorter")  # the same mistake
    key_file.refresh()
    assert len(caplog.records) == 1
    assert "line 1" in caplog.text
    file.unlink()
    for _ in range(3):
        key_file.refresh()
    assert len(caplog.records) == 2
    assert key_file.keys.names == {"team-a"}
    file.write_bytes(b"team-c " + OTHER)
    key_file.refresh()
    assert key_file.keys.names == {"team-c"}


def test_an_unreadable_file_is_logged_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    key_file = KeyFile(file)
    file.unlink()
    file.mkdir()  # as a missing permission does: stat works, reading does not
    for _ in range(3):
        key_file.refresh()
    [record] = caplog.records
    assert "Is a directory" in record.getMessage()
    file.rmdir()
    file.write_bytes(b"team-c " + OTHER)
    key_file.refresh()
    assert key_file.keys.names == {"team-c"}
    file.unlink()
    key_file.refresh()
    assert "No such file" in caplog.records[-1].getMessage()


async def test_the_admin_listener_has_keys_of_its_own(
    harness: Harness, file: Path, tmp_path: Path
) -> None:
    admin = tmp_path / "admin"
    _write(admin, b"prometheus " + OTHER)
    router = await guarded(harness, file, admin_port=0, admin_key_file=admin)
    assert router.server.admin is not None
    router.port = router.server.admin.socket.getsockname()[1]
    client = await router.client()
    for path in ("/metrics", "/endpoints", "/docs", "/openapi.json", "/admin/engines", "/nonsense"):
        for headers, status in (([], 401), ([BEARER], 401), ([_bearer(OTHER)], 0)):
            await client.send(request(path, None, *headers, method="GET"))
            answer = await client.answer("GET")
            assert answer.status == (status or (404 if path == "/nonsense" else 200))
    assert (await client.get("/dashboard/events")).status == 401
    assert (await client.get("/dashboard/nonsense")).status == 401
    for path in ("/", "/health", "/ready", "/version", "/dashboard", "/dashboard/dashboard.js"):
        assert (await client.get(path)).status == 200


def _bearer(key: bytes) -> tuple[bytes, bytes]:
    return b"authorization", b"Bearer " + key


def _write(path: Path, text: bytes) -> None:
    path.write_bytes(text)
