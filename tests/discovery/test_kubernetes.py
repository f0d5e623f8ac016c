"""A source with an API server over real sockets: its reports, and the faults that it survives.

Names like #1091 are issues of vLLM's production-stack, whose bugs these tests would show. Time
passes only while nothing happens (`calm`).
"""

import asyncio
import contextlib
import re

import pytest

from router.core.membership.entry import Target
from router.core.values import DECODE, PREFILL, Endpoint, Receiver
from router.discovery.api_server import LATE_SECONDS
from router.discovery.kubernetes import RESYNC_SECONDS, WATCH_SECONDS, KubernetesSource
from router.discovery.source import WrongConfiguration
from tests.discovery.api import Api
from tests.discovery.conftest import SELECTORS, Watched

pytestmark = pytest.mark.usefixtures("calm")

A, B, P, C = "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The operators' log lines."""
    return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


@contextlib.asynccontextmanager
async def running(watched: Watched):
    """The source runs."""
    task = asyncio.create_task(watched.source.watch(watched.told.append))
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class TestWhatItTells:
    async def test_pods_by_role_with_uid_once(self, watched: Watched) -> None:
        assert watched.told == [
            (
                Target(Endpoint(f"http://{A}:8000", DECODE), "uid-of-a"),
                Target(Endpoint(f"http://{B}:8000", DECODE), "uid-of-b"),
                Target(Endpoint(f"http://{P}:8000", PREFILL), "uid-of-p"),
            )
        ]

    async def test_a_pod_joins_when_it_is_ready(self, watched: Watched) -> None:
        watched.api.put("c", ip=None, phase="Pending", ready=False, started=False)
        watched.api.put("c", ip=C, ready=False, started=False)
        watched.api.put("c", ip=C)
        await watched.until(lambda: C in watched.hosts)
        assert len(watched.told) == 2, "nothing was told before"

    async def test_a_scale_to_none_and_back(self, watched: Watched) -> None:
        for name in "abp":
            watched.api.delete(name)
        await watched.until(lambda: watched.told[-1] == ())
        watched.api.put("a", uid="new", ip=A)
        await watched.until(lambda: watched.hosts == {A})

    async def test_a_role_changes_with_the_label(self, watched: Watched) -> None:
        watched.api.put("a", ip=A, role="prefill")
        await watched.until(lambda: watched.urls == {A: PREFILL, B: DECODE, P: PREFILL})
        watched.api.put("a", ip=A, role="decode")
        await watched.until(lambda: watched.urls == {A: DECODE, B: DECODE, P: PREFILL})
        assert all(len({t.endpoint.url for t in told}) == len(told) for told in watched.told)

    async def test_another_pod_at_the_same_address_is_another_engine(
        self, watched: Watched
    ) -> None:
        watched.api.delete("a")
        watched.api.put("a", uid="another", ip=A)
        await watched.until(lambda: "another" in {each.identity for each in watched.told[-1]})
        assert watched.hosts == {A, B, P}

    async def test_changes_without_an_effect_on_engines_are_not_reported(
        self, watched: Watched
    ) -> None:
        watched.api.put("a", ip=A)
        watched.api.bookmark()
        watched.api.put("c", ip=C)
        await watched.until(lambda: C in watched.hosts)
        assert len(watched.told) == 2

    async def test_annotations_are_there_when_the_target_is(self, watched: Watched) -> None:
        watched.api.put("c", ip=C, annotations={"pd-router/kv-events-port": "5557"})
        await watched.until(lambda: C in watched.hosts)
        assert 5557 in {each.kv_events_port for each in watched.told[-1]}
        said = watched.source.annotations[Endpoint(f"http://{C}:8000", DECODE)]
        assert said.kv_events_port == 5557


