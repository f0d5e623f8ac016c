"""The file that names the engines (`--engines-file`): JSON, taken as a whole or refused.

{"prefill": ["http://10.0.0.1:8000"],
 "decode": [{"url": "http://10.0.0.2:8000", "identity": "pod-uid", "draining": true, "zone": "a"}]}
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from router.core.membership.entry import Target
from router.core.urls import normalise
from router.core.values import Endpoint, Role

__all__ = ["MAX_BYTES", "InvalidFile", "read"]

MAX_BYTES = 4 << 20
"""Largest file in bytes; a thousand engines take a tenth of that."""

KEYS = frozenset({"url", "identity", "draining", "zone"})


class InvalidFile(ValueError):
    """The file is invalid; the message says where."""


def read(data: bytes) -> tuple[Target, ...]:
    """The engines in a file. Raises InvalidFile."""
    content = _parsed(data)
    if not isinstance(content, dict):
        raise InvalidFile('must be an object like {"prefill": [], "decode": []}')
    if strange := content.keys() - set(Role):
        raise InvalidFile(f"{min(strange)!r}: no such key; there are {', '.join(Role)}")
    if Role.DECODE not in content:
        raise InvalidFile("decode: is missing; [] says that there is no engine")
    found: dict[str, Target] = {}
    for role in Role:
        for place, target in _targets(content.get(role, []), role):
            if found.setdefault(target.endpoint.url, target) is not target:
                raise InvalidFile(f"{role}[{place}]: {target.endpoint.url} is given twice")
    return tuple(found.values())


def _parsed(data: bytes) -> object:
    if len(data) > MAX_BYTES:
        raise InvalidFile(f"larger than {MAX_BYTES} bytes")
    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=_once)
    except UnicodeDecodeError:
        raise InvalidFile("not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise InvalidFile(f"not valid JSON: {error}") from None
    except RecursionError:
        raise InvalidFile("not valid JSON: nested too deep") from None


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InvalidFile(f"{key!r} is given twice")
        found[key] = value
    return found


def _targets(listed: object, role: Role) -> Iterator[tuple[int, Target]]:
    if not isinstance(listed, list):
        raise InvalidFile(f"{role}: must be a list")
    for place, item in enumerate(listed):
        try:
            yield place, _target(item, role)
        except ValueError as error:
            raise InvalidFile(f"{role}[{place}]: {error}") from None


def _is_unicode(text: str) -> bool:
    """Whether it is without lone surrogates, which JSON can name but nothing can send."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _target(item: object, role: Role) -> Target:
    entry: Any = {"url": item} if isinstance(item, str) else item
    if not isinstance(entry, dict) or not isinstance(entry.get("url"), str):
        raise InvalidFile('must be a URL or an object like {"url": "http://10.0.0.1:8000"}')
    if strange := entry.keys() - KEYS:
        raise InvalidFile(f"{min(strange)!r}: no such key; there are url, identity, draining, zone")
    identity, draining = entry.get("identity", ""), entry.get("draining", False)
    if not isinstance(identity, str) or not _is_unicode(identity):
        raise InvalidFile("identity: must be a string")
    if not isinstance(draining, bool):
        raise InvalidFile("draining: must be true or false")
    zone = entry.get("zone")
    if zone is not None and not (isinstance(zone, str) and _is_unicode(zone)):
        raise InvalidFile("zone: must be a string")
    return Target(Endpoint(normalise(entry["url"]), role), identity, draining, zone=zone)
