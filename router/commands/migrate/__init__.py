"""`pd-router migrate`: writes a configuration of another router as one of ours.

Standard output gets a YAML file for `pd-router serve --config`, standard error a line for each name
without a counterpart. Nothing is asked over the network.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from router.commands.flags import UsageError, one_line
from router.commands.migrate import readers
from router.commands.migrate.file_tables import LITELLM, LLM_D, NGINX
from router.commands.migrate.flag_tables import PRODUCTION_STACK, SMG, VLLM_ROUTER
from router.commands.migrate.readers import Entry
from router.commands.migrate.rows import Other
from router.commands.migrate.writing import migrated
from router.settings.files import read_text

__all__ = ["OTHERS", "run"]

OTHERS = {
    other.name: other for other in (VLLM_ROUTER, SMG, PRODUCTION_STACK, LLM_D, LITELLM, NGINX)
}

BY_FLAGS = (VLLM_ROUTER, SMG, PRODUCTION_STACK)


def run(source: str | None, file: Path | None, words: Sequence[str]) -> int:
    """Write the file. `source`: the other router's name; None: found from the content. Returns the
    exit status: 0, 1 if the file still needs a setting. Raises UsageError."""
    if (file is None) == (not words):
        raise UsageError("migrate: name a FILE, or give the other router's flags behind --")
    other, entries = _read_file(file, source) if file else _read_flags(words, source)
    text, lost, missing = migrated(other, entries)
    sys.stdout.write(text)
    for head, lines in (("not carried over", lost), ("still needed", missing)):
        for line in lines:
            sys.stderr.write(f"{head}: {one_line(line)}\n")
    return 1 if missing else 0


def _read_flags(words: Sequence[str], source: str | None) -> tuple[Other, list[Entry]]:
    """A command line. Two projects call their program vllm-router: the flags tell which it is."""
    entries = list(readers.flags(words))
    known = {other.name: sum(bool(other.about(name)) for name, _ in entries) for other in BY_FLAGS}
    program = next((other.name for other in BY_FLAGS if other.name in words[0]), None)
    best = max(known, key=lambda name: (known[name], name == program))
    if source is None and not known[best]:
        raise UsageError("migrate: the flags are of no router that is known here; see --from")
    other = OTHERS[source or best]
    return other, readers.divided(entries) if other is PRODUCTION_STACK else entries


def _read_file(file: Path, source: str | None) -> tuple[Other, list[Entry]]:
    try:
        return _entries_of(read_text(file), source)
    except ValueError as error:
        raise UsageError(f"migrate: {file}: {error}") from None
    except (AttributeError, IndexError, KeyError, TypeError):  # may quote a secret
        raise UsageError(f"migrate: {file} has not the form that is expected") from None


def _entries_of(text: str, source: str | None) -> tuple[Other, list[Entry]]:
    content = readers.mapping(text)
    if content is None:
        if source == NGINX.name or re.search(r"\bupstream\s+\S+\s*\{", text):
            return NGINX, list(readers.nginx(text))
        if source in (LITELLM.name, LLM_D.name):
            raise ValueError("holds no keys and values")
        return _read_flags(readers.script(text), source)
    if source == LITELLM.name or "model_list" in content:
        return LITELLM, list(readers.litellm(content))
    if source == LLM_D.name or content.get("kind") == "EndpointPickerConfig":
        return LLM_D, list(readers.llm_d(content))
    if "routing_logic" in content or "service_discovery" in content:
        return PRODUCTION_STACK, readers.divided(list(readers.production_stack(content)))
    if "spec" in content:
        return _read_flags(readers.pod(content), source)
    raise ValueError("is of no router that is known here; see --from")
