"""Secrets appear nowhere: not in the log at its lowest level, in answers, metrics, traces, process
titles, the live page, commands' output or the admin API, for any error."""

import asyncio
import json
import os
import signal
from pathlib import Path

from tests import forked
from tests.discovery.api import Api
from tests.discovery.api import serving as api_server
from tests.e2e.process import Process, serving
from tests.e2e.test_discovery import kubeconfig
from tests.e2e.worker_processes import until
from tests.net.client import Answer, Client, request
from tests.net.engine import ScriptedEngine, json_reply
from tests.net.harness import Harness
from tests.net.payloads import COMPLETIONS, STREAM, completion, token
from tests.telemetry.otlp import collector

SECRETS = tuple(f"s3cret-{name}-0123456789abcdef" for name in "ecapkw")
ENGINE, CLIENT, ADMIN, PEER, CLUSTER, WRONG = SECRETS

NOBODY = "http://127.0.0.1:9"
"""A sibling that does not answer."""

OPERATORS = (
    *("/metrics", "/endpoints", "/docs", "/openapi.json"),
    *("/admin/engines", "/admin/peers"),
)
"""Answers of the admin listener."""


def bearer(key: str) -> tuple[bytes, bytes]:
    return b"authorization", f"Bearer {key}".encode()


def titles(*pids: int) -> str:
    """The command lines of processes."""
    return " ".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in pids)


def children(pid: int) -> list[int]:
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(word) for word in words]


class Site:
    """A router's files, and all its outputs."""

    def __init__(
        self, folder: Path, good: ScriptedEngine, broken: ScriptedEngine, cluster: str, traces: str
    ) -> None:
        self.good = good
        self.file, self.keys, self.admin_keys = (
            folder / name for name in ("router.yaml", "keys", "admin")
        )
        self.keys.write_text(f"team {CLIENT}\n")
        self.admin_keys.write_text(f"boss {ADMIN}\n")
        self.config = {
            "decode": [good.url, broken.url],
            "engine_api_key": ENGINE,
            "api_key_file": str(self.keys),
            "admin_key_file": str(self.admin_keys),
            "admin_port": 0,
            "peers": [NOBODY],
            "peer_key": PEER,
            "k8s_decode_selector": "role=decode",
            "k8s_config_file": str(kubeconfig(folder, cluster, CLUSTER)),
            "otlp_traces_endpoint": traces,
            "log_level": "debug",
            "decision_log_sample": 1.0,
            "workers": 2,
        }
        self.file.write_text(json.dumps(self.config))
        self.said: list[bytes] = []

    def keep(self, answer: Answer) -> Answer:
        """Note an answer."""
        self.said.append(answer.body + repr(answer.headers).encode())
        return answer

    async def serve_clients(self, process: Process) -> None:
        """Good and bad keys, good and bad answers, and a stream that breaks off."""
        good = self.good
        client = await process.client()
        good.answer_all(lambda call: call.send(json_reply({"choices": []})))
        for key, status in ((CLIENT, 200), (WRONG, 401)):
            answer = await client.ask(COMPLETIONS, completion(), bearer(key))
            assert self.keep(answer).status == status
        for reaction in (
            lambda call: call.send(json_reply({"error": {"message": "no"}}, 400)),
            lambda call: call.send(json_reply({}, 500)),
            lambda call: call.close(),
        ):
            good.answer_all(reaction)
            self.keep(await client.ask(COMPLETIONS, completion(), bearer(CLIENT)))
        good.answer_all(None)
        await client.send(request(COMPLETIONS, STREAM, bearer(CLIENT)))
        call = await good.call()
        assert call.values(b"authorization") == [f"Bearer {ENGINE}".encode()]  # it alone gets it
        call.stream(token("a"))
        begun = await client.begin()
        call.close()
        self.keep(await begun.rest())

    async def serve_operators(self, process: Process) -> None:
        """All answers of the admin listener."""
        admin_url = (await process.until("listening"))["admin_url"]
        port = int(admin_url.rpartition(":")[2])
        admin = await Client.open(port)
        for path in OPERATORS:
            for key, status in ((ADMIN, 200), (WRONG, 401)):
                await admin.send(request(path, None, bearer(key), method="GET"))
                assert self.keep(await admin.answer("GET")).status == status, path
        await admin.send(request("/dashboard/events", None, bearer(ADMIN), method="GET"))
        self.keep(await (await admin.begin("GET")).until(b"\n\n"))
        admin.leave()
        for key, status in ((PEER, 400), (ADMIN, 401), (WRONG, 401)):
            sibling = await Client.open(port)
            await sibling.send(request("/admin/peers", b"no report", bearer(key)))
            assert self.keep(await sibling.answer()).status == status
            sibling.leave()
        keys = ("--admin-key-file", str(self.admin_keys))
        assert await self.command("top", admin_url, "--once", *keys) == 0
        self.admin_keys.with_suffix(".wrong").write_text(f"boss {WRONG}\n")
        keys = ("--admin-key-file", str(self.admin_keys.with_suffix(".wrong")))
        assert await self.command("top", admin_url, "--once", *keys) == 1

    async def reject(self, process: Process) -> None:
        """The rejected setting is named, without its value."""
        self._write(engine_api_key=f"{WRONG} two words")
        process.signal(signal.SIGHUP)
        self._write(engine_api_key=WRONG)
        self.keys.write_text(f"team {WRONG}\nteam {WRONG}x\n")

        async def is_rejected() -> bool:
            return any("--engine-api-key: needs a restart" in r["message"] for r in process.records)

        await until(is_rejected, "no word of the configuration")

    async def explain(self, body: Path) -> None:
        """What the commands say that read the router's file, or a wrong one."""
        self._write()
        assert await self.command("config", "check", str(self.file)) == 0
        self._write(engine_api_key=f"{WRONG} two", peer_key=[WRONG], no_such=WRONG, port="x")
        assert await self.command("config", "check", str(self.file)) == 2
        self.file.write_text(json.dumps({n: self.config[n] for n in ("decode", "api_key_file")}))
        await self.command("explain", str(body), "--config", str(self.file))
        await self.command("check", "--config", str(self.file))

    async def command(self, *arguments: str) -> int:
        """Run one of the other commands."""
        pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
        env = {**os.environ, "PD_ROUTER_ENGINE_API_KEY": ENGINE}
        async with forked.running("pd-router", *arguments, env=env, **pipes) as process:
            self.said += await process.communicate()
            return await process.wait()

    def _write(self, **changes: object) -> None:
        self.file.write_text(json.dumps({**self.config, **changes}))


