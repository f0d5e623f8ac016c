"""Finds incompatibilities between prefill and decode engines in the findings of `survey`. No
I/O."""

from collections.abc import Iterable, Sequence

from router.commands.survey import Finding
from router.core.values import Role

__all__ = ["incompatibilities"]


def incompatibilities(findings: Sequence[Finding], connector: str) -> list[str]:
    """One sentence per incompatibility of prefill and decode engines.

    Unknown versions and models are ignored, because those findings have their own advice.
    """
    prefill = [f for f in findings if f.endpoint.role is Role.PREFILL]
    decode = [f for f in findings if f.endpoint.role is Role.DECODE]
    if not prefill:
        return []
    versions = _versions([*prefill, *decode]) if connector == "nixl" else []
    return [*versions, *_models(prefill, decode)]


def _versions(findings: Sequence[Finding]) -> list[str]:
    """Different vLLM versions: NixlConnector compares versions when engines connect, and refuses to
    transfer KV caches."""
    known = sorted({f.version for f in findings if f.version is not None})
    if len(known) < 2:
        return []
    where = "; ".join(
        f"{version} on {', '.join(f.endpoint.url for f in findings if f.version == version)}"
        for version in known
    )
    return [f"NIXL needs the same vLLM version on prefill and decode engines, found {where}."]


def _models(prefill: Sequence[Finding], decode: Sequence[Finding]) -> list[str]:
    if any(f.models is None for f in (*prefill, *decode)):
        return []
    found = []
    for model in sorted(_names(prefill) | _names(decode)):
        if model not in _names(prefill):
            found.append(
                f"No prefill engine serves {model}: decode engines will compute its long prompts "
                "themselves. Start a prefill engine with it."
            )
        elif model not in _names(decode):
            found.append(
                f"No decode engine serves {model}: requests for it are answered with 404. Start "
                "a decode engine with it, or give both sides the same --served-model-name."
            )
        else:
            found += _lengths(model, prefill, decode)
    return found


def _lengths(model: str, prefill: Sequence[Finding], decode: Sequence[Finding]) -> list[str]:
    """Different max_model_len: a prefill engine's 400 goes to the client, even if a decode engine
    would accept the prompt."""
    shortest = min(_told(model, prefill), default=None)
    longest = max(_told(model, decode), default=None)
    if shortest is None or longest is None or shortest >= longest:
        return []
    return [
        f"A prefill engine takes {shortest} tokens of {model}, a decode engine {longest}: longer "
        "prompts are refused. Start them with the same --max-model-len."
    ]


def _names(findings: Iterable[Finding]) -> set[str]:
    return {model for f in findings for model in f.models or ()}


def _told(model: str, findings: Iterable[Finding]) -> list[int]:
    lengths = ((f.models or {}).get(model) for f in findings)
    return [length for length in lengths if length is not None]
