"""The site of the documents (make docs), as far as it can be checked without mkdocs."""

import re
import subprocess
from fnmatch import fnmatch
from typing import Any

import yaml

from tests.docs.blocks import ROOT

DOCUMENTS = subprocess.run(
    ["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True
).stdout.split()


class Loader(yaml.SafeLoader):
    """Takes mkdocs' tags of Python objects for text."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def named(nav: Any) -> list[str]:
    """The documents of a navigation, in its order."""
    if isinstance(nav, str):
        return [nav]
    return [
        name for part in (nav.values() if isinstance(nav, dict) else nav) for name in named(part)
    ]


def test_the_navigation_lists_every_document_once() -> None:
    site = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)
    hidden = site["not_in_nav"].split()
    shown = [name for name in DOCUMENTS if not any(fnmatch(name, each) for each in hidden)]
    assert sorted(named(site["nav"])) == sorted(shown)


def test_lists_do_not_continue_a_paragraph() -> None:
    """GitHub shows such a list, mkdocs a paragraph with dashes in it."""
    for name in DOCUMENTS:
        text = re.sub(
            r"^```.*?^```$", "", (ROOT / name).read_text("utf-8"), flags=re.MULTILINE | re.DOTALL
        )
        for part in re.split(r"\n\s*\n|^#.*$|^<!--.*$", text, flags=re.MULTILINE):
            lines = part.strip("\n").splitlines()
            begins = [bool(re.match(r"- |\d+\. ", line)) for line in lines]
            assert begins[:1] == [True] or not any(begins), f"{name}: {lines[0]}"
