"""Shared by these programs: inputs of the cases, and the output format.

Each is run by an environment with one client and nothing of the project, as
`python openai_client.py URL-OF-THE-ROUTER`, and prints a line of JSON per case: case, ok, detail.
"""

import json
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable
from typing import Any

__all__ = ["LONG_ANSWER", "MODEL", "SCHEMA", "URL", "idle", "raises", "run", "valid"]

URL = sys.argv[1]
MODEL = "sim"

SHORT = "How is the weather in Paris?"
LONG = SHORT + " Think about it first, and answer then." * 20
"""Above the router's threshold: prefilled remotely."""
LONG_ANSWER = "<<eos:20000>>"
"""In a prompt: the answer takes minutes, unless it is aborted."""

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}

Case = Callable[[str], object]


def run(**cases: Case) -> None:
    """Run each case with a short and with a long prompt, and print the outcome."""
    for name, case in cases.items():
        detail = ""
        try:
            for prompt in (SHORT, LONG):
                case(prompt)
        except Exception as error:  # noqa: BLE001 - each client has its own
            detail = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        line = {"case": name.replace("_", " "), "ok": not detail, "detail": detail}
        print(json.dumps(line), flush=True)


def valid(arguments: object) -> None:
    """Assert that an object, or the text of one, is as SCHEMA demands."""
    found = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert isinstance(found, dict), found
    assert set(found) == {"city", "days"}, found
    assert isinstance(found["city"], str), found
    assert isinstance(found["days"], int), found


def raises(kind: type[Exception], call: Callable[[], object]) -> None:
    """Assert that the call raises this exception, with the engine's words."""
    raised = None
    try:
        call()
    except kind as error:
        raised = error
    assert "`no-such-model` does not exist" in str(raised), raised


def in_flight() -> int:
    """The requests that the router has on its engines."""
    with urllib.request.urlopen(f"{URL}/endpoints", timeout=10) as answer:
        engines = json.load(answer)
    return sum(engine["in_flight"] for engine in engines)


def idle(leave: Callable[[], object]) -> None:
    """Assert that a request is in flight until the client leaves, and then no more."""
    assert in_flight() == 1
    leave()
    deadline = time.monotonic() + 10
    while in_flight():
        assert time.monotonic() < deadline, "the router still has the request"
        time.sleep(0.05)
