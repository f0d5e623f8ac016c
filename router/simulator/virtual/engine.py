"""A modelled engine: continuous batching with chunked prefill, one event per step.

A step costs the same however many sequences decode in it: they are counted, and each one is only
visited when it is admitted, at its first token and at its last.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from random import Random

from router.core.speed.speed_estimator import SpeedEstimator
from router.core.values import Gauges
from router.simulator.model.batching import Batch
from router.simulator.virtual.agenda import Agenda, Drift, Event
from router.simulator.virtual.kv_cache import common_blocks, make_kv_cache
from router.simulator.virtual.requests import ACCEPTED, NO_ANSWER, Attempt, Stage, VainWaits
from router.simulator.virtual.values import EngineModel, EngineSpec, FaultRates

TOLERANCE = 1e-9
"""Tolerance for times on the grid of steps, in steps: sums of floats are not exact."""

SERVER_ERROR, QUEUE_FULL = 500, 503

Exported = tuple[int, int, float, int | None]
"""Running and queued requests, KV-cache usage (0 to 1), and generated tokens."""

NOTHING: Exported = (0, 0, 0.0, None)
"""Gauges before the first step."""


class VirtualEngine:
    """One engine. `speeds` are the speed estimates that each router replica keeps of it."""

    def __init__(
        self, spec: EngineSpec | EngineModel, agenda: Agenda, rng: Random, replicas: int
    ) -> None:
        self.spec = EngineSpec(spec) if isinstance(spec, EngineModel) else spec
        self.model = self.spec.model
        self.faults = FaultRates(0.0, 0)
        self.batch: Batch[Attempt] = Batch(self.model)
        self.kv = make_kv_cache(self.model)
        self.frozen_until = 0.0
        self.is_up = True
        self.speeds: list[SpeedEstimator] = []
        self.most_running = 0
        self.served = 0
        """Number of accepted attempts."""
        self.stepped_at = 0.0
        """When its last step ended."""
        self.waits = VainWaits()
        self.life = 0
        """Number of restarts; a step from before a restart is ignored."""
        self._agenda = agenda
        self._rng = rng
        self._drift = Drift(self.model.drift, rng)
        self._replicas = replicas
        self._steps = 0
        self._reset()

    def _reset(self) -> None:
        """Begin a life without requests, whose steps begin and end as soon as it is not frozen."""
        self.running = 0
        """Number of used slots."""
        self._arriving: dict[Attempt, None] = {}
        self._computed: list[Attempt] = []
        """Attempts whose prompt is complete with the current step."""
        self._ending: defaultdict[int, list[Attempt]] = defaultdict(list)
        """Decoding attempts by the step of their last token."""
        self._decoding = 0
        """Decoding attempts."""
        self._shown = [0] * self._replicas
        """By replica: decoding attempts whose tokens the router sees as they are generated."""
        self._generated = 0
        self._exported = NOTHING
        self._is_busy = False
        self._begins: Event = partial(self._happen, self._begin, self.life)
        self._ends: Event = partial(self._happen, self._end, self.life)

    @property
    def load(self) -> int:
        """Number of running and queued requests."""
        return self.running + self.queued

    @property
    def queued(self) -> int:
        """Number of queued requests."""
        return len(self.batch.waiting) + len(self._arriving)

    @property
    def gauges(self) -> Gauges | None:
        """Its gauges; None if they cannot be read. vLLM updates them at each step, so they are
        stale if there are no steps."""
        model = self.model
        if not model.has_gauges:
            return None
        running, waiting, kv_usage, generated = self._exported
        gauges = Gauges(running, waiting, kv_usage, generated=generated)
        if model.is_on_grid:
            running = min(self.load, model.max_num_seqs)  # slots are assigned on arrival
            gauges = replace(gauges, running=running, waiting=self.load - running)
        if model.block_size:
            queries, hits = self.kv.queries, self.kv.hits
            gauges = replace(
                gauges, cache_tokens=model.kv_tokens, cache_queries=queries, cache_hits=hits
            )
        return gauges

    @property
    def is_full(self) -> bool:
        """Whether all slots are in use."""
        return self.running >= self.model.max_num_seqs

    @property
    def has_free_slot(self) -> bool:
        """Whether a new request would run in its next step."""
        return self.is_up and self.load < self.model.max_num_seqs

    @property
    def is_fit(self) -> bool:
        """Whether it is up, without faults and at full speed."""
        return self.is_up and self.batch.factor == 1.0 and not self.is_frozen and not self.is_faulty

    @property
    def step_seconds(self) -> float:
        """Duration in seconds of a step without prompts at its current speed."""
        return self.batch.factor * self.model.step_seconds

    @property
    def is_frozen(self) -> bool:
        """Whether it makes no progress."""
        return self._agenda.now < self.frozen_until

    @property
    def is_faulty(self) -> bool:
        """Whether its requests fail, other than because of a poisoned prompt."""
        faults = self.faults
        return any((faults.refused, faults.failed, faults.broken)) and not faults.is_poison_only

    def is_faulty_for(self, model: str | None) -> bool:
        """Whether its requests for the model fail."""
        return self.is_faulty and self.faults.may_meet(model, is_poison=False)

    def serves(self, model: str | None) -> bool:
        """Whether it accepts requests for the model."""
        return not self.spec.serves or model is None or model in self.spec.serves

    @property
    def backlog(self) -> int:
        """Prompt tokens that it has yet to compute, given what was cached when the requests
        arrived."""
        prompts = (*self.batch.waiting, *self.batch.prefilling)
        return sum(attempt.left for attempt in prompts)

    def cached(self, prompt: int, contents: tuple[int, ...]) -> int:
        """Tokens of such a prompt that will be in the prefix cache at its turn.

        They are cached now, or will be computed for a request before it.
        """
        if not contents:
            return 0
        cached = self.kv.cached(prompt, contents)
        for other in (*self.batch.waiting, *self.batch.prefilling):
            common = common_blocks(contents, other.contents)
            cached = max(cached, self.kv.whole_blocks(prompt, common))
        return cached

    def seconds(self, prompt: int, output: int) -> float:
        """Seconds from arrival to last token of one more request, if it gets a slot at once."""
        model = self.model
        if self.is_frozen or not self.has_free_slot:
            return math.inf
        return self.batch.factor * (
            model.step(self.load + 1) * output + prompt / model.prefill_tokens_per_second
        )

    def submit(self, attempt: Attempt, now: float) -> int:
        """Accept or refuse a request. Returns the status, or `NO_ANSWER`."""
        if not self.is_up or self._happens(self.faults.refused, attempt):
            return NO_ANSWER
        if self._happens(self.faults.failed, attempt):
            return SERVER_ERROR
        if not self.batch.has_room(len(self.batch.waiting)):
            return QUEUE_FULL
        self.served += 1
        attempt.arrived = now
        if attempt.transfer_seconds is None:
            self._enqueue(attempt, now)
        else:
            attempt.stage = Stage.ARRIVING
            self._arriving[attempt] = None
            self._agenda.at(now + attempt.transfer_seconds, lambda then: self._came(attempt, then))
        return ACCEPTED

    def _happens(self, share: float, attempt: Attempt) -> bool:
        return (
            share > 0.0
            and self.faults.may_meet(attempt.model, is_poison=attempt.is_poison)
            and self._rng.random() < share
        )

    def _enqueue(self, attempt: Attempt, now: float) -> None:
        attempt.stage = Stage.WAITING
        self.waits.enter(attempt)
        if attempt.transfer_seconds is None:
            attempt.left = attempt.prompt - self.cached(attempt.prompt, attempt.contents)
        self.batch.waiting.append(attempt)
        if not self._is_busy:
            self._is_busy = True
            self._agenda.at(now, self._begins)

    def _came(self, attempt: Attempt, now: float) -> None:
        """The transfer of a KV cache has ended or failed."""
        if attempt.stage is not Stage.ARRIVING:  # it was aborted, or the engine has died
            return
        del self._arriving[attempt]
        if attempt.source():
            self._enqueue(attempt, now)
        else:
            attempt.stage = Stage.ENDED
            attempt.listener.on_end(attempt, SERVER_ERROR, now)

    def show(self, attempt: Attempt, *, is_unread: bool) -> None:
        """Set whether the router counts the attempt's tokens from now on."""
        decodes = attempt.stage is Stage.DECODE
        if decodes:
            self._count_decoding(attempt, -1)
        attempt.is_unread = is_unread
        if decodes:
            self._count_decoding(attempt, 1)

    def abort(self, attempt: Attempt) -> None:
        """Remove an attempt whose client has left, without further calls to it."""
        if attempt.stage is Stage.ENDED:
            return
        if attempt.stage is Stage.WAITING:
            self.batch.waiting.remove(attempt)
            self.waits.leave(attempt)
        elif attempt.stage is Stage.ARRIVING:
            del self._arriving[attempt]
        else:
            if attempt.stage is Stage.DECODE:
                self._count_decoding(attempt, -1)
            elif attempt.left:
                self.batch.prefilling.remove(attempt)
            self._free(attempt)
        self._cut_off(attempt)

    def _cut_off(self, attempt: Attempt) -> None:
        if attempt.stage is Stage.DECODE:
            attempt.made = attempt.output - (attempt.last_step - self._steps)
        attempt.stage = Stage.ENDED

    def kill(self, now: float) -> None:
        """Lose all requests and refuse connections until `start`."""
        lost = [attempt for attempt in self._all() if attempt.stage is not Stage.ENDED]
        for attempt in self.batch.waiting:
            self.waits.leave(attempt)
        self.batch.waiting.clear()
        self.batch.prefilling.clear()
        self.kv.clear()
        self.is_up = False
        self.life += 1
        self._reset()
        for attempt in lost:
            self._cut_off(attempt)
        for attempt in lost:
            attempt.listener.on_end(attempt, NO_ANSWER, now)

    def start(self, max_num_seqs: int | None = None) -> None:
        """Listen again, without requests. `max_num_seqs`: the number of slots, if it changes."""
        self.is_up = True
        if max_num_seqs is not None:
            self.model = self.batch.model = replace(self.model, max_num_seqs=max_num_seqs)

    def _all(self) -> Iterator[Attempt]:
        ending = chain.from_iterable(self._ending.values())
        return chain(
            self._arriving, self.batch.waiting, self.batch.prefilling, self._computed, ending
        )

    def _happen(self, step: Event, life: int, now: float) -> None:
        if life != self.life:
            return
        if now < self.frozen_until:
            self._agenda.at(self.frozen_until, partial(self._happen, step, life))
        else:
            step(now)

    def _begin(self, now: float) -> None:
        """Compose a step: decoding sequences continue, prompts get the rest of the budget."""
        model, batch = self.model, self.batch
        sequences, tokens, ends = self._decoding, 0, math.inf
        if model.is_on_grid:
            grid = batch.factor * model.step_seconds
            ends = (math.floor(now / grid + TOLERANCE) + 1) * grid
        if batch.prefilling or batch.waiting:
            parts = self._compute(sequences, ends)
            sequences, tokens = sequences + len(parts), sum(parts)
        if not sequences and not batch.prefilling:
            self._is_busy = False
            return
        if model.is_on_grid:
            self._agenda.at(ends, self._ends)
            return
        seconds = batch.seconds(sequences, tokens)
        chance = 1.0 + model.jitter * (2.0 * self._rng.random() - 1.0)
        chance *= self._drift.factor(now)
        self._agenda.at(now + seconds * chance, self._ends)

    def _compute(self, decoding: int, ends: float) -> list[int]:
        """Add prompts to a step besides `decoding` sequences. Returns the number of tokens of
        each."""
        prefilling = self.batch.prefilling
        if not self.model.block_size:  # otherwise each looks up its prefix when it is admitted
            prefilling.extend(iter(self._admit, None))
        least = self.batch.factor * self.model.first_token_seconds
        parts = []
        for attempt, tokens in self.batch.compose(
            decoding, self._admit, lambda one: one.arrived + least <= ends + TOLERANCE
        ):
            attempt.left -= tokens
            # Immediately, as in vLLM, so that the next one in this step finds it.
            self.kv.fill(attempt, attempt.prompt - attempt.left)
            parts.append((attempt, tokens))
        for attempt, _ in parts:
            if not attempt.left:
                self._computed.append(prefilling.popleft())
        return [tokens for _, tokens in parts]

    def _admit(self) -> Attempt | None:
        """Admit the next attempt, with room in the KV cache."""
        waiting = self.batch.waiting
        if not waiting or self.is_full or not self.kv.place(waiting[0]):
            return None
        attempt = waiting.popleft()
        self.waits.leave(attempt)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        attempt.stage = Stage.PREFILL
        if attempt.transfer_seconds is None:
            attempt.left = attempt.prompt - attempt.cached
        return attempt

    def _end(self, now: float) -> None:
        """Deliver the tokens of a step, and continue."""
        self._steps += 1
        self.stepped_at = now
        for speed, tokens in zip(self.speeds, self._shown, strict=True):
            speed.counts.counter.tokens += tokens
        self._generated += self._decoding
        if self._computed or self._steps in self._ending:  # in few steps
            self._deliver(now)
        self._begin(now)
        queued = len(self.batch.waiting) + len(self._arriving)  # self.queued takes longer
        self._exported = (self.running, queued, self.kv.usage, self._generated)

    def _deliver(self, now: float) -> None:
        """Announce the first and the last tokens of a step."""
        ended = self._ending.pop(self._steps, [])
        for attempt in ended:
            if attempt.stage is Stage.DECODE:
                self._count_decoding(attempt, -1)
        if self._computed:
            ended += self._first_tokens(now)
        for attempt in ended:
            if attempt.stage is not Stage.ENDED:
                # The last token is generated and never computed.
                self.kv.fill(attempt, attempt.prompt + attempt.output - 1)
                self._free(attempt)
                attempt.stage = Stage.ENDED
                attempt.listener.on_end(attempt, ACCEPTED, now)

    def _first_tokens(self, now: float) -> list[Attempt]:
        """Start to decode what is computed. Returns the attempts with a single token."""
        computed, self._computed = self._computed, []
        single = []
        for attempt in computed:
            if attempt.stage is Stage.ENDED:
                continue
            self._generated += 1
            attempt.listener.on_first(attempt, now)
            if self._happens(self.faults.broken, attempt):
                self._free(attempt)
                attempt.made, attempt.stage = 1, Stage.ENDED
                attempt.listener.on_end(attempt, NO_ANSWER, now)
            elif attempt.output == 1:
                single.append(attempt)
            else:
                attempt.stage = Stage.DECODE
                self._count_decoding(attempt, 1)
                attempt.last_step = self._steps + attempt.output - 1
                self._ending[attempt.last_step].append(attempt)
        return single

    def _count_decoding(self, attempt: Attempt, change: int) -> None:
        self._decoding += change
        if attempt.is_shown:
            self._shown[attempt.replica] += change

    def _free(self, attempt: Attempt) -> None:
        self.running -= 1
        self.kv.free(attempt)
