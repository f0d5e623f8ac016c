"""What vLLM 0.32's MoRIIOConnector calls of mori.io: reads and writes between the memories of two
engines on one host, by messages instead of RDMA. All else of the connector is vLLM's own code.

An engine that has restarted has another socket. Transfers to its old one fail, as RDMA's do.
"""
# torch and zmq are in the lab's environment, not in the project's.
# mypy: disable-error-code="import-not-found, no-untyped-call"

import ctypes
import pickle
import sys
import threading
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

import torch
import zmq

CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.moriio.moriio_connector"
PATIENCE = 1000
"""Milliseconds in which a living engine answers."""


class BackendType(Enum):
    """How data is moved; here in one way only."""

    RDMA = auto()
    XGMI = auto()


class PollCqMode(Enum):
    """An option of RDMA."""

    POLLING = auto()


def IOEngineConfig(*_given: object, **_more: object) -> None:  # noqa: N802 - its name there
    """Options, which are not needed."""


RdmaBackendConfig = XgmiBackendConfig = IOEngineConfig


class _Description(SimpleNamespace):
    def pack(self) -> bytes:
        return pickle.dumps(vars(self))

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        return cls(**pickle.loads(packed))


class EngineDesc(_Description):
    """An engine's key."""


class MemoryDesc(_Description):
    """An engine's memory: `data` points to it, and the engine listens at `address`."""


class Status(NamedTuple):
    """The end of a transfer."""

    error: str = ""

    def Succeeded(self) -> bool:  # noqa: N802
        return not self.error

    def Failed(self) -> bool:  # noqa: N802
        return bool(self.error)

    def Message(self) -> str:  # noqa: N802
        return self.error

    def Code(self) -> int:  # noqa: N802
        return int(self.Failed())


class IOEngine:
    """One side of transfers."""

    def __init__(self, key: str, _config: object) -> None:
        worker = sys.modules[CONNECTOR].MoRIIOConnectorWorker
        worker._build_shared_kv_mr = _build_shared_kv_mr
        self._key = key
        self._socket: Any = zmq.Context.instance().socket(zmq.REP)
        port: int = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._address = f"tcp://127.0.0.1:{port}"
        self._numbers = count()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            read = []
            for address, size, data in pickle.loads(self._socket.recv()):
                if data is None:
                    read.append(ctypes.string_at(address, size))
                else:
                    ctypes.memmove(address, data, size)
            self._socket.send(pickle.dumps(read))

    def create_backend(self, *_given: object) -> None:
        pass

    def register_remote_engine(self, description: EngineDesc) -> None:
        pass

    def get_engine_desc(self) -> EngineDesc:
        return EngineDesc(key=self._key)

    def register_torch_tensor(self, tensor: torch.Tensor) -> MemoryDesc:
        return MemoryDesc(data=tensor.data_ptr(), address=self._address)

    def create_session(self, local: MemoryDesc, remote: MemoryDesc) -> "Session":
        return Session(local, remote)

    def allocate_transfer_uid(self) -> int:
        return next(self._numbers)


class Session:
    """Transfers between two memories, by offsets in each."""

    def __init__(self, local: MemoryDesc, remote: MemoryDesc) -> None:
        self._local, self._remote = local, remote

    def batch_write(
        self, local: Sequence[int], remote: Sequence[int], sizes: Sequence[int], _uid: int
    ) -> Status:
        parts = [
            (self._remote.data + there, size, ctypes.string_at(self._local.data + here, size))
            for here, there, size in zip(local, remote, sizes, strict=True)
        ]
        return Status() if self._ask(parts) is not None else Status("no answer")

    def batch_read(
        self, local: Sequence[int], remote: Sequence[int], sizes: Sequence[int], _uid: int
    ) -> Status:
        read = self._ask(
            [
                (self._remote.data + there, size, None)
                for there, size in zip(remote, sizes, strict=True)
            ]
        )
        if read is None:
            return Status("no answer")
        for here, size, data in zip(local, sizes, read, strict=True):
            ctypes.memmove(self._local.data + here, data, size)
        return Status()

    def _ask(self, parts: Sequence[tuple[int, int, bytes | None]]) -> list[bytes] | None:
        opened: Any = zmq.Context.instance().socket(zmq.REQ)
        with opened as socket:
            socket.linger, socket.rcvtimeo = 0, PATIENCE
            socket.connect(self._remote.address)
            socket.send(pickle.dumps(parts))
            try:
                read: list[bytes] = pickle.loads(socket.recv())
            except zmq.Again:
                return None
            return read


def _build_shared_kv_mr(
    _worker: object, kv_caches: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, dict[str, int]]:
    """Without the alignment to pages, for which a CPU's KV cache has no room."""
    backing = next(iter(kv_caches.values())).view(torch.uint8)
    whole = torch.as_strided(backing, (backing.untyped_storage().nbytes(),), (1,), 0)
    start = whole.data_ptr()
    return whole, {name: cache.data_ptr() - start for name, cache in kv_caches.items()}


class _Event:
    """A CPU has computed a layer when its call returns."""

    def record(self, _stream: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


torch.cuda.Event = _Event
torch.cuda.current_stream = lambda _device=None: None
