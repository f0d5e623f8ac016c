"""The two models of an engine beside the real one, with a KV cache of the same size."""

import sys
from random import Random

from benchmarks.system.ports import free_port
from router.core.speed.speed_estimator import SpeedEstimator
from router.simulator.model.blocks import chain
from router.simulator.virtual.agenda import Agenda
from router.simulator.virtual.engine import VirtualEngine
from router.simulator.virtual.requests import ACCEPTED, Attempt
from router.simulator.virtual.values import EngineModel
from tests.engines.fleet import BLOCK_SIZE, MAX_MODEL_LEN, MODEL
from tests.engines.layout import Layout
from tests.engines.service import Service

__all__ = ["ModelledEngine", "simulated"]


def simulated(blocks: int, where: Layout) -> Service:
    """The simulated engine as a process."""
    port = free_port()
    options = {
        "--port": port,
        "--model": MODEL,
        "--block-size": BLOCK_SIZE,
        "--total-blocks": blocks,
        "--max-model-len": MAX_MODEL_LEN,
        "--max-num-seqs": 16,
    }
    words = (str(word) for option in options.items() for word in option)
    return Service(
        name="simulated",
        url=f"http://127.0.0.1:{port}",
        ready_path="/health",
        command=(sys.executable, "-m", "router.simulator", "--prompt-tokens-details", *words),
        environment={},
        run=where.run,
    )


class _Listener:
    """Waits for the last of some answers."""

    def __init__(self, answers: int) -> None:
        self.left = answers

    def on_first(self, attempt: Attempt, now: float) -> None:
        """Nothing."""

    def on_end(self, attempt: Attempt, status: int, now: float) -> None:
        """An answer is complete."""
        assert status == ACCEPTED, "it never dies, and loads no KV caches"
        self.left -= 1


class ModelledEngine:
    """The engine of `pd-router simulate`."""

    def __init__(self, blocks: int) -> None:
        model = EngineModel(kv_tokens=blocks * BLOCK_SIZE, block_size=BLOCK_SIZE, max_num_seqs=16)
        self._agenda = Agenda()
        self._engine = VirtualEngine(model, self._agenda, Random(0), replicas=1)
        self._engine.speeds = [SpeedEstimator()]

    def answer(self, requests: list[tuple[list[int], list[int]]]) -> list[int]:
        """Answer these prompts, all at once; returns the tokens of each that were cached."""
        listener = _Listener(len(requests))
        asked = []
        for prompt, answer in requests:
            contents = tuple(chain(prompt + answer, BLOCK_SIZE, 0))
            one = Attempt(listener, 0, 0, len(prompt), len(answer), contents=contents)
            self._engine.submit(one, self._agenda.now)
            asked.append(one)
        self._agenda.run_while(lambda: listener.left > 0, until=1e9)
        return [one.cached for one in asked]
