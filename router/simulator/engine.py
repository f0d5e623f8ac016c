"""One simulated engine without its listener: the machine, its driver and its peers.

The driver steps the machine in real time. There is one task per engine, whatever the number of
requests: a step ends, each sequence of the batch gets its token, and the next step begins. It is
the only clock of an engine.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from datetime import UTC, datetime
from random import Random
from typing import Any
from uuid import uuid4

from router.simulator.api.errors import engine_dead, internal
from router.simulator.api.generation_request import GenerationRequest
from router.simulator.config import EngineConfig
from router.simulator.encoder import Encoder
from router.simulator.faults import NO_FAULTS, FaultPlan, Faults
from router.simulator.kv_events import KVEventPublisher
from router.simulator.model.language import Language
from router.simulator.model.machine import EngineDead, Machine
from router.simulator.model.sequence import Output, Prompt, RemoteRead, Sequence, Stage
from router.simulator.records import Records
from router.simulator.transfers import BadSpec, DisaggSpec, HandOver, KvClient, SharedStore

_MAX_CATCH_UP_S = 0.25
"""Delays in seconds that are made up for, so that timer granularity does not accumulate. After a
longer pause (a busy machine, a stall) the engine does not speed up."""


class Gone(Exception):
    """The client has closed the connection."""


class Inbox:
    """Outputs for one request that have not been processed."""

    __slots__ = ("_gone", "_outputs", "_waiter")

    def __init__(self) -> None:
        self._outputs: list[Output] = []
        self._waiter: asyncio.Future[None] | None = None
        self._gone = False

    def put(self, output: Output) -> None:
        self._outputs.append(output)
        self._ring()

    def leave(self) -> None:
        """Note that the client has left: waiting calls raise Gone."""
        self._gone = True
        self._ring()

    def _ring(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Output]:
        """Wait for outputs and return all that have arrived, at least one. Raises Gone."""
        while not self._outputs and not self._gone:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._gone:
            raise Gone
        outputs, self._outputs = self._outputs, []
        return outputs


class Driver:
    """Runs a machine in real time."""

    def __init__(
        self, machine: Machine, faults: FaultPlan, load: Callable[[Sequence], None]
    ) -> None:
        self._machine = machine
        self._faults = faults
        self._load = load
        self._inboxes: dict[Sequence, Inbox] = {}
        self._bell = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.asleep = False
        self.on_step: Callable[[], None] = lambda: None
        """Called when a step has been composed."""

    def now(self) -> float:
        return self._loop.time()

    def submit(self, sequences: list[Sequence], inbox: Inbox) -> None:
        """Queue the sequences of a request. Raises the same errors as Machine.submit."""
        self._machine.submit(sequences, self.now())
        for sequence in sequences:
            self._inboxes[sequence] = inbox
        self.wake()

    def forget(self, sequences: Iterable[Sequence]) -> None:
        """Abort the sequences of a request that are still running."""
        for sequence in sequences:
            self._inboxes.pop(sequence, None)
            if sequence.stage is not Stage.ENDED:
                self._machine.abort(sequence)
        self.wake()

    def deliver(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            inbox = self._inboxes.get(output.sequence)
            if inbox is not None:
                inbox.put(output)

    def sleep(self) -> None:
        """Abort everything, and let later requests wait until it is awake."""
        self.asleep = True
        self.deliver(self._machine.abort_all())

    def wake(self) -> None:
        """Wake an idle machine, because something has changed."""
        self._bell.set()

    async def run(self) -> None:
        """Step until cancelled."""
        at = self.now()
        while True:
            ends = self._begin(at)
            if ends is None:
                await self._rest()
                at = self.now()
                continue
            await asyncio.sleep(max(0.0, ends - self.now()))
            now = self.now()
            self.deliver(self._machine.finish(now))
            at = ends if now - ends < _MAX_CATCH_UP_S else now

    def _begin(self, at: float) -> float | None:
        if self._faults.now.stall or self.asleep:
            return None
        self._machine.batch.factor = self._faults.now.slow
        ends = self._machine.begin(at)
        self.on_step()
        loads, self._machine.loads = self._machine.loads, []
        for sequence in loads:
            self._load(sequence)
        return ends

    async def _rest(self) -> None:
        """Wait until something arrives, or until a lease ends whose blocks a sequence waits for."""
        self._bell.clear()
        expires = self._machine.kv.references.expires_next
        if not self._machine.waiting or expires == float("inf"):
            await self._bell.wait()
            return
        try:
            async with asyncio.timeout_at(expires):
                await self._bell.wait()
        except TimeoutError:
            pass


async def _nowhere(_open: bool) -> None:
    """The `listen` of an engine without a server."""


_HEARTBEATS_PER_LEASE = 6
"""vLLM renews a lease this often while the request is queued on the decode engine."""


class Engine:
    """All parts of one engine. Call `start` first and `close` last."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.engine_id = config.engine_id or str(uuid4())
        self.machine = Machine(config, self.engine_id)
        self.faults = FaultPlan(config.faults, Random(config.seed))
        self.records = Records(config.request_log)
        self.driver = Driver(self.machine, self.faults, self._load)
        self.client = KvClient(config)
        self.transfers = HandOver(config, self.faults, self.client)
        self.encoder = Encoder(config)
        self._store = None if config.store is None else SharedStore(config.store)
        self.events = KVEventPublisher(config, self.machine.kv.events, self.faults)
        self.driver.on_step = self.events.flush
        self.started = self.wall_clock()
        self.died = asyncio.Event()
        self.listen: Callable[[bool], Awaitable[None]] = _nowhere
        """Opens or closes the listener; set by the server."""
        self.connections: Callable[[], int] = lambda: 0
        self.drop_connections: Callable[[], None] = lambda: None
        self._tasks: set[asyncio.Task[None]] = set()

    def load_adapter(self, name: str) -> None:
        """Serve a further adapter, on all ranks: they share the list."""
        self.config.loras.append(name)

    def wall_clock(self) -> int:
        """Seconds since the epoch, for answers."""
        return int(datetime.now(UTC).timestamp())

    def start(self, host: str, port: int) -> None:
        self.machine.kv.references.address = (host, port)
        self.events.start()
        self.spawn(self.driver.run())
        self.spawn(self._heartbeats())

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.close()
        self.transfers.close()
        self.events.close()

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run a task that may outlive its request; it ends with the engine."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def set_faults(self, faults: Faults, for_s: float | None = None) -> None:
        """Replace the current faults, for a time in seconds or until the next call."""
        self.faults.put(faults)
        await self.listen(not faults.refuse)
        self.driver.wake()
        if for_s is not None:
            self.spawn(self._clear_faults(faults, for_s))

    async def _clear_faults(self, faults: Faults, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if self.faults.given is faults:
            await self.set_faults(NO_FAULTS)

    # Requests.

    def sequences(self, request: GenerationRequest, answer_id: str) -> list[Sequence]:
        """Create the sequences of a request. Raises ApiError for invalid KV parameters."""
        remote, keep = self._reference(request)
        transfer_id = _transfer_id(request) if self.config.connector == "mooncake" else None
        target = RemoteRead.parse_moriio(request.kv or {}) if keep and self._is_moriio else None
        self._check_spec(request)
        if request.model in self.config.loras:
            self.machine.counters.adapters[request.model] = self.wall_clock()
        language = Language(request.model, self.config.eos_one_in)
        salt = f"{request.model}\0{request.cache_salt}"
        sequences = []
        for place, tokens in enumerate(request.prompts):
            prompt = Prompt.of(tokens, language, self.config.block_size, salt)
            self._find_in_store(prompt)
            number = f"-{place}" if request.api == "completions" else ""
            for _ in range(request.n):
                name = f"{answer_id}{number}-{uuid4().hex[:8]}"
                sequences.append(
                    Sequence(
                        name,
                        prompt,
                        request.sampling,
                        remote=remote,
                        keep=keep,
                        transfer_id=transfer_id,
                        target=target,
                    )
                )
        return sequences

    @property
    def _is_moriio(self) -> bool:
        return self.config.connector == "moriio"

    def reference(self, params: Mapping[str, Any]) -> RemoteRead | None:
        """A decode request's reference; None if it has none that the connector can use."""
        if self.config.connector == "mooncake":
            return RemoteRead.parse_mooncake(params)
        if self._is_moriio:
            return RemoteRead.parse_moriio(params)
        return RemoteRead.parse(params) if self.config.connector.startswith("nixl") else None

    def _reference(self, request: GenerationRequest) -> tuple[RemoteRead | None, bool]:
        """Where to read the KV cache from, and whether to keep it.

        Conditions that vLLM asserts without checking end the whole engine. NIXL: incomplete
        parameters, and one reference for several prompts (CVE-2026-94623). Mooncake: parameters of
        the other role. MoRIIO: these, and a peer without an address.
        """
        is_mooncake = self.config.connector == "mooncake"
        by_role = is_mooncake or self._is_moriio
        if not request.kv or not (by_role or self.config.connector.startswith("nixl")):
            return None, False
        loads, keeps = (bool(request.kv.get(f"do_remote_{leg}")) for leg in ("prefill", "decode"))
        remote = self.reference(request.kv) if loads else None
        if by_role:
            is_lost = self.config.role == ("prefill" if loads else "decode") and (loads or keeps)
            if self._is_moriio:
                is_lost |= (loads or keeps) and not _is_addressed(request.kv)
            keeps = keeps and not loads and _transfer_id(request) is not None
        else:
            is_lost = loads and (remote is None or len(request.prompts) > 1)
        if is_lost:
            self.die()
            raise engine_dead()
        return remote, keeps

    def _check_spec(self, request: GenerationRequest) -> None:
        if self.config.connector == "lmcache" and request.kv and "disagg_spec" in request.kv:
            try:
                self.transfers.check(request.kv["disagg_spec"])
            except BadSpec:
                raise internal() from None

    def _find_in_store(self, prompt: Prompt) -> None:
        if self._store is not None and (found := self._store.find(prompt)):
            size = self.config.block_size
            self.machine.kv.external.add(found, len(found) * size, size)

    def hand_over(self, request: GenerationRequest, sequence: Sequence) -> None:
        """Pass on the KV cache of a computed prompt: to the store, or with its first token to
        LMCache's receiver."""
        if self._store is not None:
            if self.config.store_delay_s:
                self.spawn(self._publish_late(self._store, sequence.prompt))
            else:
                self._store.put(sequence.prompt)
        if self.config.connector != "lmcache" or not request.kv:
            return
        if "ret_first_tok" in request.kv:  # LMCache checks for the key and ignores its value
            sequence.kv_params = {"first_tok": sequence.tokens[len(sequence.prompt)]}
        if "disagg_spec" in request.kv:
            spec = DisaggSpec.parse(request.kv["disagg_spec"])
            self.spawn(self.transfers.run(spec, sequence.prompt))

    async def _publish_late(self, store: SharedStore, prompt: Prompt) -> None:
        await asyncio.sleep(self.config.store_delay_s)
        store.put(prompt)

    def forget(self, sequences: Iterable[Sequence]) -> None:
        """Release a request that has ended for any reason, including references that were not
        read."""
        for sequence in sequences:
            if sequence.stage in (Stage.NEW, Stage.WAITING) and sequence.remote is not None:
                self.release(sequence.remote)
        self.driver.forget(sequences)

    def release(self, remote: RemoteRead) -> None:
        """Notify the prefill engine that the reference will not be read."""
        self.spawn(self.client.notify(remote, "release"))

    # KV caches of other engines.

    def _load(self, sequence: Sequence) -> None:
        self.spawn(self._pull(sequence))

    async def _pull(self, sequence: Sequence) -> None:
        remote = sequence.remote
        assert remote is not None
        blocks: list[int] = []
        if self.config.connector.startswith("nixl"):
            try:
                blocks = self.machine.wanted(sequence)
            except EngineDead:
                self.die()
                return
        if self.config.connector == "nixl-push" and not _is_of(remote, sequence):
            return  # the prefill engine finds no blocks of that id, and nothing arrives
        contents, tokens = None, len(sequence.prompt)
        if self._is_moriio:
            missing = len(self.machine.kv.lacking(sequence))
            contents = await self.client.written(
                remote, missing, tokens, self.machine.kv.references
            )
            if contents is None or self.faults.take_kv_failure():
                return  # no failure is reported, and nothing arrives
        elif self.faults.take_kv_failure():
            pass
        elif self.config.connector == "mooncake":
            missing = len(self.machine.kv.lacking(sequence))
            contents = await self.client.fetch(remote, missing, tokens)
        else:
            contents = await self.client.pull(remote, blocks, tokens)
        if contents is None:
            self.driver.deliver(self.machine.load_failed(sequence))
        else:
            self.machine.loaded(sequence, contents)
        self.driver.wake()

    async def _heartbeats(self) -> None:
        """Renew the leases of references in the queue."""
        while self.config.connector.startswith("nixl"):
            await asyncio.sleep(self.config.kv_lease_s / _HEARTBEATS_PER_LEASE)
            for remote in self.machine.queued_references():
                await self.client.notify(remote, "heartbeat")

    def die(self) -> None:
        """Let the engine fail permanently. Its server answers with errors, for a while."""
        self.driver.deliver(self.machine.kill())
        self.died.set()


def _is_addressed(params: Mapping[str, Any]) -> bool:
    """Whether MoRIIO finds all that it needs of a peer."""
    needed = {"remote_engine_id", "remote_block_ids", "remote_handshake_port"}
    return RemoteRead.parse_moriio(params) is not None and needed <= params.keys()


def _transfer_id(request: GenerationRequest) -> str | None:
    return (request.kv or {}).get("transfer_id")


def _is_of(remote: RemoteRead, sequence: Sequence) -> bool:
    """Whether two engines' ids are of one X-Request-Id: vLLM adds eight digits to it."""
    ours, theirs = (each.request_id.rpartition("-")[0] for each in (sequence, remote))
    return ours == theirs
