"""`pd-router drain` and `undrain`: order running routers to stop using an engine, or to use it
again; `pause` and `resume`: all engines.

An order only applies to the router that receives it, so it is sent to each of several replicas.
"""

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from router.commands.flags import UsageError
from router.core.limits.api_keys import ApiKeys, first_key
from router.core.membership.entry import EVERY
from router.settings import admin_key_file, admin_url

__all__ = ["admin_headers", "run"]


def admin_headers(path: Path | None) -> Mapping[str, str]:
    """The headers with the first key in a file, which may also be the file of a router that is
    configured by this environment. Empty without a file. Raises UsageError."""
    path = path or admin_key_file()
    if path is None:
        return {}
    try:
        text = path.read_text(encoding="utf-8-sig")
        ApiKeys(text)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"--admin-key-file: {path}: {reason}") from None
    key = first_key(text)
    if key is None:
        raise UsageError(
            f"--admin-key-file: {path} holds hashes only; name one with the key itself"
        )
    return {"authorization": f"Bearer {key}"}


SECONDS = 30.0
"""Time-out in seconds for a response of the router."""

POLL_SECONDS = 0.5

DRAINING = "draining"
"""The state of an engine of which a data-parallel rank drains, whatever the others do."""

FIELDS = {"url": str, "role": str, "state": str, "in_flight": int}
"""What is read of an engine's entry."""

STILL_BUSY = 1
"""Exit status if requests are left after the waiting time."""


def run(
    order: Literal["drain", "undrain"],
    url: str,
    role: str | None,
    admins: Sequence[str],
    wait: float,
    key_file: Path | None = None,
    *,
    move: bool = False,
) -> int:
    """Send the order to the routers whose admin listeners are `admins`. Returns the exit status.

    `wait`: seconds until the engine must have no requests left. `move`: the streams of a drained
    engine go on with other engines. The order goes to all routers even
    if some refuse; in that case there is no waiting. Raises UsageError, whose message names the
    routers that have obeyed."""
    bases = [admin.rstrip("/") for admin in admins or filter(None, [admin_url()])]
    if not bases:
        raise UsageError(
            "--admin: name the router's admin listener (http://HOST:PORT); PD_ROUTER_ADMIN_PORT is "
            "not set"
        )
    named: dict[str, object] = {"url": url}
    if role is not None:
        named["role"] = role
    if move:
        named["move"] = True
    headers = {"content-type": "application/json", **admin_headers(key_file)}
    engines = _order(order, bases, named, headers)
    deadline = time.monotonic() + wait
    while order == "drain" and _are_busy(engines) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        engines = {base: _now(base, engine, headers) for base, engine in engines.items()}
    for base, engine in engines.items():
        name = "engines" if engine["url"] == EVERY else engine["url"]
        text = f"{engine['role']} {name}: {engine['state']}, {engine['in_flight']} in flight"
        print(text if len(engines) == 1 else f"{base}: {text}")  # noqa: T201
    return STILL_BUSY if wait and _are_busy(engines) else 0


def _order(
    order: str, bases: Sequence[str], named: Mapping[str, object], headers: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Send the order. Returns the engine's entry from each router that has obeyed. Raises
    UsageError."""
    engines: dict[str, dict[str, Any]] = {}
    refused: dict[str, str] = {}
    for base in bases:
        try:
            path = f"{base}/admin/engines/{order}"
            engines[base] = _checked(_ask(path, named, headers), path)
        except UsageError as error:
            refused[base] = str(error)
    if refused and len(bases) > 1:
        done = ", ".join(engines) or "none"
        reasons = "; ".join(f"{base}: {why}" for base, why in refused.items())
        raise UsageError(f"{order}: obeyed by {done}; not by {reasons}")
    for why in refused.values():
        raise UsageError(why)
    return engines


def _are_busy(engines: Mapping[str, dict[str, Any]]) -> bool:
    """Whether any router has requests on the engine."""
    return any(engine["in_flight"] for engine in engines.values())


def _now(base: str, engine: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    """The engine's current entry from a router, combined from its data-parallel ranks."""
    path = f"{base}/admin/engines"
    answer = _ask(path, None, headers)
    listed = answer.get("engines") if isinstance(answer, dict) else None
    if not isinstance(listed, list):
        raise _no_router(path)
    found = [each for each in (_checked(entry, path) for entry in listed) if _is_of(each, engine)]
    if engine["url"] == EVERY:
        states = [engine["state"]]
    else:
        states = [each["state"] for each in found] or ["gone"]
    return {
        **engine,
        "state": DRAINING if DRAINING in states else states[0],
        "in_flight": sum(each["in_flight"] for each in found),
    }


def _is_of(entry: dict[str, Any], engine: dict[str, Any]) -> bool:
    """Whether an entry is the engine's, or one of its ranks'."""
    if engine["url"] == EVERY:
        return engine["role"] in ("all", entry["role"])
    urls = entry["url"], entry["url"].partition("#")[0]
    return entry["role"] == engine["role"] and engine["url"] in urls


def _checked(entry: Any, url: str) -> dict[str, Any]:
    """An engine's entry in an answer. Raises UsageError if it is none."""
    if not isinstance(entry, dict) or any(
        not isinstance(entry.get(name), kind) for name, kind in FIELDS.items()
    ):
        raise _no_router(url)
    return entry


def _no_router(url: str) -> UsageError:
    return UsageError(f"--admin: {url} answers otherwise: is it the admin listener of a router?")


def _ask(url: str, body: object, headers: Mapping[str, str]) -> Any:
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url, data, dict(headers))
        # Without the environment's proxies, because the router is nearby.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=SECONDS) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == http.HTTPStatus.UNAUTHORIZED:
                text = "--admin-key-file: the router wants a key, or another one"
                raise UsageError(text) from None
            raise UsageError(_said(error)) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"--admin: {url} does not answer: {error}") from None
    except http.client.HTTPException as error:
        raise UsageError(f"--admin: {url} gives no whole HTTP answer: {error!r}") from None


def _said(error: urllib.error.HTTPError) -> str:
    """The message of the error, if it comes from a router."""
    try:
        said = str(json.load(error)["error"]["message"])
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        said = "no such route"
    if "no such route" in said:
        return f"--admin: {error.url} answers {error.code}: is it the admin listener of a router?"
    return said
