"""Which pools fit together."""

import pytest

from router.commands.compatibility import incompatibilities
from router.commands.survey import Finding
from router.core.values import Endpoint, Role

TINY = {"tiny": 2048}


def prefill(name: str = "p0", version: str | None = "1", models: object = TINY) -> Finding:
    return Finding(Endpoint(f"http://{name}", Role.PREFILL), "ok", version, models)  # type: ignore[arg-type]


def decode(name: str = "d0", version: str | None = "1", models: object = TINY) -> Finding:
    return Finding(Endpoint(f"http://{name}", Role.DECODE), "ok", version, models)  # type: ignore[arg-type]


def test_equal_engines_fit():
    assert incompatibilities([prefill(), prefill("p1"), decode(), decode("d1")], "nixl") == []


def test_a_plain_pool_need_not_fit_anything():
    assert incompatibilities([decode(), decode("d1", version="2", models={"big": 9})], "nixl") == []


def test_versions_that_differ_do_not_fit_under_nixl():
    [sentence] = incompatibilities([prefill(), decode(), decode("d1", version="2")], "nixl")
    assert "NIXL needs the same vLLM version" in sentence
    assert "1 on http://p0, http://d0; 2 on http://d1" in sentence


def test_versions_may_differ_under_lmcache():
    assert incompatibilities([prefill(version="2"), decode()], "lmcache") == []


def test_a_version_that_is_not_told_is_not_held_against_an_engine():
    assert incompatibilities([prefill(version=None), decode()], "nixl") == []


@pytest.mark.parametrize("connector", ["nixl", "lmcache"])
def test_a_model_must_be_on_both_sides(connector):
    sentences = incompatibilities(
        [prefill(models={"a": 1, "b": 1}), decode(models={"b": 1, "c": 1})], connector
    )
    assert [sentence.split(":")[0] for sentence in sentences] == [
        "No decode engine serves a",
        "No prefill engine serves c",
    ]


def test_a_model_need_not_be_on_every_engine_of_a_side():
    both = [decode(models={"a": 1}), decode("d1", models={"b": 1})]
    assert incompatibilities([prefill(models={"a": 1, "b": 1}), *both], "nixl") == []


def test_models_are_not_compared_while_an_engine_has_not_told_its_own():
    assert incompatibilities([prefill(models=None), decode()], "nixl") == []
    assert incompatibilities([prefill(), decode(), decode("d1", models=None)], "nixl") == []


@pytest.mark.parametrize(
    ("shorter", "longer", "fits"),
    [
        (1024, 2048, False),
        (2048, 2048, True),
        (4096, 2048, True),
        (None, 2048, True),
        (1, None, True),
    ],
)
def test_prefill_must_take_what_decode_takes(shorter, longer, fits):
    sentences = incompatibilities(
        [prefill(models={"a": shorter}), decode(models={"a": longer})], "nixl"
    )
    assert (sentences == []) is fits
    assert fits or "1024 tokens of a, a decode engine 2048" in sentences[0]
