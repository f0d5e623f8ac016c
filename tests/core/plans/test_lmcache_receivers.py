"""A receiver as the prefill engines are told of it."""

import orjson

from router.core.plans.lmcache_receivers import Receiver

RECEIVER = Receiver("d0.kv", (7300, 7301), (7400, 7401))


def test_a_receiver_writes_lmcaches_disagg_spec() -> None:
    assert RECEIVER.ranks == 2
    assert orjson.dumps(RECEIVER.spec("t1")) == (
        b'{"req_id":"t1","receiver_host":"d0.kv","receiver_init_port":[7300,7301],'
        b'"receiver_alloc_port":[7400,7401]}'
    )
