"""A kubectl that answers from a folder and records its calls. A separate process, as the gate
starts it; no cluster.

The folder holds answers.json: what `get` answers by kind (a list of answers for `engines` and
`gate`, of which the last one stays), `forbidden` rights, `fail` (a message for every command),
`refused` (per command the number of calls without an answer, which may have had an effect); and the
files rendered.yaml and gate.log.

It is started five hundred times: it imports little, and runs without site-packages.
"""

import json
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOLDER = __file__.rpartition("/")[0]


def main(arguments: list[str]) -> int:
    """One command."""
    answers = json.loads(_read("answers.json"))
    given = sys.stdin.read() if arguments[0] == "apply" else ""
    with open(f"{FOLDER}/calls.jsonl", "a", encoding="utf-8") as calls:
        calls.write(json.dumps([arguments, given]) + "\n")
    if "fail" in answers and arguments[0] != "kustomize":
        print(answers["fail"], file=sys.stderr)
        return 1
    refused = answers.get("refused", {})
    if refused.get(arguments[0], 0) > 0:
        refused[arguments[0]] -= 1
        _save(answers)
        print("The connection to the server was refused", file=sys.stderr)
        return 1
    match arguments:
        case ["kustomize", _]:
            print(_read("rendered.yaml"))
        case ["auth", "can-i", verb, resource, *_]:
            is_forbidden = f"{verb} {resource}" in answers.get("forbidden", ())
            print("no" if is_forbidden else "yes")
            return int(is_forbidden)
        case ["get", kind, *options]:
            print(json.dumps({"items": _items(answers, kind, options)}))
        case ["logs", *_]:
            print(_read("gate.log"))
    return 0


def _read(name: str) -> str:
    with open(f"{FOLDER}/{name}", encoding="utf-8") as file:
        return file.read()


def _save(answers: "dict[str, Any]") -> None:
    with open(f"{FOLDER}/answers.json", "w", encoding="utf-8") as file:
        json.dump(answers, file)


def _items(answers: "dict[str, Any]", kind: str, options: list[str]) -> "Any":
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
        _save(answers)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
