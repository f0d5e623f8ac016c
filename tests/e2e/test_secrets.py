"""Secrets appear nowhere: not in the log at its lowest level, in answers, metrics, process titles,
`explain` or the admin API, whatever goes wrong."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.e2e.process import serving
from tests.e2e.test_workers import until
from tests.net.client import Answer, Client, request
from tests.net.engine import json_reply
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


async def test_secrets_are_in_nothing_that_anybody_reads(harness: Harness, tmp_path: Path) -> None:
    good, broken = await harness.engine(), await harness.engine(listening=False)
    keys, admin_keys, file = (tmp_path / name for name in ("keys", "admin", "router.yaml"))
    keys.write_text(f"team {CLIENT}\n")
    admin_keys.write_text(f"boss {ADMIN}\n")
    config = {
        "decode": [good.url, broken.url],
        "engine_api_key": ENGINE,
        "api_key_file": str(keys),
        "admin_key_file": str(admin_keys),
        "admin_port": 0,
        "log_level": "debug",
        "decision_log_sample": 1.0,
        "workers": 2,
    }
    file.write_text(json.dumps(config))
    said: list[bytes] = []

    def keep(answer: Answer) -> Answer:
        said.append(answer.body + repr(answer.headers).encode())
        return answer

    async with serving("--config", str(file), launcher=("env",)) as process:  # its title is real
        await process.ready()
        client = await process.client()
        good.answer_all(lambda call: call.send(json_reply({"choices": []})))
        assert keep(await client.ask(COMPLETIONS, completion(), bearer(CLIENT))).status == 200
        assert keep(await client.ask(COMPLETIONS, completion(), bearer(WRONG))).status == 401
        for answer in (
            lambda call: call.send(json_reply({"error": {"message": "no"}}, 400)),
            lambda call: call.send(json_reply({}, 500)),
            lambda call: call.close(),
        ):
            good.answer_all(answer)
            keep(await client.ask(COMPLETIONS, completion(), bearer(CLIENT)))
        good.answer_all(None)
        await client.send(request(COMPLETIONS, STREAM, bearer(CLIENT)))
        call = await good.call()
        assert call.values(b"authorization") == [f"Bearer {ENGINE}".encode()]  # it alone gets it
        call.stream(token("a"))
        begun = await client.begin()
        call.close()
        keep(await begun.rest())

        admin_url = (await process.until("listening"))["admin_url"]
        admin = await Client.open(int(admin_url.rpartition(":")[2]))
        for path in ("/metrics", "/endpoints", "/docs", "/admin/engines", "/openapi.json"):
            for key, status in ((ADMIN, 200), (WRONG, 401)):
                await admin.send(request(path, None, bearer(key), method="GET"))
                assert keep(await admin.answer("GET")).status == status
        admin.leave()

        # What is rejected is said, without its value.
        file.write_text(json.dumps({**config, "engine_api_key": f"{WRONG} two words"}))
        process.signal(signal.SIGHUP)
        file.write_text(json.dumps({**config, "engine_api_key": WRONG}))
        keys.write_text(f"team {WRONG}\nteam {WRONG}x\n")

        async def is_rejected() -> bool:
            return any("--engine-api-key: needs a restart" in r["message"] for r in process.records)

        await until(is_rejected, "no word of the configuration")
        shown = titles(process.pid, *children(process.pid))
        process.signal(signal.SIGTERM)
        assert await process.status() == 0

    environment = {**os.environ, "PD_ROUTER_ENGINE_API_KEY": ENGINE}
    file.write_text(json.dumps({name: config[name] for name in ("decode", "api_key_file")}))
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"prompt": "hi"}))
    for command in (
        ["explain", str(body), "--config", str(file)],
        ["check", "--config", str(file)],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "router.cli", *command],
            env=environment,
            capture_output=True,
            check=False,
        )
        said += [done.stdout, done.stderr]
    everything = b"".join(said).decode() + shown + json.dumps(process.records)
    assert [secret for secret in SECRETS if secret in everything] == []
