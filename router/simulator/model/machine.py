"""The engine as a pure state machine: queue, batch and KV blocks, with continuous batching like
vLLM's.

`begin(now)` composes a step and returns when it ends; `finish(now)` performs it and returns the
outputs. Nothing waits, sends or knows HTTP: time is an argument, and KV caches that have to be
loaded are listed in `loads` for the caller.
"""

from collections import deque
from functools import partial

from router.simulator.config import EngineConfig
from router.simulator.model.batching import Batch
from router.simulator.model.kv_cache import KvCache
from router.simulator.model.sequence import (
    Counters,
    Output,
    RemoteRead,
    Sequence,
    Stage,
    end_of,
    next_token,
)


class EngineDead(Exception):
    """The engine has failed permanently."""


class QueueFull(Exception):
    """The queue has reached its limit."""


class Machine:
    """One engine without its server."""

    def __init__(self, config: EngineConfig, engine_id: str) -> None:
        self._config = config
        self.kv = KvCache(config, engine_id)
        self.counters = Counters()
        self.loads: list[Sequence] = []
        """Sequences whose KV cache has to be loaded; the caller empties the list."""
        self.batch: Batch[Sequence] = Batch(config.batch)
        self.dead = False
        self._loading: set[Sequence] = set()
        # They hold blocks, so they must never wait behind a sequence that waits for blocks.
        self._ready: deque[Sequence] = deque()
        self._decoding: list[Sequence] = []
        self._step: list[tuple[Sequence, int]] = []

    @property
    def running(self) -> int:
        return len(self._decoding) + len(self.batch.prefilling)

    @property
    def loading(self) -> int:
        """Number of requests whose KV cache is being loaded; they count as waiting too."""
        return len(self._loading)

    @property
    def waiting(self) -> int:
        return len(self.batch.waiting) + len(self._loading) + len(self._ready)

    # Arrival and departure.

    def submit(self, sequences: list[Sequence], now: float) -> None:
        """Queue the sequences of one request. Raises QueueFull or EngineDead, without queueing
        any."""
        if self.dead:
            raise EngineDead
        if not self.batch.has_room(self.waiting):
            self.counters.rejected += 1
            raise QueueFull
        for sequence in sequences:
            sequence.arrived, sequence.stage = now, Stage.WAITING
            self.batch.waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Remove a sequence and free its slot and blocks."""
        if sequence.stage is Stage.ENDED:
            return
        self._remove(sequence)
        self.kv.drop(sequence)

    def stop(self, sequence: Sequence, now: float) -> None:
        """End a sequence early and successfully, because its text contains a stop string."""
        if sequence.stage is not Stage.ENDED:
            self.abort(sequence)
            self.counters.end(sequence, "stop", now)

    def kill(self) -> list[Output]:
        """Let the engine fail permanently, with all its sequences."""
        self.dead = True
        return self.abort_all("dead")

    def abort_all(self, finish: str = "abort") -> list[Output]:
        """Abort all sequences, which have this finish reason."""
        lost = [
            *(*self._decoding, *self.batch.prefilling),
            *(*self._loading, *self._ready, *self.batch.waiting),
        ]
        for sequence in lost:
            self.abort(sequence)
        return [Output(sequence, None, finish) for sequence in lost]

    def _remove(self, sequence: Sequence) -> None:
        if sequence.stage is Stage.RUNNING:
            self._stop_running(sequence)
        elif sequence.stage is Stage.LOADING:
            self._loading.remove(sequence)
        elif sequence.stage is Stage.READY:
            self._ready.remove(sequence)
        elif sequence.stage is Stage.WAITING:
            self.batch.waiting.remove(sequence)
        sequence.stage = Stage.ENDED

    def _stop_running(self, sequence: Sequence) -> None:
        is_decoding = sequence in self._decoding
        (self._decoding if is_decoding else self.batch.prefilling).remove(sequence)

    # Steps.

    def begin(self, now: float) -> float | None:
        """Compose the next step and return its end; None if there is nothing to do.

        Running sequences come first; prompts get the rest of the token budget.
        """
        self.kv.references.expire(now)
        preempted = self.counters.preemptions
        step: list[tuple[Sequence, int]] = []
        for sequence in list(self._decoding):
            if len(step) == self._config.max_num_batched_tokens:
                break
            if sequence.stage is Stage.RUNNING and self._grow(sequence):
                step.append((sequence, 1))
        step = [part for part in step if part[0].stage is Stage.RUNNING]
        # Otherwise a sequence that was just preempted would be admitted first.
        may_admit = preempted == self.counters.preemptions or not (step or self.batch.prefilling)
        admit = partial(self._admit, now) if may_admit else lambda: None
        prompts = []
        for part in self.batch.compose(len(step), admit):
            prompts.append(part)
            # Immediately, as in vLLM, so that the next prompt of this step finds it.
            self._fill(*part)
        for part in step:
            self._fill(*part)
        self._step = step + prompts
        if not self._step:
            return None
        # A prompt's last token is not counted: its keys and values are computed in a decode step.
        computed = sum(tokens for _, tokens in prompts if tokens > 1)
        return now + self.batch.seconds(len(self._step), computed)

    def _fill(self, sequence: Sequence, tokens: int) -> None:
        """Note what this step computes, and what was loaded before."""
        self.kv.fill(sequence, sequence.computed + tokens)

    def _admit(self, now: float) -> Sequence | None:
        """The sequence to run next: first those whose KV cache has been loaded, then the queue."""
        if self._ready:
            return self._run(self._ready.popleft())
        waiting = self.batch.waiting
        while waiting and self._has_slot() and self._place(waiting[0], now):
            sequence = waiting.popleft()
            if sequence.stage is not Stage.LOADING:
                return self._run(sequence)
        return None

    def _run(self, sequence: Sequence) -> Sequence:
        sequence.stage = Stage.RUNNING
        return sequence

    def _has_slot(self) -> bool:
        taken = self.running + len(self._loading) + len(self._ready)
        return taken < self._config.max_num_seqs

    def _grow(self, sequence: Sequence) -> bool:
        """Make room for the next token. Returns False if the sequence itself was preempted."""
        while not self.kv.grow(sequence):
            victim = (self.batch.prefilling or self._decoding)[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Preempt a sequence, the latest one: free its blocks, to be computed again later."""
        self.counters.preemptions += 1
        self._stop_running(sequence)
        self.kv.drop(sequence)
        sequence.stage = Stage.WAITING
        self.batch.waiting.appendleft(sequence)

    def _place(self, sequence: Sequence, now: float) -> bool:
        """Allocate blocks for a queued sequence, and start to load its KV cache if it is
        elsewhere."""
        if not self.kv.place(sequence):
            return False
        if sequence.admitted is None:
            sequence.cached = sequence.computed
            self.counters.admit(sequence, now, looked_up=self._config.prefix_caching)
        self._look_elsewhere(sequence)
        return True

    def _look_elsewhere(self, sequence: Sequence) -> None:
        """Find a prompt's KV cache elsewhere: by its reference, or among pushed ones."""
        if sequence.remote is not None:
            sequence.stage = Stage.LOADING
            self._loading.add(sequence)
            self.loads.append(sequence)
            self.counters.look_elsewhere(sequence, len(sequence.prompt) - sequence.cached)
        elif self._config.moriio_reads and self._config.role == "decode" and sequence.left > 1:
            sequence.external, sequence.computed = sequence.left - 1, len(sequence.tokens) - 1
            sequence.spoil([])
        elif self.kv.external and not sequence.generated:
            self.kv.take_external(sequence)
            self.counters.look_elsewhere(sequence, sequence.external)

    # KV caches of other engines.

    def queued_references(self) -> list[RemoteRead]:
        """References of queued requests, whose leases must be renewed."""
        return [each.remote for each in self.batch.waiting if each.remote is not None]

    def wanted(self, sequence: Sequence) -> list[int]:
        """The remote blocks to read; if there are more than are missing here, the last ones, as in
        vLLM.

        Raises EngineDead where an assertion of vLLM's worker would fail: the prompt needs more
        blocks than the prefill engine has computed.
        """
        assert sequence.remote is not None
        missing = len(self.kv.lacking(sequence))
        if missing > len(sequence.remote.blocks):
            raise EngineDead
        return sequence.remote.blocks[-missing:]

    def loaded(self, sequence: Sequence, contents: list[int]) -> None:
        """Note that the KV cache was loaded. It is used whatever its content, since engines cannot
        check it."""
        if sequence.stage is not Stage.LOADING:
            return
        self.counters.transfers += 1
        if contents != self.kv.lacking(sequence):
            self.counters.wrong_transfers += 1
            sequence.spoil(contents)
        sequence.external = len(sequence.prompt) - sequence.cached
        sequence.computed = len(sequence.prompt) - 1
        self._requeue(sequence)

    def load_failed(self, sequence: Sequence) -> list[Output]:
        """Note that loading failed. By policy the request fails, or its prompt is computed here."""
        if sequence.stage is not Stage.LOADING:
            return []
        self.counters.failed_transfers += 1
        if self._config.kv_load_failure_policy == "recompute":
            self._requeue(sequence)
            return []
        self.abort(sequence)
        self.counters.finished["error"] += 1
        return [Output(sequence, None, "error")]

    def _requeue(self, sequence: Sequence) -> None:
        self._loading.remove(sequence)
        sequence.remote = None
        sequence.stage = Stage.READY
        self._ready.append(sequence)

    # The result of a step.

    def finish(self, now: float) -> list[Output]:
        """Perform the step that `begin` composed."""
        step, self._step = self._step, []
        self.counters.steps += bool(step)
        outputs = []
        for sequence, tokens in step:
            if sequence.stage is Stage.RUNNING:
                sequence.computed += tokens
                if not sequence.left:
                    outputs.append(self._emit(sequence, now))
        return outputs

    def _emit(self, sequence: Sequence, now: float) -> Output:
        prefilling = self.batch.prefilling
        if prefilling and prefilling[0] is sequence:
            self._decoding.append(prefilling.popleft())
        token = next_token(sequence)
        sequence.tokens.append(token)
        sequence.state = sequence.prompt.language.after(sequence.state, token)
        self.counters.token(sequence, now)
        finish, reason = end_of(sequence, token)
        if finish is not None:
            self._end(sequence, finish, now)
        return Output(sequence, token, finish, reason)

    def _end(self, sequence: Sequence, finish: str, now: float) -> None:
        self._remove(sequence)
        self.counters.end(sequence, finish, now)
        if sequence.keep and (finish == "length" or self._config.kv_params_on_stop):
            self.kv.keep(sequence, now)
        elif self._config.kv_returns and sequence.external:
            self.kv.keep(sequence, now)
            returned = {"do_remote_prefill": False, "do_remote_decode": True}
            sequence.kv_params = {**(sequence.kv_params or {}), **returned}
        else:
            self.kv.drop(sequence)
