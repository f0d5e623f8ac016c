"""Secrets appear nowhere: not in the log at its lowest level, in answers, metrics, process titles,
`explain` or the admin API, whatever goes wrong."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.e2e.process import Process, serving
from tests.e2e.test_workers import until
from tests.net.client import Answer, Client, request
from tests.net.engine import ScriptedEngine, json_reply
from tests.net.harness import Harness
from tests.net.payloads import COMPLETIONS, STREAM, completion, token

ENGINE, CLIENT, ADMIN, WRONG = (f"s3cret-{name}-0123456789abcdef" for name in "ecaw")
SECRETS = (ENGINE, CLIENT, ADMIN, WRONG)


def bearer(key: str) -> tuple[bytes, bytes]:
    return b"authorization", f"Bearer {key}".encode()


def titles(*pids: int) -> str:
    """The command lines of processes."""
    return " ".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in pids)


def children(pid: int) -> list[int]:
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(word) for word in words]


class Site:
    """A router's files, and all that it said to anybody."""

    def __init__(self, folder: Path, good: ScriptedEngine, broken: ScriptedEngine) -> None:
        self.good = good
        self.file, self.keys, admin_keys = (folder / n for n in ("router.yaml", "keys", "admin"))
        self.keys.write_text(f"team {CLIENT}\n")
        admin_keys.write_text(f"boss {ADMIN}\n")
        self.config = {
            "decode": [good.url, broken.url],
            "engine_api_key": ENGINE,
            "api_key_file": str(self.keys),
            "admin_key_file": str(admin_keys),
            "admin_port": 0,
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
        """All that the admin listener tells."""
        admin_url = (await process.until("listening"))["admin_url"]
        admin = await Client.open(int(admin_url.rpartition(":")[2]))
        for path in ("/metrics", "/endpoints", "/docs", "/admin/engines", "/openapi.json"):
            for key, status in ((ADMIN, 200), (WRONG, 401)):
                await admin.send(request(path, None, bearer(key), method="GET"))
                assert self.keep(await admin.answer("GET")).status == status
        admin.leave()

    async def reject(self, process: Process) -> None:
        """What is rejected is said, without its value."""
        self._write(engine_api_key=f"{WRONG} two words")
        process.signal(signal.SIGHUP)
        self._write(engine_api_key=WRONG)
        self.keys.write_text(f"team {WRONG}\nteam {WRONG}x\n")

        async def is_rejected() -> bool:
            return any("--engine-api-key: needs a restart" in r["message"] for r in process.records)

        await until(is_rejected, "no word of the configuration")

    def command(self, *arguments: str) -> None:
        """Run one of the other commands, with the same files."""
        self.file.write_text(json.dumps({n: self.config[n] for n in ("decode", "api_key_file")}))
        done = subprocess.run(
            [sys.executable, "-m", "router.cli", *arguments, "--config", str(self.file)],
            env={**os.environ, "PD_ROUTER_ENGINE_API_KEY": ENGINE},
            capture_output=True,
            check=False,
        )
        self.said += [done.stdout, done.stderr]

    def _write(self, **changes: str) -> None:
        self.file.write_text(json.dumps({**self.config, **changes}))


async def test_secrets_are_in_nothing_that_anybody_reads(harness: Harness, tmp_path: Path) -> None:
    site = Site(tmp_path, await harness.engine(), await harness.engine(listening=False))
    launcher = ("env",)  # its title is real
    async with serving("--config", str(site.file), launcher=launcher) as process:
        await process.ready()
        await site.serve_clients(process)
        await site.serve_operators(process)
        await site.reject(process)
        shown = titles(process.pid, *children(process.pid))
        process.signal(signal.SIGTERM)
        assert await process.status() == 0
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"prompt": "hi"}))
    site.command("explain", str(body))
    site.command("check")
    everything = b"".join(site.said).decode() + shown + json.dumps(process.records)
    assert [secret for secret in SECRETS if secret in everything] == []
