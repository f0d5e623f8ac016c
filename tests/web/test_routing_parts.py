"""What the settings make of the parts that route."""

from router.core.values import Role
from router.settings import Settings
from router.web.routing_parts import exclusion_of


def test_engines_return_from_slowness_only_where_their_role_is_balanced_by_speed() -> None:
    both = Settings(decode=["http://d0"])
    prefill = Settings(decode=["http://d0"], decode_load_balancing_strategy="least_loaded")
    assert exclusion_of(both).speed_roles == frozenset(Role)
    assert exclusion_of(prefill).speed_roles == {Role.PREFILL}
