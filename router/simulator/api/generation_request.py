"""A parsed request in any API: it asks for tokens after one or more prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from router.core.fleet.models import FORCED_TOOLS_FROM, release
from router.simulator.api.errors import check_form, invalid, no_model, not_valid
from router.simulator.api.grammar import ToolCall, read_grammar, read_tool_call
from router.simulator.api.prompts import hear, prompts_of
from router.simulator.config import EngineConfig
from router.simulator.model.sequence import Grammar, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A request, in the same form for all APIs."""

    api: str
    """chat, completions, responses, messages, transcribe or translate."""
    model: str
    prompts: Sequence[list[int]]
    sampling: Sampling
    tool_call: ToolCall | None = None
    """The tool call that is the answer; None: the answer is a text."""
    n: int = 1
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    echo: bool = False
    """Whether the text begins with the prompt's; vLLM omits it if ids are requested."""
    logprobs: int | None = None
    """Number of alternatives per token; None: no log-probabilities."""
    kv: Mapping[str, Any] | None = None
    """`kv_transfer_params` without the prompt's ids."""
    cache_salt: str = ""
    body: Mapping[str, Any]


_REQUIRED = {
    "completions": "prompt",
    "responses": "input",
    "transcribe": "file",
    "translate": "file",
}
_IDS_FROM = (0, 32)
"""The first vLLM that takes a chat's prompt from kv_transfer_params.prompt_token_ids (#48145)."""
_LIMIT = {"responses": "max_output_tokens"}
_DEFAULT_TOKENS = 16
"""Default of /v1/completions; the other APIs continue to the end of the context."""


def read_generation_request(
    api: str, body: Mapping[str, Any], config: EngineConfig
) -> GenerationRequest:
    """Parse a request. Raises ApiError with vLLM 0.32's answer to an invalid one."""
    check_form(body, _REQUIRED.get(api, "messages"))
    model = body.get("model") or config.model
    if model not in config.models:
        raise no_model(model, config.models)
    _check_values(body)
    _check_tools(api, body, config)
    options = body.get("stream_options") or {}
    kv = dict(body.get("kv_transfer_params") or {})
    ids = kv.pop("prompt_token_ids", None)
    prompts = prompts_of(api, body, ids if release(config.version) >= _IDS_FROM else None)
    for prompt in prompts:
        _check_length(prompt, config)
    call = None if api == "completions" else read_tool_call(api, body)
    grammar = _grammar(api, body) if call is None else call.grammar
    return GenerationRequest(
        api=api,
        model=model,
        prompts=prompts,
        sampling=_sampling(api, body, config, max(map(len, prompts)), grammar),
        tool_call=call,
        n=body.get("n") or 1,
        stop=_stops(body),
        include_stop=bool(body.get("include_stop_str_in_output")),
        stream=bool(body.get("stream")),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        return_token_ids=bool(body.get("return_token_ids")),
        echo=bool(body.get("echo")) and not body.get("return_token_ids"),
        logprobs=_logprobs(api, body),
        kv=kv or None,
        cache_salt=body.get("cache_salt") or "",
        body=body,
    )


def _grammar(api: str, body: Mapping[str, Any]) -> Grammar | None:
    return hear(body) if api in ("transcribe", "translate") else read_grammar(api, body)


def _check_values(body: Mapping[str, Any]) -> None:
    temperature = body.get("temperature")
    if temperature is not None and temperature < 0:
        message = f"temperature must be non-negative, got {float(temperature)}."
        raise invalid("temperature", message, float(temperature))
    if body.get("stream_options") is not None and not body.get("stream"):
        raise invalid("stream_options", "Stream options can only be defined when `stream=True`.")
    count = body.get("n")
    if count is not None and count < 1:
        raise invalid("n", f"n must be at least 1, got {count}.", count)


def _check_tools(api: str, body: Mapping[str, Any], config: EngineConfig) -> None:
    """One token cannot be a tool call: the error of an old vLLM's parser for a forced one
    (vllm#38911)."""
    if release(config.version) >= FORCED_TOOLS_FROM:
        return
    choice = body.get("tool_choice")
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    forced = choice == "required" or isinstance(choice, dict)
    if api == "chat" and forced and limit == 1 and not body.get("stream"):
        raise invalid("tool_choice", "Invalid JSON: EOF while parsing a value at line 1 column 0")


def _check_length(prompt: list[int], config: EngineConfig) -> None:
    limit = config.max_model_len
    if len(prompt) >= limit:
        message = (
            f"This model's maximum context length is {limit} tokens. However, your request has"
            f" {len(prompt)} input tokens. Please reduce the length of the input messages."
        )
        raise invalid("input_tokens", message, len(prompt))
    if not prompt:
        raise invalid("prompt", "The decoder prompt cannot be empty.")


def _sampling(
    api: str, body: Mapping[str, Any], config: EngineConfig, prompt: int, grammar: Grammar | None
) -> Sampling:
    name = _LIMIT.get(api, "max_tokens")
    limit = body.get("max_completion_tokens") if api == "chat" else None
    if limit is None:
        limit = body.get(name)
    if limit is None:
        limit = _DEFAULT_TOKENS if api == "completions" else config.max_model_len
    elif limit < 1:
        raise invalid(name, f"{name} must be at least 1, got {limit}.", limit)
    elif limit > config.max_model_len:
        message = (
            f"{name}={limit} cannot be greater than max_model_len={config.max_model_len}."
            " Please request fewer output tokens."
        )
        raise invalid(name, message, limit)
    least = body.get("min_tokens", 0)
    if least > limit:
        message = f"min_tokens must be less than or equal to max_tokens={limit}, got {least}."
        raise invalid("min_tokens", message, least)
    return Sampling(
        max_tokens=min(limit, config.max_model_len - prompt),
        min_tokens=least,
        ignore_eos=bool(body.get("ignore_eos")),
        stop_token_ids=frozenset(body.get("stop_token_ids") or ()),
        grammar=grammar,
    )


def _stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop") or body.get("stop_sequences") or ()
    found = [stop] if isinstance(stop, str) else stop
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
        raise not_valid("string_type", "body.stop", "Input should be a valid string", stop)
    return tuple(found)


def _logprobs(api: str, body: Mapping[str, Any]) -> int | None:
    wanted = body.get("logprobs")
    if api == "chat":
        return (body.get("top_logprobs") or 0) if wanted else None
    return wanted if isinstance(wanted, int) and not isinstance(wanted, bool) else None
