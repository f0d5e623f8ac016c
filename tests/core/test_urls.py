"""One spelling for each engine URL, and a refusal that names what cannot be one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.urls import Origin, normalise, origin


@pytest.mark.parametrize(
    ("url", "spelling"),
    [
        ("http://d0", "http://d0"),
        ("http://d0/", "http://d0"),
        ("HTTP://D0:80/", "http://d0"),
        ("https://d0:443", "https://d0"),
        ("https://d0:80", "https://d0:80"),
        ("http://d0:443", "http://d0:443"),
        ("http://prefill-0:8000", "http://prefill-0:8000"),
        ("http://prefill-0.prefill.svc.cluster.local:8000", None),
        ("http://10.0.0.1:8000", None),
        ("http://[::1]:8000", None),
        ("http://[::1]", None),
        ("http://[FE80::1]:80", "http://[fe80::1]"),
        ("https://gateway/engines/d0", None),
        ("https://gateway/engines/d0///", "https://gateway/engines/d0"),
        ("http://d0/Path", "http://d0/Path"),
        ("  http://d0:8000\n", "http://d0:8000"),
        ("http://d0:", "http://d0"),
        ("http://under_score:8000", None),
    ],
)
def test_each_engine_has_one_spelling(url: str, spelling: str | None) -> None:
    assert normalise(url) == (spelling or url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "d0",
        "d0:8000",
        "//d0",
        "ftp://d0",
        "unix:///run/engine",
        "http://",
        "http://:8000",
        "http:///path",
        "http://d0:0",
        "http://d0:65536",
        "http://d0:-1",
        "http://d0:8000x",
        "http://[::1",
        "http://[::1]x",
        "http://x[::1]",
        "http://[::1]x:8000",
        "http://é",
        "http://d0/é",
        "http://d0/\x7f",
        "http://::1:8000",
        "http://user@d0",
        "http://user:secret@d0",
        "http://@d0",
        "http://d0?a=1",
        "http://d0/#fragment",
        "http://d 0",
        "http://d0/a b",
        "http://d\t0",
        "http://d\x000",
        "http://d0/\x1b",
    ],
)
def test_invalid_engine_urls_are_refused_by_name(url: str) -> None:
    with pytest.raises(ValueError, match=r"http|URL") as refusal:
        origin(url)
    assert repr(url) in str(refusal.value)


def test_the_parts_are_those_that_a_connection_needs() -> None:
    assert origin("https://[::1]:8443/engines/d0/") == Origin("::1", 8443, True, "/engines/d0")


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("http://d0", "d0"),
        ("http://d0:8000/x", "d0:8000"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("https://[::1]", "[::1]"),
    ],
)
def test_the_host_header_has_no_default_port_and_keeps_brackets(url: str, authority: str) -> None:
    assert origin(url).authority == authority


@given(st.text(max_size=30) | st.builds("http://{}".format, st.text(max_size=20)))
def test_any_text_is_refused_with_a_value_error_or_spelled_in_one_way(text: str) -> None:
    try:
        spelling = normalise(text)
    except ValueError:
        return
    assert normalise(spelling) == spelling


hosts = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
prefixes = st.from_regex(r"(/[a-z0-9]{1,5}){0,3}", fullmatch=True)


@given(hosts, st.integers(min_value=1, max_value=65535), st.booleans(), prefixes)
def test_an_origin_survives_its_own_url(host: str, port: int, tls: bool, prefix: str) -> None:
    there = Origin(host, port, tls, prefix)
    assert origin(there.url) == there
