"""The scenarios by name. Engine 0 is always one of the slowest; prefill engines come last."""

from dataclasses import replace

from router.simulator.virtual.scenarios import disturbances, pools
from router.simulator.virtual.scenarios.pools import ENGINE, Maker, Size, base_of, changed
from router.simulator.virtual.scenarios.prefixes import LOADS, MOONCAKE_ENGINE, of_sessions
from router.simulator.virtual.values import (
    FaultRates,
    Freeze,
    Lengths,
    Restart,
    Scenario,
    Session,
    Speed,
)

SCENARIOS: dict[str, Maker] = {
    "healthy": changed(),
    "slow3": changed(Speed(0.0, 0, 3.0)),
    "slow8": changed(Speed(0.0, 0, 8.0)),
    "freeze": changed(Freeze(4.0, 0, 10.0)),
    "two-slow": disturbances.slow(4, 8.0),
    "mixed": disturbances.slow(2, 2.0),
    "rolling-restart": disturbances.rolling_restart,
    "bursts": disturbances.bursts,
    "heavy-tails": disturbances.heavy_tails,
    "replicas": disturbances.three(),
    "replicas-few-slots": disturbances.few_slots,
    "replicas-slow8": disturbances.three(Speed(0.0, 0, 8.0)),
    **{f"workers-{count}": disturbances.workers(count) for count in (1, 2, 4)},
    **{
        f"workers-{count}-slow8": disturbances.workers(count, Speed(0.0, 0, 8.0))
        for count in (1, 2, 4)
    },
    "h100": pools.h100(),
    "h100-stall": pools.h100(Speed(3.0, 0, 8.0)),
    "waves": disturbances.waves,
    "open-loop": disturbances.open_loop,
    "overload": disturbances.overload,
    "alternating": disturbances.alternating,
    "all-slow": disturbances.all_slow,
    "two-speeds": pools.two_speeds,
    "mixed-slots": pools.of_models(
        replace(ENGINE, max_num_seqs=32), replace(ENGINE, max_num_seqs=128)
    ),
    "two-models": pools.serving("a", "b"),
    "three-models": pools.serving("a", "ab", "bc", "c"),
    "hung-core": disturbances.hung_core,
    "every-stream-breaks": changed(FaultRates(2.0, 0, broken=1.0)),
    "fails-20-percent": changed(FaultRates(2.0, 0, failed=0.2)),
    "model-fails": disturbances.model_fails(is_everywhere=True),
    "model-fails-on-one": disturbances.model_fails(is_everywhere=False),
    "poisoned-prompt": disturbances.poisoned_prompt,
    "refuses": changed(FaultRates(2.0, 0, refused=0.5)),
    "slow-clients": disturbances.slow_clients(is_everywhere=False),
    "slow-clients-everywhere": disturbances.slow_clients(is_everywhere=True),
    "restart": changed(Restart(4.0, 0, 5.0)),
    "router-restart": disturbances.router_restart,
    "disaggregated": pools.disaggregated(ENGINE, Lengths(2000, 0.8, 16_384)),
    "slow-prefills": pools.disaggregated(
        replace(ENGINE, prefill_tokens_per_second=2000.0),
        Lengths(20_000),
        streams=0.5,
        requests=10,
    ),
    "zones-near": pools.zones(1.0),
    "zones-far": pools.zones(10.0),
    **{
        f"{name}-{percent}": pools.prefill_load(share, percent / 100)
        for name, share in (("2p6d", 4), ("4p4d", 2))
        for percent in (30, 90, 150)
    },
    "prefill-pool-gone": pools.disaggregated(ENGINE, Lengths(pools.LONG), gone_at=30.0),
    **{name: load.scenario for name, load in LOADS.items()},
}


def scenario(name: str, size: Size) -> Scenario:
    """The scenario of that name and size. Raises KeyError, or ValueError for an invalid size."""
    made = SCENARIOS[name](base_of(name, size), size)
    streams = made.workload.streams
    work = replace(
        made.workload,
        streams=(size.streams or streams) if streams else 0,
        requests=size.requests or made.workload.requests,
    )
    return _with_replicas(replace(made, workload=work), size)


def replayed(name: str, size: Size, sessions: tuple[Session, ...]) -> Scenario:
    """A trace in Mooncake's format on engines that suit it, from its first request on. Raises
    ValueError."""
    begin = min((each.at for each in sessions), default=0.0)
    sessions = tuple(replace(each, at=each.at - begin) for each in sessions)
    made = of_sessions(base_of(name, size), MOONCAKE_ENGINE, sessions)
    return _with_replicas(made, size)


def _with_replicas(made: Scenario, size: Size) -> Scenario:
    has_peers = size.has_peers and not made.has_workers
    return replace(made, replicas=size.replicas or made.replicas, has_peers=has_peers)
