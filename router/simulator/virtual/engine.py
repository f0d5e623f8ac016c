"""A modelled engine: continuous batching with chunked prefill, one event per step.

A step costs the same however many sequences decode in it: they are counted, and each is looked at
when it is let in, at its first token and at its last.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from random import Random

from router.core.pace import Pace
from router.core.values import Gauges
from router.simulator.virtual.agenda import Agenda
from router.simulator.virtual.attempt import Answer, Attempt, Stage
from router.simulator.virtual.values import EngineModel

__all__ = ["Engine"]


class Engine:
    """One engine. `paces` are those that each router replica keeps of it."""

    def __init__(self, model: EngineModel, agenda: Agenda, rng: Random, replicas: int) -> None:
        self.model = model
        self.factor = 1.0
        self.frozen_until = 0.0
        self.is_up = True
        self.paces: Sequence[Pace] = ()
        self.gauges = Gauges(running=0, waiting=0, kv_usage=0.0)
        """As of its last step: an engine that does not step does not update them."""
        self.running = 0
        """Slots taken."""
        self.most_running = 0
        self.served = 0
        """Attempts that were accepted, all in all."""
        self._agenda = agenda
        self._rng = rng
        self._waiting: deque[Attempt] = deque()
        self._prefilling: deque[Attempt] = deque()
        self._computed: list[Attempt] = []
        """Those whose prompt is whole with the step that is going on."""
        self._decoding = [0] * replicas
        self._ending: defaultdict[int, list[Attempt]] = defaultdict(list)
        self._steps = 0
        self._kv = 0
        self._is_busy = False
        self._life = 0
        """Restarts; a step of an earlier life never ends."""

    @property
    def load(self) -> int:
        """Requests that it has, running and waiting."""
        return self.running + len(self._waiting)

    def submit(self, attempt: Attempt, now: float) -> Answer:
        """Take a request on, or not."""
        if not self.is_up:
            return Answer.REFUSED
        if len(self._waiting) >= self.model.max_num_queued_reqs:
            return Answer.FULL
        self.served += 1
        self._waiting.append(attempt)
        if not self._is_busy:
            self._is_busy = True
            self._plan(now, is_end=False)
        return Answer.ACCEPTED

    def abort(self, attempt: Attempt) -> None:
        """Forget an attempt whose client left; it is told nothing any more."""
        if attempt.stage is Stage.ENDED:
            return
        if attempt.stage is Stage.WAITING:
            self._waiting.remove(attempt)
        else:
            if attempt.stage is Stage.DECODE:
                self._decoding[attempt.replica] -= 1
            elif attempt.left:
                self._prefilling.remove(attempt)
            self._free(attempt)
        attempt.stage = Stage.ENDED

    def kill(self, now: float) -> None:
        """Lose everything and refuse connections, until `start`."""
        self.is_up = self._is_busy = False
        self._life += 1
        lost = [attempt for attempt in self._all() if attempt.stage is not Stage.ENDED]
        self._waiting.clear()
        self._prefilling.clear()
        self._computed.clear()
        self._ending.clear()
        self._decoding = [0] * len(self._decoding)
        self.running = self._kv = 0
        self.gauges = Gauges(running=0, waiting=0, kv_usage=0.0)
        for attempt in lost:
            attempt.stage = Stage.ENDED
        for attempt in lost:
            attempt.on_lost(now)

    def start(self) -> None:
        """Listen again, empty."""
        self.is_up = True

    def _all(self) -> Iterator[Attempt]:
        yield from self._waiting
        yield from self._prefilling
        yield from self._computed
        for attempts in self._ending.values():
            yield from attempts

    def _plan(self, when: float, *, is_end: bool) -> None:
        life = self._life

        def event(now: float) -> None:
            if life == self._life:
                if now < self.frozen_until:
                    self._agenda.at(self.frozen_until, event)
                elif is_end:
                    self._end(now)
                else:
                    self._begin(now)

        self._agenda.at(when, event)

    def _begin(self, now: float) -> None:
        """Compose a step: who decodes goes on, prompts take what is left of the budget."""
        model = self.model
        waiting, prefilling = self._waiting, self._prefilling
        while waiting and self.running < model.max_num_seqs:
            attempt = waiting[0]
            if self._kv + attempt.prompt + attempt.output > model.kv_tokens:
                break
            waiting.popleft()
            self.running += 1
            self._kv += attempt.prompt + attempt.output
            attempt.stage = Stage.PREFILL
            prefilling.append(attempt)
        self.most_running = max(self.most_running, self.running)
        sequences = sum(self._decoding)
        whole = budget = max(0, model.max_num_batched_tokens - sequences)
        while prefilling and budget:
            attempt = prefilling[0]
            taken = min(budget, attempt.left)
            attempt.left -= taken
            budget -= taken
            sequences += 1
            if not attempt.left:
                self._computed.append(prefilling.popleft())
        if not sequences:
            self._is_busy = False
            return
        seconds = self.factor * model.step(sequences, whole - budget)
        chance = 1.0 + model.jitter * (2.0 * self._rng.random() - 1.0)
        self._plan(now + seconds * chance, is_end=True)

    def _end(self, now: float) -> None:
        """Hand out the tokens of a step, and go on."""
        self._steps += 1
        for pace, tokens in zip(self.paces, self._decoding, strict=True):
            pace.tokens += tokens
        ended = self._ending.pop(self._steps, [])
        for attempt in ended:
            if attempt.stage is Stage.DECODE:
                self._decoding[attempt.replica] -= 1
        ended += self._first_tokens(now)
        for attempt in ended:
            if attempt.stage is not Stage.ENDED:
                self._free(attempt)
                attempt.stage = Stage.ENDED
                attempt.on_last(now)
        self._begin(now)
        usage = self._kv / self.model.kv_tokens
        self.gauges = Gauges(running=self.running, waiting=len(self._waiting), kv_usage=usage)

    def _first_tokens(self, now: float) -> list[Attempt]:
        """Begin to decode what is computed; returns those of a single token."""
        computed, self._computed = self._computed, []
        single = []
        for attempt in computed:
            if attempt.stage is Stage.ENDED:
                continue
            attempt.on_first(now)
            if attempt.output == 1:
                single.append(attempt)
            else:
                attempt.stage = Stage.DECODE
                self._decoding[attempt.replica] += 1
                self._ending[self._steps + attempt.output - 1].append(attempt)
        return single

    def _free(self, attempt: Attempt) -> None:
        self.running -= 1
        self._kv -= attempt.prompt + attempt.output
