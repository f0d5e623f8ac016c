"""/metrics in the format that is asked for."""

import pytest

from router.telemetry.text_format import OPEN_METRICS, PLAIN, accepted

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,*/*;q=0.2"
)


@pytest.mark.parametrize(
    "header",
    [PROMETHEUS, "application/openmetrics-text", "text/plain , application/openmetrics-text ; q=1"],
)
def test_openmetrics_is_given_where_it_is_accepted(header: str) -> None:
    assert accepted(header) is OPEN_METRICS


@pytest.mark.parametrize(
    "header",
    [
        *("", "*/*", "text/plain;version=0.0.4", "application/*", ";", ",,;=;", "\0"),
        "application/openmetrics-text;version=2.0.0",
        "application/openmetrics-text;version=x\r\ny",
    ],
)
def test_all_else_gets_plain_text(header: str) -> None:
    assert accepted(header) is PLAIN