class TestProblemsOfSinglePods:
    async def test_are_logged_once(
        self, watched: Watched, caplog: pytest.LogCaptureFixture
    ) -> None:
        wrong = {"pd-router/model-name": "x"}
        watched.api.put("c", ip=C, annotations=wrong)
        watched.api.put("c", ip=C, annotations=wrong, leaving=True)
        watched.api.put("d", ip="10.0.0.5")
        await watched.until(lambda: "10.0.0.5" in watched.hosts)
        [text] = warnings(caplog)
        assert text.startswith("discovery by Kubernetes: pod c: its annotations are ignored: ")

    async def test_a_pod_that_both_selectors_take_is_a_decode_engine(
        self, api: Api, caplog: pytest.LogCaptureFixture
    ) -> None:
        watched = Watched(api)
        same = {PREFILL: "role=decode", DECODE: "role=decode"}
        watched.source = KubernetesSource(watched.login, same, (8000,))
        async with running(watched):
            await watched.until(lambda: watched.told)
        assert watched.urls == {A: DECODE, B: DECODE}
        said = "pod a is taken by several selectors: it is used as a decode engine"
        assert said in warnings(caplog)[0]

    async def test_a_pod_without_the_named_port_is_named(
        self, api: Api, caplog: pytest.LogCaptureFixture
    ) -> None:
        watched = Watched(api)
        watched.source = KubernetesSource(watched.login, SELECTORS, ("api",))
        async with running(watched):
            await watched.until(lambda: watched.told)
        assert watched.told == [()]
        assert "pod a has no port named api" in warnings(caplog)[0]

    async def test_lmcache_needs_receivers(
        self, api: Api, caplog: pytest.LogCaptureFixture
    ) -> None:
        ports = {"pd-router/lmcache-init-ports": "1", "pd-router/lmcache-alloc-ports": "2"}
        api.put("b", ip=B, annotations=ports)
        watched = Watched(api)
        watched.source = KubernetesSource(watched.login, SELECTORS, (8000,), needs_receivers=True)
        async with running(watched):
            await watched.until(lambda: watched.told)
            assert watched.urls == {B: DECODE, P: PREFILL}
            receivers = {target.endpoint.url: target.receiver for target in watched.told[-1]}
            assert receivers == {
                f"http://{B}:8000": Receiver(B, (1,), (2,)),
                f"http://{P}:8000": None,
            }
            api.delete("b")
            await watched.until(lambda: watched.urls == {P: PREFILL})
        [text] = warnings(caplog)
        assert (
            "pod a is not used: LMCache needs its annotation pd-router/lmcache-init-ports" in text
        )


