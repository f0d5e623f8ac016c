"""What routing knows about a request."""

from typing import Any

import pytest

from router.core.request_facts import Facts
from router.core.routes import ROUTES
from tests.core.fixtures import COMPLETIONS, changed, request


@pytest.mark.parametrize(
    ("query", "path"),
    [
        (b"", "/v1/completions"),
        (b"a=1", "/v1/completions?a=1"),
        (b"a=%20\xe9", "/v1/completions?a=%20\u00e9"),
    ],
)
def test_a_request_target_keeps_the_query_as_it_came(query: bytes, path: str) -> None:
    facts = Facts(ROUTES[COMPLETIONS], None, False, 0, "", None, b"", query=query)
    assert facts.path == path


@pytest.mark.parametrize(
    ("body", "sequences"),
    [
        ({"prompt": "a"}, 1),
        ({"prompt": "a", "n": 4}, 4),
        ({"messages": [], "n": 2}, 2),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": ["a", "b"], "n": 3}, 6),
        ({"prompt": [[1, 2], [3]]}, 2),
        ({"prompt": []}, 1),
        *(({"prompt": "a", "n": n}, 1) for n in (0, -1, True, 2.0, "2", None, 10**9)),
    ],
)
def test_a_request_is_as_many_sequences_as_answers(body: dict[str, Any], sequences: int) -> None:
    assert changed(request(prompt="a"), body=body).sequences == sequences
