"""Reads other routers' flags and files into entries: a name, and the words behind it."""

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

__all__ = [
    "Entry",
    "divided",
    "flags",
    "litellm",
    "llm_d",
    "mapping",
    "nginx",
    "pod",
    "production_stack",
    "script",
]

Entry = tuple[str, list[str]]


def flags(words: Sequence[str]) -> Iterator[Entry]:
    """A command line. What stands before the first flag is the program; a lone -- belongs to it."""
    if "--" in words:
        words = words[len(words) - list(reversed(words)).index("--") :]
    name, behind = "", list[str]()
    for word in words:
        if word.startswith("--"):
            if name:
                yield name, behind
            name, _, value = word.partition("=")
            behind = [value] if value else []
        else:
            behind.append(word)
    if name:
        yield name, behind


def script(text: str) -> list[str]:
    """The words of a shell script's lines, comments left out."""
    return shlex.split(text.replace("\\\n", " "), comments=True)


def pod(content: dict[str, Any]) -> list[str]:
    """The command line of the first container of a Deployment, or of another workload."""
    spec = content["spec"]
    container = spec.get("template", content)["spec"]["containers"][0]
    words = [str(word) for key in ("command", "args") for word in container.get(key) or ()]
    return script(words[-1]) if "-c" in words else words


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def production_stack(content: dict[str, Any]) -> Iterator[Entry]:
    """A dynamic configuration: its keys are flags. Models may list their engines, aliases be a
    mapping."""
    models = content.get("static_models")
    if isinstance(models, dict):
        engines = [url for each in models.values() for url in each.get("static_backends", ())]
        content = {**content, "static_models": list(models), "static_backends": engines}
    for key, value in content.items():
        if isinstance(value, dict):
            value = [f"{name}:{model}" for name, model in value.items()]
        yield f"--{key.replace('_', '-')}", [_text(value)]


def divided(entries: Sequence[Entry]) -> list[Entry]:
    """production-stack's engines, divided by their labels: those of prefill engines get a name of
    their own, behind which is (prefill)."""
    given = {name: ",".join(words) for name, words in entries}
    prefill, decode = (given.get(f"--{role}-model-labels") for role in ("prefill", "decode"))
    if prefill is None or decode is None:
        return list(entries)
    engines, pods = "--static-backends", "--k8s-label-selector"
    found = []
    if engines in given:
        named = given.get("--static-model-labels", "").split(",")
        pairs = list(zip(given[engines].split(","), named, strict=False))
        wanted = [url for url, label in pairs if label in prefill.split(",")]
        others = [url for url, label in pairs if label in decode.split(",")]
        found += [(f"{engines}(prefill)", wanted), (engines, others)]
    if pods in given:
        selectors = [f"{given[pods]},model in ({labels})" for labels in (prefill, decode)]
        found += [(f"{pods}(prefill)", selectors[:1]), (pods, selectors[1:])]
    return [*(entry for entry in entries if entry[0] not in (engines, pods)), *found]


ENGINES = ("hosted_vllm/", "openai/", "text-completion-openai/")
"""LiteLLM's providers that are engines, if they have an address."""

OF_DEPLOYMENTS = ("api_key", "rpm", "tpm", "weight", "order")


def litellm(content: dict[str, Any]) -> Iterator[Entry]:
    """A proxy's config.yaml: its engines, the names of their models, the settings by section."""
    served: dict[str, dict[str, int]] = {}
    keys = []
    for deployment in content.get("model_list") or ():
        for name, words in _deployment(deployment, served):
            if name == "api_key":
                keys += words
            else:
                yield name, words
    if keys:
        yield "api_key", keys
    targets = {name: _targets(weights) for name, weights in served.items()}
    for name, target in targets.items():
        if name != target:
            yield "model_name", [f"{name}={target}"]
    for section, settings in content.items():
        for key, value in settings.items() if isinstance(settings, dict) else ():
            if key == "model_group_alias":
                value = [f"{name}={targets.get(str(to), to)}" for name, to in value.items()]
            yield f"{section}.{key}", [_text(value)]


def _deployment(deployment: dict[str, Any], served: dict[str, dict[str, int]]) -> Iterator[Entry]:
    """One of model_list. `served` gets the weight of its model under the name that it has."""
    parameters = dict(deployment["litellm_params"])
    model, url = str(parameters.pop("model", "")), parameters.pop("api_base", None)
    provider = next((each for each in ENGINES if model.startswith(each)), None)
    if provider is None or url is None or "*" in model:
        yield "provider", [model]
        return
    yield "api_base", [url]
    weights = served.setdefault(str(deployment["model_name"]), {})
    model = model.removeprefix(provider)
    weights[model] = weights.get(model, 0) + int(parameters.get("weight", 1))
    for name, value in parameters.items():
        yield name if name in OF_DEPLOYMENTS else f"litellm_params.{name}", [str(value)]
    if "model_info" in deployment:
        yield "model_info", []


def _targets(weights: dict[str, int]) -> str:
    if len(weights) == 1:
        return next(iter(weights))
    return " ".join(f"{model}*{weight}" for model, weight in weights.items())


def llm_d(content: dict[str, Any]) -> Iterator[Entry]:
    """An EndpointPickerConfig: its plug-ins, each with its parameters."""
    yield "EndpointPickerConfig", []
    for plugin in content.get("plugins") or ():
        yield plugin["type"], []
        for key, value in (plugin.get("parameters") or {}).items():
            yield f"{plugin['type']}.{key}", [_text(value)]
    if content.get("featureGates"):
        yield "featureGates", [_text(content["featureGates"])]


def nginx(text: str) -> Iterator[Entry]:
    """A configuration of nginx: its directives, those of blocks too. Parameters of an upstream's
    server are entries of their own."""
    scheme = "https" if re.search(r"proxy_pass\s+https:", text) else "http"
    blocks: list[str] = []
    for words, end in _directives(text):
        name, behind = (words[0], words[1:]) if words else ("", [])
        if end == "}":
            blocks.pop()
        elif end == "{":
            blocks.append(name)
            if name == "location" and behind != ["/"]:
                yield name, behind
        elif name == "server":
            yield from _server(behind, scheme)
        elif name == "proxy_set_header":
            yield f"{name}.{behind[0]}", behind[1:]
        else:
            yield name, behind


def _server(words: list[str], scheme: str) -> Iterator[Entry]:
    """An engine of an upstream."""
    address, *parameters = words
    if "down" not in parameters:
        yield "upstream.server", [f"{scheme}://{address}"]
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        yield f"server.{name}", [value]


def _directives(text: str) -> Iterator[tuple[list[str], str]]:
    """The words of each directive, and what ends it: ;, { or }."""
    words: list[str] = []
    for quoted, mark, word in re.findall(
        r"""#[^\n]*|("[^"]*"|'[^']*')|([;{}])|([^\s;{}"'#]+)""", text
    ):
        if mark:
            yield words, mark
            words = []
        elif quoted or word:
            words.append(quoted[1:-1] or word)


def mapping(text: str) -> dict[str, Any] | None:
    """YAML or JSON that holds keys; None: the text is something else."""
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    return content if isinstance(content, dict) else None
