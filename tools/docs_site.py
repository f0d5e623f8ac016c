"""mkdocs' hook: the documents and what they link to, at their places in the repository.

So links work in the site, in a checkout and on GitHub alike.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

_LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def documents() -> list[str]:
    """The paths of all documents of the site."""
    command = ["git", "ls-files", "*.md"]
    found = subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE)
    return found.stdout.split()


def _linked(document: str) -> Iterator[Path]:
    """The paths to which a document links, in the repository."""
    text = (ROOT / document).read_text(encoding="utf-8")
    for _, target, _ in _LINK.findall(text):
        if "://" not in target:
            yield (ROOT / document).parent.joinpath(target).resolve()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of docs/ by those of the repository; keep those of the theme."""
    names = {*documents(), *config.extra_css}
    for document in documents():
        names |= {str(path.relative_to(ROOT)) for path in _linked(document) if path.is_file()}
    theme = [each for each in files if each.src_dir != config.docs_dir]
    ours = [File.generated(config, name, abs_src_path=str(ROOT / name)) for name in sorted(names)]
    return Files([*theme, *ours])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Name folders instead of linking to them: a site shows none."""
    here = (ROOT / page.file.src_uri).parent

    def shown(found: re.Match[str]) -> str:
        is_folder = "://" not in found[2] and (here / found[2]).is_dir()
        return found[1] if is_folder else found[0]

    return _LINK.sub(shown, markdown)