async def test_no_readable_output_has_secrets(harness: Harness, tmp_path: Path) -> None:
    api = Api()
    api.token = CLUSTER
    api.refusals = [401, 500]
    engines = await harness.engine(), await harness.engine(listening=False)
    launcher = ("env",)  # its title is real
    async with api_server(api) as cluster:
        with collector() as traces:
            site = Site(tmp_path, *engines, cluster, traces.url)
            async with serving("--config", str(site.file), launcher=launcher) as process:
                await process.ready()
                await site.serve_clients(process)
                await site.serve_operators(process)
                await site.reject(process)
                shown = titles(process.pid, *children(process.pid))
                process.signal(signal.SIGTERM)
                assert await process.status() == 0
            assert traces.spans
            site.said.append(repr(traces.spans).encode())
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"prompt": "hi"}))
    await site.explain(body)
    everything = b"".join(site.said).decode() + shown + json.dumps(process.records)
    assert [secret for secret in SECRETS if secret in everything] == []


async def test_secrets_that_flags_give_are_in_no_title(harness: Harness) -> None:
    engine = await harness.engine()
    flags = ("--decode", engine.url, "--admin-port", "0", "--peers", NOBODY, "--workers", "2")
    secrets = ("--engine-api-key", ENGINE, f"--peer-key={PEER}")
    async with serving(*flags, *secrets, launcher=("env",)) as process:
        await process.ready()
        workers = children(process.pid)
        assert len(workers) == 2
        shown = titles(process.pid, *workers)
        assert "--peers" in shown
        assert [secret for secret in SECRETS if secret in shown] == []
        client = await process.client()
        await client.send(request(COMPLETIONS, completion()))
        call = await engine.call()  # it is given all the same
        assert call.values(b"authorization") == [f"Bearer {ENGINE}".encode()]
        call.send(json_reply({}))
        assert (await client.answer()).status == 200
