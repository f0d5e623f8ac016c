"""Reads text, YAML and JSON for the settings. No error quotes what may be a secret."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

__all__ = ["once", "read_json", "read_text", "read_yaml"]


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"cannot read {path}: not UTF-8 text") from None


def once(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """A mapping; the parsers themselves would let the last of two equal keys win."""
    mapping: dict[Any, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise ValueError(f"{key} is given twice")
        mapping[key] = value
    return mapping


class _Loader(yaml.SafeLoader):
    """YAML in which a key stands once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping."""
        once((key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> object:
    """A YAML file's content. Raises ValueError when there is none to be had."""
    text = read_text(path)
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        # str(error) quotes the line, which may hold a secret.
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise ValueError(f"{path} is not YAML: {error.problem} in line {line}") from None
    except yaml.YAMLError:
        raise ValueError(f"{path} is not YAML: it holds control characters") from None
    except RecursionError:
        raise ValueError(f"{path} is not YAML: nested too deep") from None
    except (AttributeError, IndexError, KeyError, TypeError):  # PyYAML checks no explicit tag
        raise ValueError(f"{path} is not YAML: a value does not fit its tag") from None
    except ValueError as error:  # a key that is given twice, a date that is none
        raise ValueError(f"{path}: {error}") from None


def read_json(value: object) -> object:
    """JSON text, or the path of a file that holds it behind an @."""
    if not isinstance(value, str):
        return value
    text = read_text(Path(value[1:])) if value.startswith("@") else value
    try:
        return json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error}") from None
    except RecursionError:
        raise ValueError("not valid JSON: nested too deep") from None
