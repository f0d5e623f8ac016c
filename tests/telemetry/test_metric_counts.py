"""Counters and histograms: what each event of the router adds to which."""

import pytest

from router.core.events import Continuation, FellBack, LegAnswered, LegFailed, Probed
from router.core.health import HealthSignal
from router.core.values import FailureKind, Mode, Role
from tests.telemetry.metrics_bench import D0, FELL_BACK, P0, Bench, a_request


def test_a_request_is_counted_once_by_each(bench):
    bench.metrics.observe([a_request()])
    mode = "remote_prefill"
    route = "/v1/completions"
    assert bench.value("pd_router_requests_total", route=route, mode=mode, status="200") == 1
    reason = "at_or_above_threshold"
    assert bench.value("pd_router_decisions_total", mode=mode, reason=reason) == 1
    assert bench.value("pd_router_request_duration_seconds_sum", mode=mode) == 4.0
    assert bench.value("pd_router_time_to_first_byte_seconds_sum", mode=mode, stream="false") == 1.0
    assert bench.value("pd_router_prefill_duration_seconds_sum") == 0.5
    assert bench.value("pd_router_estimated_input_tokens_sum", mode=mode) == 300
    assert bench.value("pd_router_relayed_chunks_total") == 3
    assert bench.value("pd_router_relayed_bytes_total") == 99


FAILED = "pd_router_requests_failed_total"
FIRST_BYTES = "pd_router_time_to_first_byte_seconds_count"


@pytest.mark.parametrize(
    ("status", "outcome", "count"),
    [
        (200, "ok", 0),
        (200, "broken", 1),
        (503, "error", 1),
        (400, "error", 0),
        (0, "client_left", 0),
        (200, "aborted", 0),
    ],
)
def test_failures_are_those_that_no_client_caused_and_begin_at_zero(status, outcome, count, bench):
    assert bench.value(FAILED) == 0
    bench.metrics.observe([a_request(status=status, outcome=outcome)])
    assert bench.value(FAILED) == count


def test_a_request_that_was_never_decided_is_counted_without_a_decision(bench):
    changes = {"mode": None, "reason": "", "status": 0, "outcome": "client_left"}
    bench.metrics.observe([a_request(**changes, first_byte=None, prefill_seconds=None)])
    [(labels, value)] = bench.samples("pd_router_requests_total")
    assert (labels["mode"], labels["status"], labels["outcome"]) == ("none", "none", "client_left")
    assert value == 1
    assert bench.value("pd_router_request_duration_seconds_count", mode="none") == 1
    assert bench.samples("pd_router_decisions_total") == []
    assert bench.samples("pd_router_estimated_input_tokens_count") == []
    assert bench.value("pd_router_prefill_duration_seconds_count") == 0


@pytest.mark.parametrize(("status", "count"), [(200, 1), (399, 1), (400, 0), (503, 0)])
def test_a_fast_refusal_does_not_make_answers_look_fast(status, count, bench):
    bench.metrics.observe([a_request(status=status, stream=True)])
    assert bench.value(FIRST_BYTES, mode="remote_prefill", stream="true") == count
    assert bench.value("pd_router_request_duration_seconds_count") == 1


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"stream": True, "status": 200}, 1),
        ({"stream": True, "status": 0}, 1),
        ({"stream": True, "first_byte": 101.0}, 0),
        ({"stream": True, "outcome": "aborted"}, 0),
        ({"stream": False}, 0),
    ],
)
def test_the_waits_that_clients_gave_up_are_counted(changes, count, bench):
    left = {"outcome": "client_left", "first_byte": None}
    bench.metrics.observe([a_request(**(left | changes))])
    assert bench.value("pd_router_abandoned_wait_seconds_count") == count
    assert bench.value("pd_router_abandoned_wait_seconds_sum") == 4.0 * count


def test_the_series_of_the_objective_exist_before_the_first_stream(bench):
    for mode in Mode:
        assert bench.value(FIRST_BYTES, mode=mode, stream="true") == 0


