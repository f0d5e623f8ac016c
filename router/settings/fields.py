"""All settings."""

from router.settings.engine_values import Receiver
from router.settings.groups.access import Access
from router.settings.groups.connector import Connector
from router.settings.groups.engines import Engines
from router.settings.groups.exclusion import Exclusion
from router.settings.groups.group import LIVE
from router.settings.groups.limits import Limits
from router.settings.groups.listeners import Listeners
from router.settings.groups.probing import Probing
from router.settings.groups.routing import Routing
from router.settings.groups.telemetry import Telemetry
from router.settings.groups.timeouts import Timeouts

__all__ = ["Fields", "is_reloadable"]


class Fields(  # the last class's fields come first, in --help and in docs/settings.md
    Telemetry,
    Limits,
    Timeouts,
    Access,
    Probing,
    Connector,
    Exclusion,
    Routing,
    Engines,
    Listeners,
):
    """Every setting, and what follows from them."""

    @property
    def receivers(self) -> dict[str, Receiver]:
        """LMCache's receivers by decode URL; empty when there is nothing to receive."""
        if self.decoder_registry is not None:
            return self.decoder_registry
        if self.decoder_host is None:
            return {}
        one = Receiver(
            receiver_host=self.decoder_host,
            receiver_init_port=self.decoder_init_port,
            receiver_alloc_port=self.decoder_alloc_port,
        )
        return dict.fromkeys(self.decode, one)

    @property
    def shares_prompts(self) -> bool:
        """Whether sibling replicas are told of prompts: where there are any, and history counts."""
        return bool(self.peers or self.dns_peers) and self.prefix_cache != "off"


def is_reloadable(name: str) -> bool:
    """Whether a setting takes effect while the router runs."""
    return Fields.model_fields[name].json_schema_extra == LIVE