class TestBugsOfProductionStack:
    async def test_1008_an_evicted_pod_is_gone(self, watched: Watched) -> None:
        """Its MODIFIED event has no address, and was ignored."""
        watched.api.put("a", ip=None, phase="Failed", ready=False)
        await watched.until(lambda: watched.hosts == {B, P})

    async def test_1091_a_deletion_without_a_watch_event_is_found(self, watched: Watched) -> None:
        """The connection breaks, and the pod is deleted before the next one."""
        watched.api.cut()
        watched.api.delete("a")
        watched.api.forget()
        await watched.until(lambda: watched.hosts == {B, P})

    async def test_601_a_pod_that_is_terminating_gets_no_new_requests_and_is_not_cut(
        self, watched: Watched
    ) -> None:
        watched.api.put("a", ip=A, leaving=True, ready=True)
        await watched.until(lambda: watched.hosts == {B, P})
        [leaving] = [each for each in watched.told[-1] if each.is_draining]
        assert leaving.endpoint.url == f"http://{A}:8000"
        watched.api.delete("a")
        await watched.until(lambda: len(watched.told[-1]) == 2)

    async def test_656_a_watch_that_hangs_leaves_no_zombies(
        self, watched: Watched, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The watcher waited for ever, and requests went to dead addresses for days."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        watched.api.is_mute = True
        watched.api.delete("a")
        await watched.until(lambda: watched.hosts == {B, P})
        assert loop.time() - began < 1.1 * WATCH_SECONDS + LATE_SECONDS + 5
        assert "silent for too long" in warnings(caplog)[0]


class TestFailures:
    @pytest.mark.parametrize("in_stream", [False, True])
    async def test_410_is_followed_by_a_list(
        self, watched: Watched, caplog: pytest.LogCaptureFixture, in_stream: bool
    ) -> None:
        """As status of a watch, and as an event in one that began with 200."""
        watched.api.ends_in_stream = in_stream
        watched.api.watch_refusals = [410, 410]
        watched.api.cut()
        watched.api.delete("a")
        await watched.until(lambda: watched.hosts == {B, P} and watched.api.watches == 2)
        assert not watched.api.watch_refusals
        assert "410" not in caplog.text, "that is no outage"

    async def test_a_list_whose_pages_expire_begins_again(self, watched: Watched) -> None:
        """The pages of a list are of one moment, which the server may forget in between."""
        for number in range(3):
            watched.api.put(f"d{number}", ip=f"10.0.1.{number}")
        watched.api.forgets_after_pages = 1
        watched.api.cut()
        watched.api.put("c", ip=C)
        watched.api.forget()
        await watched.until(lambda: C in watched.hosts)
        assert len(watched.hosts) == 7
        assert watched.api.forgets_after_pages == 0

    async def test_a_watch_goes_on_where_the_last_one_ended(self, watched: Watched) -> None:
        watched.api.bookmark()
        begun = len(watched.api.asked(watch=True))
        await watched.until(lambda: len(watched.api.asked(watch=True)) >= begun + 2)
        versions = {each.query["resourceVersion"] for each in watched.api.asked(watch=True)[begun:]}
        assert versions == {str(watched.api.version)}
        assert len(watched.api.asked(watch=False)) == 2, "each role once"

    async def test_there_is_a_new_list_now_and_then(self, watched: Watched) -> None:
        """Should an event never be sent, it is put right by that."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        del watched.api.pods["uid-of-a"]
        await watched.until(lambda: watched.hosts == {B, P})
        assert loop.time() - began < 1.1 * (RESYNC_SECONDS + WATCH_SECONDS)

    async def test_the_last_known_engines_stay_while_the_server_is_away(
        self, watched: Watched, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        watched.api.refusals = [503] * 20
        watched.api.cut()
        await watched.until(lambda: len(watched.api.refusals) < 5)
        assert watched.hosts == {A, B, P}
        assert len(watched.told) == 1
        watched.api.put("c", ip=C)
        await watched.until(lambda: watched.hosts == {A, B, C, P})
        watched.api.bookmark()
        await watched.until(lambda: "works again" in caplog.text)
        outage = warnings(caplog)
        assert len(outage) == len(set(outage)) <= 2, "each kind of failure once"

    async def test_tries_grow_rarer(self, watched: Watched) -> None:
        loop = asyncio.get_running_loop()
        watched.api.refusals = [500] * 24
        watched.api.cut()
        began = loop.time()
        await watched.until(lambda: not watched.api.refusals)
        assert loop.time() - began > 60, "12 tries for each selector"

    async def test_lists_that_expire_at_once_are_no_flood(self, watched: Watched) -> None:
        loop = asyncio.get_running_loop()
        watched.api.watch_refusals = [410] * 20
        watched.api.cut()
        began = loop.time()
        await watched.until(lambda: not watched.api.watch_refusals)
        assert loop.time() - began > 30, "10 lists for each selector"

    async def test_a_right_that_is_missing_is_named(
        self, watched: Watched, caplog: pytest.LogCaptureFixture
    ) -> None:
        watched.api.refusals = [403] * 4
        watched.api.cut()
        await watched.until(lambda: not watched.api.refusals)
        assert any(re.search("allow .* list and watch pods", text) for text in warnings(caplog))

    async def test_a_selector_that_is_refused_ends_it(self, api: Api) -> None:
        api.refusals = [400, 400]
        watched = Watched(api)
        with pytest.raises(WrongConfiguration, match="check the label selectors"):
            await watched.source.watch(watched.told.append)

    async def test_a_wrong_api_server_is_named(
        self, api: Api, caplog: pytest.LogCaptureFixture
    ) -> None:
        for broken in api.pods.values():
            del broken["metadata"]["uid"]
        watched = Watched(api)
        async with running(watched):
            await watched.until(lambda: warnings(caplog))
        assert "check that it is a Kubernetes API server" in warnings(caplog)[0]
        assert watched.told == []

    async def test_no_report_before_both_roles_are_known(self, api: Api) -> None:
        api.refusals = [500]
        watched = Watched(api)
        async with running(watched):
            await watched.until(lambda: watched.told)
        assert [set(watched.urls)] == [{A, B, P}]
        assert len(watched.told) == 1

    async def test_it_starts_without_a_server_and_finds_it_later(
        self, closed_port: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        api = Api()
        api.url = f"http://127.0.0.1:{closed_port}"
        watched = Watched(api)
        async with running(watched):
            await watched.until(lambda: warnings(caplog))
            assert "cannot be reached" in warnings(caplog)[0]


class TestAnswers:
    async def test_lists_and_watches_are_answers_and_outages_are_none(self, api: Api) -> None:
        watched = Watched(api)
        answers: list[str] = []
        watched.source = KubernetesSource(
            watched.login, SELECTORS, (8000,), on_answer=answers.append
        )
        async with running(watched):
            await watched.until(lambda: watched.told)
            assert {*answers} == {*watched.source.servers} == {"kubernetes"}
            known = len(answers)
            api.put("c", ip=C)
            await watched.until(lambda: C in watched.hosts)
            assert len(answers) > known
