"""vLLM engines as processes: started in sets, mended between runs, held up, killed."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.h100.profiles import Profile, Shape
from benchmarks.system.processes import Process, StartError

__all__ = ["Engine", "Engines", "Spec", "command", "duty_cycle", "specs"]

PORT = 18_500
SIDE = 18_600
"""Of NIXL's side channels. Both are below the range that the kernel assigns from: an engine whose
side channel is taken never gets ready."""
PERIOD, RUNNING = 0.2, 0.25
"""Seconds of a SIGSTOP and a SIGCONT, far below the router's stall time-out; the share running."""
ANSWER_S = 2.0
"""Seconds in which a ready engine answers /health."""


@dataclass(frozen=True, slots=True)
class Spec:
    """An engine. `role` is its part in transfers: None for a whole engine."""

    name: str
    number: int
    role: str | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{PORT + self.number}"


def specs(kind: str, profile: Profile) -> tuple[Spec, ...]:
    """The engines of a kind: `one`, `pool`, `transfer` or `large`."""
    if kind == "pool":
        return tuple(Spec(f"pool-{number}", number) for number in range(profile.pool))
    if kind == "transfer":
        prefill, decode = (max(counts) for counts in zip(*profile.splits, strict=True))
        return (
            *(Spec(f"prefill-{number}", 20 + number, "kv_producer") for number in range(prefill)),
            *(Spec(f"decode-{number}", 30 + number, "kv_consumer") for number in range(decode)),
        )
    return (Spec(kind, 10),)


def command(
    spec: Spec, shape: Shape, models: Path, profile: Profile, attempt: Sequence[str]
) -> list[str]:
    """Its command line; variables of the environment by env(1)."""
    variables = {
        **profile.environment,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(SIDE + spec.number),
    }
    words = ["env", *(f"{name}={value}" for name, value in variables.items())]
    words += [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    words += ["--model", str(models / shape.name), "--served-model-name", shape.name]
    words += ["--host", "127.0.0.1", "--port", str(PORT + spec.number)]
    words += [*profile.flags, *attempt]
    if shape is profile.large:
        words += profile.large_flags
    if spec.role is not None:
        transfer = {"kv_connector": "NixlConnector", "kv_role": spec.role, **profile.transfer}
        words += ["--kv-transfer-config", json.dumps(transfer)]
    return words


class Engine:
    """One process tree, in a session of its own."""

    def __init__(self, spec: Spec, process: Process) -> None:
        self.spec, self.url, self._process = spec, spec.url, process

    def wait_ready(self, seconds: float) -> None:
        """Raises StartError."""
        self._process.wait_ready(f"{self.url}/health", seconds)

    @property
    def is_well(self) -> bool:
        """Whether it lives and answers."""
        try:
            self.wait_ready(ANSWER_S)
        except StartError:
            return False
        return True

    def signal(self, number: signal.Signals) -> None:
        """Signal all its processes, if its first one lives."""
        if not self._process.ended:
            os.killpg(self._process.pid, number)


class Engines:
    """The engines of one kind at a time: `need` starts them, and mends what an earlier run broke.
    A context manager, which ends them all."""

    def __init__(self, profile: Profile, models: Path, logs: Path) -> None:
        self._profile, self._models, self._logs = profile, models, logs
        self._running: dict[Spec, Engine] = {}
        self._stack = ExitStack()
        self._kind: str | None = None
        self.attempts = list(profile.attempts)
        """Sets of flags that may work, without those that failed; at last the one that works."""
        self.starts: list[tuple[str, float]] = []
        """Kinds of engines that were started, and the seconds until all were ready."""

    def __enter__(self) -> "Engines":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End all, at the same time."""
        for engine in self._running.values():
            engine.signal(signal.SIGTERM)
        self._running = {}
        self._stack.close()

    def need(self, kind: str) -> list[Engine]:
        """Engines of that kind, ready. Raises StartError, with the end of a log."""
        if kind != self._kind:
            self.stop()
            self._kind = kind
        for spec, engine in tuple(self._running.items()):
            if not engine.is_well:
                engine.signal(signal.SIGKILL)
                del self._running[spec]
        wanted = specs(kind, self._profile)
        missing = [spec for spec in wanted if spec not in self._running]
        if missing:
            begun = time.monotonic()
            self._start(missing)
            self.starts.append((kind, round(time.monotonic() - begun, 1)))
        return [self._running[spec] for spec in wanted]

    def _start(self, missing: Sequence[Spec]) -> None:
        """With the first set of flags that works."""
        for attempt in tuple(self.attempts):
            try:
                self._try(missing, attempt)
            except StartError as error:
                self.stop()
                if len(self.attempts) == 1:
                    raise
                self.attempts.remove(attempt)
                print(f"not with {' '.join(attempt)}: {error}\n{error.log}", flush=True)
            else:
                self.attempts = [attempt]
                return

    def _try(self, missing: Sequence[Spec], attempt: Sequence[str]) -> None:
        profile = self._profile
        shape = profile.large if self._kind == "large" and profile.large else profile.small
        for spec in missing:
            line = command(spec, shape, self._models, profile, attempt)
            process = Process(line, self._logs / f"{spec.name}.log")
            self._running[spec] = Engine(spec, self._stack.enter_context(process))
        for spec in missing:
            self._running[spec].wait_ready(profile.ready)


@contextmanager
def duty_cycle(engine: Engine) -> Iterator[None]:
    """Meanwhile the engine runs a quarter of the time: SIGSTOP and SIGCONT in turns."""
    over = threading.Event()

    def turns() -> None:
        while not over.is_set():
            engine.signal(signal.SIGSTOP)
            over.wait(PERIOD * (1 - RUNNING))
            engine.signal(signal.SIGCONT)
            over.wait(PERIOD * RUNNING)

    thread = threading.Thread(target=turns, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        engine.signal(signal.SIGCONT)
