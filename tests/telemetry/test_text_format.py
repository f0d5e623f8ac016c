"""/metrics in the requested format."""

import pytest

from router.telemetry.text_format import OPEN_METRICS, PLAIN, accepted

OURS = "application/openmetrics-text"
PROMETHEUS = (
    f"{OURS};version=1.0.0;escaping=allow-utf-8;q=0.6,{OURS};version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;q=0.4,*/*;q=0.2"
)


@pytest.mark.parametrize(
    "header",
    [
        *(PROMETHEUS, OURS, OURS.upper(), f'{OURS}; version="1.0.0"', f"text/plain , {OURS} ; q=1"),
        f"{OURS};q=0.2,text/plain;q=0.1",
    ],
)
def test_openmetrics_is_given_where_it_is_accepted(header: str) -> None:
    assert accepted(header) is OPEN_METRICS


@pytest.mark.parametrize(
    "header",
    [
        *("", "*/*", "text/plain;version=0.0.4", "application/*", ";", ",,;=;", "\0"),
        *(f"{OURS};version=2.0.0", f"{OURS};version=0.0.1", f"{OURS};version=x\r\ny"),
        *(f"{OURS};q=0", f"{OURS};q=x", f"{OURS};q=nan", f"{OURS};q=2"),
        f"text/plain;version=0.0.4;q=0.9,{OURS};q=0.8",
    ],
)
def test_all_else_gets_plain_text(header: str) -> None:
    assert accepted(header) is PLAIN
