"""The router finds its engines by their labels: selectors, rights and ports fit together.

Manifests are rendered and read as data. That a cluster grants what they ask for is not shown here.
"""

from tests.deploy.conftest import SettingsOf
from tests.deploy.rendered import Rendered
from tests.deploy.test_kubernetes import pre_stop


def equalities(selector: str | None) -> dict[str, str]:
    """A selector of equalities as a mapping."""
    assert selector is not None
    return dict(part.split("=") for part in selector.split(","))


def test_each_selector_takes_the_pods_of_its_pool(
    two_pools: Rendered, settings_of: SettingsOf
) -> None:
    settings = settings_of(two_pools)
    for selector, pool in (
        (settings.k8s_prefill_selector, "prefill"),
        (settings.k8s_decode_selector, "decode"),
    ):
        assert two_pools.selected(equalities(selector)) == [pool]


def test_whole_engines_are_decode_engines(plain: Rendered, settings_of: SettingsOf) -> None:
    settings = settings_of(plain)
    assert settings.k8s_prefill_selector is None
    assert plain.selected(equalities(settings.k8s_decode_selector)) == ["engine"]


def test_no_engine_is_named(rendered: Rendered, settings_of: SettingsOf) -> None:
    settings = settings_of(rendered)
    assert (settings.prefill, settings.decode) == ((), ())


def test_the_router_may_list_and_watch_pods_and_nothing_else(rendered: Rendered) -> None:
    [role] = rendered.of("Role").values()
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    [binding] = rendered.of("RoleBinding").values()
    assert binding["roleRef"]["kind"] == role["kind"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    account = rendered.router.spec["serviceAccountName"]
    assert [each["name"] for each in binding["subjects"]] == [account]
    assert account in rendered.of("ServiceAccount")
    assert not rendered.of("ClusterRole")


def test_rights_and_pods_are_in_one_namespace(rendered: Rendered, settings_of: SettingsOf) -> None:
    """That of the router's pod, which is the default of its setting."""
    assert settings_of(rendered).k8s_namespace is None
    inside = [each for each in rendered.objects if each["kind"] != "Namespace"]
    [namespace] = {each["metadata"].get("namespace") for each in inside}
    [binding] = rendered.of("RoleBinding").values()
    assert [each.get("namespace") for each in binding["subjects"]] == [namespace]


def test_the_port_is_one_that_engines_name(rendered: Rendered, settings_of: SettingsOf) -> None:
    for pool in rendered.engines.values():
        for port in settings_of(rendered).k8s_port:
            assert port in pool.ports


def test_the_router_learns_of_a_deletion_before_the_engine_refuses_requests(
    rendered: Rendered,
) -> None:
    assert all(pre_stop(pool) >= 5 for pool in rendered.engines.values())
