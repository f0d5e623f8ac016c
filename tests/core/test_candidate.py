"""What policies see of an endpoint."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

import router
from router.core import candidate as view
from router.core.candidate import STEP_TOKENS
from tests.core.fixtures import D0, candidate

CORE = Path(router.__file__).parent / "core"
WRITERS = {
    "Fleet": "fleet/fleet.py",
    "PoolJudge": "judge/pool_judge.py",
    "Scheduler": "routing/schedule.py",
    "Scrapes": "speed/scrapes.py",
}


def named_writers() -> dict[str, str]:
    """The file that writes each field, by the writer that its docstring names at the end."""
    tree = ast.parse((CORE / "candidate.py").read_text())
    body = next(n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Candidate")
    found = {}
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            (writer,) = re.findall(r"\((\w+)\)$", ast.literal_eval(text.value))
            found[ast.unparse(field.target)] = WRITERS[writer]
    return found


def assigned(path: Path) -> set[str]:
    """The attributes of a view that a file assigns."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in (each for one in targets for each in getattr(one, "elts", [one])):
            if isinstance(target, ast.Attribute):
                owner = ast.unparse(target.value).rpartition(".")[2]
                if owner in ("view", "_view", "chosen"):
                    names.add(target.attr)
    return names


def test_each_field_is_written_only_where_its_docstring_says() -> None:
    writers = named_writers()
    assert writers.keys() == set(view.Candidate.__dataclass_fields__)
    seen: dict[str, set[str]] = {}
    for path in sorted(CORE.rglob("*.py")):
        for name in assigned(path) & writers.keys():
            seen.setdefault(name, set()).add(str(path.relative_to(CORE)))
    of_fleet = {name for name, writer in writers.items() if writer == WRITERS["Fleet"]}
    assert seen == {name: {writers[name]} for name in writers.keys() - of_fleet}


class HalfDone:
    """A prefill reported as half through a long prompt."""

    def progress(self, now: float) -> float:
        """Its tokens by `now`."""
        return 2.0 * STEP_TOKENS


@pytest.mark.parametrize(
    ("pending", "left"), [(5 * STEP_TOKENS, 3 * STEP_TOKENS), (STEP_TOKENS, STEP_TOKENS), (0, 0)]
)
def test_of_prompts_for_one_step_nothing_is_taken_to_be_computed(pending: int, left: int) -> None:
    """For any report, as of a worker process that does not know yet that a prompt is complete."""
    engine = candidate(D0)
    engine.prefill = HalfDone()
    engine.load.add(0, 0, pending)
    assert engine.pending(0.0) == left
