"""A real Prometheus that scrapes a real router before simulated engines, with users."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.docs.running import answers, process
from tests.ports import own_ports
from tests.users import users

__all__ = ["Site", "needs_prometheus", "running"]

SECONDS = 60.0
"""For a state that must come; only a test that fails waits so long."""

DECODE = 3

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="needs Prometheus: apt install prometheus",
)

Labels = Mapping[str, str]


def get(url: str) -> Any:
    """A JSON document."""
    with urllib.request.urlopen(url, timeout=SECONDS) as response:
        return json.load(response)


class Site:
    """Engines, a router, and a Prometheus that scrapes its admin port."""

    router_process: "subprocess.Popen[bytes]"

    def __init__(
        self, folder: Path, options: str, rules: Sequence[str], prefill: int, engine_options: str
    ) -> None:
        self.folder = folder
        ports = own_ports(range(prefill + DECODE + 3))
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        *engines, self.router, admin, self.prometheus = urls
        self._admin = admin
        self.prefill, self.engines = engines[:prefill], engines[prefill:]
        configuration = {
            # No scrape may take longer than the interval: on a busy machine some take 0.5 s.
            "global": {"scrape_interval": "1s", "evaluation_interval": "500ms"},
            "rule_files": [str(folder / name) for name in rules],
            "scrape_configs": [
                {
                    "job_name": "pd-router",
                    "static_configs": [{"targets": [admin.removeprefix("http://")]}],
                }
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(configuration))
        simulator = f"exec simulator --step-ms 5 {engine_options}"
        remote = f" --prefill {','.join(self.prefill)}" if prefill else ""
        self.commands = (
            *(f"{simulator} --role prefill --port {port}" for port in ports[:prefill]),
            f"{simulator} --role decode --count {DECODE} --port {ports[prefill]}",
            f"exec {sys.executable} -m router serve --port {ports[-3]} --admin-port {ports[-2]}"
            f" --decode {','.join(self.engines)}{remote} {options}",
            f"exec prometheus --config.file={folder}/prometheus.yml --storage.tsdb.path={folder}/db"
            " --enable-feature=exemplar-storage"
            f" --web.listen-address={self.prometheus.removeprefix('http://')}",
        )

    def firing(self) -> list[Labels]:
        """The labels of the alerts that fire."""
        alerts = get(f"{self.prometheus}/api/v1/alerts")["data"]["alerts"]
        return [alert["labels"] for alert in alerts if alert["state"] == "firing"]

    def fires(self, alert: str, **labels: str) -> bool:
        """Whether an alert with these labels does."""
        wanted = {"alertname": alert, **labels}.items()
        return any(wanted <= each.items() for each in self.firing())

    def values(self, query: str) -> list[float]:
        """The values of a query. Fails if it is none."""
        text = urllib.parse.urlencode({"query": query})
        found = get(f"{self.prometheus}/api/v1/query?{text}")["data"]["result"]
        return [float(each["value"][1]) for each in found]

    def exemplars(self, query: str) -> list[Labels]:
        """The labels of the exemplars that the series of a query have."""
        asked = {"query": query, "start": time.time() - SECONDS, "end": time.time()}
        text = urllib.parse.urlencode(asked)
        found = get(f"{self.prometheus}/api/v1/query_exemplars?{text}")["data"]
        return [each["labels"] for series in found for each in series["exemplars"]]

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for a state."""
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < deadline, f"{what}; firing: {self.firing()}"
            time.sleep(0.1)

    def order(self, order: str, engine: str) -> None:
        """Have the router drain an engine, or use it again."""
        body = json.dumps({"url": engine}).encode()
        place = f"{self._admin}/admin/engines/{order}"
        request = urllib.request.Request(place, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            assert response.status == 200

    @contextlib.contextmanager
    def fault(self, *engines: str, **faults: object) -> Iterator[None]:
        """Something is wrong with these engines."""
        for engine in engines:
            self._faults(engine, "POST", json.dumps(faults).encode())
        try:
            yield
        finally:
            for engine in engines:
                self._faults(engine, "DELETE", None)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """The router hangs."""
        self.router_process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.router_process.send_signal(signal.SIGCONT)

    def workers(self) -> list[int]:
        """The router's worker processes, the leader first."""
        pid = self.router_process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def empty_caches(self) -> None:
        """Have all engines forget the prefixes that they hold."""
        for engine in (*self.prefill, *self.engines):
            self._ask(f"{engine}/reset_prefix_cache", "POST", None)

    def _faults(self, engine: str, method: str, body: bytes | None) -> None:
        self._ask(f"{engine}/sim/faults", method, body)

    def _ask(self, url: str, method: str, body: bytes | None) -> None:
        request = urllib.request.Request(url, body, method=method)
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            assert response.status == 200


@contextlib.contextmanager
def running(
    folder: Path,
    options: str,
    *,
    rules: Sequence[str] = (),
    prefill: int = 0,
    engine_options: str = "",
) -> Iterator[Site]:
    """A site whose router is scraped and has users. `rules` are files in `folder`."""
    site = Site(folder, options, rules, prefill, engine_options)
    with contextlib.ExitStack() as stack:
        *started, prometheus = (stack.enter_context(process(each)) for each in site.commands)
        site.router_process = started[-1]
        answers(site.router, *started)
        while prometheus.poll() is None:
            with contextlib.suppress(OSError):
                get(f"{site.prometheus}/api/v1/alerts")
                break
            time.sleep(0.1)
        site.until(lambda: site.values('up{job="pd-router"}') == [1], "the router is not scraped")
        stack.enter_context(users(site.router, 6))
        yield site