@pytest.mark.parametrize(("stream", "label"), [(True, "true"), (False, "false")])
def test_the_first_bytes_of_streams_and_unary_answers_are_separate(stream, label, bench):
    bench.metrics.observe([a_request(stream=stream)])
    assert bench.value(FIRST_BYTES, mode="remote_prefill", stream=label) == 1


def test_engines_answers_failures_and_fallbacks_are_counted(bench):
    for _ in range(2):
        bench.metrics.observe([LegAnswered(P0, 500, 0.1)])
        bench.metrics.observe([LegFailed(D0, FailureKind.RESET)])
        bench.metrics.observe([FellBack(Role.DECODE, "reset")])
    p0 = {"endpoint": "http://p0", "role": "prefill"}
    assert bench.value("pd_router_engine_answers_total", status="500", **p0) == 2
    d0 = {"endpoint": "http://d0", "role": "decode"}
    assert bench.value("pd_router_engine_failures_total", kind="reset", **d0) == 2
    assert bench.value("pd_router_fallbacks_total", leg="decode", reason="reset") == 2


def test_continuations_are_counted_by_outcome(bench):
    continued = Continuation("continued", carried=20, discarded=2, pause=0.75)
    for continuation in (None, continued, continued, Continuation("tool_call", pause=9.0)):
        bench.metrics.observe([a_request(stream=True, continuation=continuation)])
    name = "pd_router_stream_continuation"
    assert bench.value(f"{name}s_total", outcome="continued") == 2
    assert bench.value(f"{name}s_total", outcome="tool_call") == 1
    assert bench.value(f"{name}_tokens_total", kind="carried") == 40
    assert bench.value(f"{name}_tokens_total", kind="discarded") == 4
    assert bench.value(f"{name}_pause_seconds_count") == 2
    assert bench.value(f"{name}_pause_seconds_sum") == 1.5


def test_the_first_continuation_is_an_increase(bench):
    assert bench.value("pd_router_stream_continuations_total", outcome="continued") == 0


def test_failure_series_exist_before_the_first_failure(bench):
    samples = bench.samples("pd_router_engine_failures_total")
    assert {value for _, value in samples} == {0.0}
    seen = {(labels["endpoint"], labels["kind"]) for labels, _ in samples}
    assert seen == {(e.url, kind) for e in (P0, D0) for kind in FailureKind}


def test_fallback_and_probe_series_exist_before_the_first_too(bench):
    fallbacks = {(each["leg"], each["reason"]) for each, _ in bench.samples(FELL_BACK)}
    assert {("prefill", "no_prefill_engine"), ("decode", "refused")} <= fallbacks
    assert {value for _, value in bench.samples(FELL_BACK)} == {0.0}
    probes = [labels["outcome"] for labels, _ in bench.samples("pd_router_speed_probes_total")]
    assert probes.count("failed") == 2


def test_a_plain_pool_has_no_fallbacks_of_prefills():
    legs = {labels["leg"] for labels, _ in Bench([D0]).samples(FELL_BACK)}
    assert legs == {"decode"}


STREAM = {"stream": True, "decode": D0, "asked_at": 100.5, "chunks": 11}
TTFT = "pd_router_endpoint_time_to_first_token_seconds"
GAP = "pd_router_inter_token_latency_seconds"


def test_an_engines_streams_are_timed_from_the_request_that_it_got(bench):
    bench.metrics.observe([a_request(**STREAM)])
    assert bench.value(f"{TTFT}_sum", endpoint="http://d0", role="decode") == 0.5
    assert bench.value(f"{GAP}_sum", endpoint="http://d0", role="decode") == 0.3


def test_a_prefill_engine_is_timed_by_the_prefills_that_it_answered(bench):
    bench.metrics.observe([LegAnswered(P0, 200, 0.25), LegAnswered(P0, 503, 9.0)])
    assert bench.value(f"{TTFT}_count", endpoint="http://p0", role="prefill") == 1
    assert bench.value(f"{TTFT}_sum", endpoint="http://p0", role="prefill") == 0.25


