"""The operators' side of the router: what they can read, and the engines that they add and
remove."""

import time
from collections.abc import Callable
from functools import cached_property

from fastapi import FastAPI

from router.core.fleet.fleet import Fleet
from router.core.fleet.status import StatusLog
from router.core.membership.engine_names import EngineNetworks
from router.settings import Settings
from router.telemetry.metrics import Counts
from router.web.admin import OperationsHandler
from router.web.client_parts import key_file_of
from router.web.client_side import ClientSide
from router.web.dashboard.figures import Figures, Readings
from router.web.dashboard.page import Sampler
from router.web.engines_api import add_engines_api, clock
from router.web.fleet_sync import FleetSync
from router.web.operations import Admin, Lifecycle, create_admin_operations
from router.web.replicas import Replicas, add_peers_api

__all__ = ["OperatorSide"]


class OperatorSide:
    """`handler` takes operators' requests on the admin listener. `admin` is what they can read
    there or, without that listener, on the clients' one."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        sync: FleetSync,
        networks: EngineNetworks,
        replicas: Replicas | None,
        lifecycle: Lifecycle,
        counts: Counts,
        clients: ClientSide,
        has_prefill: Callable[[], bool],
    ) -> None:
        self._fleet = fleet
        self._has_prefill = has_prefill
        self._lifecycle = lifecycle
        self._has_listener = settings.admin_port is not None
        self.status_log = StatusLog(
            *(fleet, fleet.pool, fleet.is_panic, time.monotonic()),
            avoids_slow=fleet.avoids_slow,
            time_of=clock,
        )
        self.readings = Readings(fleet, counts.totals)
        self.sampler = Sampler(self._figures, self._ends_viewers)
        self.admin = Admin(
            counts.exposition, self.sampler, settings.otlp_traces_endpoint is not None
        )
        self._sync = sync
        self._networks = networks
        self._replicas = replicas
        self.handler = OperationsHandler(
            lambda: self.operations,
            clients.limits,
            clients.read_limiter,
            key_file_of(settings.admin_key_file),
            settings.peer_key,
            None if replicas is None else replicas.siblings,
        )

    @cached_property
    def operations(self) -> FastAPI:
        """The application behind `handler`, created on first use."""
        operations = create_admin_operations(self._fleet, self._lifecycle, self.admin)
        add_engines_api(operations, self._fleet, self._sync, self._networks)
        if self._replicas is not None:
            add_peers_api(operations, self._replicas.siblings)
        return operations

    def prepare(self) -> None:
        """Create the application now, if there is an admin listener."""
        if self._has_listener:
            _ = self.operations

    @property
    def for_clients(self) -> Admin | None:
        """What clients can read too: everything, unless there is an admin listener."""
        return None if self._has_listener else self.admin

    def _figures(self) -> Figures:
        return Figures(
            self._fleet,
            self.status_log,
            self.readings,
            lambda: self._lifecycle.is_draining,
            self._has_prefill,
        )

    def _ends_viewers(self) -> bool:
        """Whether viewers of the live page are disconnected at a shutdown. On the admin listener,
        which is closed last, they are not; on the public one they would delay the shutdown."""
        return self._lifecycle.is_draining and not self._has_listener
