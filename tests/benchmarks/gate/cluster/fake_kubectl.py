"""A kubectl that answers from a folder and writes down what it was asked. A process of its own, as
the gate starts it; no cluster.

The folder holds answers.json: what `get` answers by kind (a list of answers for `engines` and
`gate`, of which the last one stays), `forbidden` rights, `fail` (a message for every command),
`refused` (of which commands how many have no answer: they may have been heard nevertheless); and
the files rendered.yaml and gate.log.
"""

import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def main(arguments: list[str]) -> int:
    """One command."""
    answers = json.loads((FOLDER / "answers.json").read_text())
    given = sys.stdin.read() if arguments[0] == "apply" else ""
    with (FOLDER / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps([arguments, given]) + "\n")
    if "fail" in answers and arguments[0] != "kustomize":
        print(answers["fail"], file=sys.stderr)
        return 1
    refused = answers.get("refused", {})
    if refused.get(arguments[0], 0) > 0:
        refused[arguments[0]] -= 1
        (FOLDER / "answers.json").write_text(json.dumps(answers))
        print("The connection to the server was refused", file=sys.stderr)
        return 1
    match arguments:
        case ["kustomize", _]:
            print((FOLDER / "rendered.yaml").read_text())
        case ["auth", "can-i", verb, resource, *_]:
            is_forbidden = f"{verb} {resource}" in answers.get("forbidden", ())
            print("no" if is_forbidden else "yes")
            return int(is_forbidden)
        case ["get", kind, *options]:
            print(json.dumps({"items": _items(answers, kind, options)}))
        case ["logs", *_]:
            print((FOLDER / "gate.log").read_text())
    return 0


def _items(answers: dict[str, Any], kind: str, options: list[str]) -> Any:
    selectors = [each for each in options if each.startswith("--selector=")]
    if not selectors:
        return answers[kind]
    if kind == "jobs":
        return answers["jobs"]
    name = "gate" if "gate" in selectors[0] else "engines"
    following = answers[name]
    found = following[0]
    if len(following) > 1:
        answers[name] = following[1:]
        (FOLDER / "answers.json").write_text(json.dumps(answers))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