def test_the_head_of_a_decode_engines_answer_is_no_first_token(bench):
    bench.metrics.observe([LegAnswered(D0, 200, 0.25)])
    assert bench.value(f"{TTFT}_count", endpoint="http://d0", role="decode") == 0


NOT_TIMED = [
    {"outcome": "broken"},
    {"stream": False},
    {"first_byte": None},
    {"decode": None},
]


@pytest.mark.parametrize("changes", NOT_TIMED)
def test_only_streams_that_ended_well_are_timed(changes, bench):
    bench.metrics.observe([a_request(**{**STREAM, **changes})])
    assert bench.value(f"{TTFT}_count", endpoint="http://d0") == 0
    assert bench.value(f"{GAP}_count", endpoint="http://d0") == 0


def test_a_stream_of_one_read_has_no_gap(bench):
    bench.metrics.observe([a_request(**{**STREAM, "chunks": 1})])
    assert bench.value(f"{TTFT}_count", endpoint="http://d0") == 1
    assert bench.value(f"{GAP}_count", endpoint="http://d0") == 0


REMOTE = {**STREAM, "prefilled_at": 100.25}
HANDOVER = "pd_router_handover_seconds"


def test_a_hand_over_lasts_from_the_prefills_reply_to_the_first_content(bench):
    bench.metrics.observe([a_request(**REMOTE), a_request(**STREAM)])
    assert bench.value(f"{HANDOVER}_count") == 1
    assert bench.value(f"{HANDOVER}_sum") == 0.75


NO_HANDOVER = [{"fallbacks": (FellBack(Role.PREFILL, "busy"),)}, {"outcome": "broken"}]


@pytest.mark.parametrize("changes", [*NO_HANDOVER, {"stream": False}])
def test_one_that_fell_back_or_broke_has_none(changes, bench):
    bench.metrics.observe([a_request(**{**REMOTE, **changes})])
    assert bench.value(f"{HANDOVER}_count") == 0


def test_requests_are_counted_by_the_models_that_engines_list(bench):
    bench.fleet.observe(Probed(D0, HealthSignal.OK, ({"id": "m"},)), 0.0)
    for model in ("m", "m", "a client's idea", None):
        bench.metrics.observe([a_request(model=model)])
    bench.metrics.observe([a_request(model="m", outcome="broken")])
    assert bench.samples("pd_router_model_requests_total") == [
        ({"model": "m", "outcome": "ok"}, 2),
        ({"model": "m", "outcome": "broken"}, 1),
    ]


def test_models_with_counts_of_their_own_are_bounded(bench, monkeypatch):
    monkeypatch.setattr("router.telemetry.event_counts.MAX_MODEL_SERIES", 2)
    bench.fleet.observe(Probed(D0, HealthSignal.OK, tuple({"id": f"m{n}"} for n in range(4))), 0.0)
    bench.metrics.observe([a_request(model=f"m{n}") for n in range(4)])
    assert len(bench.samples("pd_router_model_requests_total")) == 2


def test_estimates_are_counted_beside_reported_usage(bench):
    known = {"prompt_tokens": 900, "text_bytes": 8192}
    for each in (known, {"prompt_tokens": 900}, {"text_bytes": 8192}):
        bench.metrics.observe([a_request(model="m", **each)])
    assert bench.value("pd_router_prompt_tokens_total", kind="estimated") == 300
    assert bench.value("pd_router_prompt_tokens_total", kind="measured") == 900


def test_events_that_count_nothing_change_nothing(bench):
    bench.metrics.observe([Probed(P0, HealthSignal.OK)])
    assert bench.samples("pd_router_engine_answers_total") == []


def test_the_waits_of_new_connections_are_counted(bench):
    bench.metrics.accepted(0.3)
    bench.metrics.accepted(0.0)
    assert bench.value("pd_router_accept_delay_seconds_count") == 2
    assert bench.value("pd_router_accept_delay_seconds_sum") == pytest.approx(0.3)
