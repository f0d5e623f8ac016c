"""The pages at GET / and GET /docs, as self-contained HTML: links, and the operations from the
OpenAPI document.

FastAPI's own page loads scripts from a CDN, which a cluster without internet access cannot reach.
"""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

__all__ = ["docs_page", "index_page"]

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .4rem .8rem .4rem 0;
         border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent) }
code { white-space: nowrap }
"""


LINKS = {
    "dashboard": "the live page: engines, load, decisions and changes",
    "docs": "all operations",
    "endpoints": "every engine, as JSON",
    "metrics": "for Prometheus",
}


def index_page(title: str) -> str:
    """The page at GET /."""
    links = (f'<li><a href="{path}">/{path}</a>: {text}</li>' for path, text in LINKS.items())
    return _page(title, f"<ul>{''.join(links)}</ul>")


def docs_page(openapi: Mapping[str, Any]) -> str:
    """The page at GET /docs."""
    info = openapi["info"]
    rows = _operations(openapi["paths"])
    return _page(
        f"{info['title']} {info['version']}",
        f"<p>{escape(info['description'])}</p>"
        "<table><thead><tr><th>operation</th><th>what it does</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
        '<p><a href="openapi.json">openapi.json</a></p>',
    )


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>{body}</body></html>"
    )


def _operations(paths: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for path, methods in paths.items():
        for method, operation in methods.items():
            yield _row(method.upper(), path, operation.get("description", ""))


def _row(method: str, path: str, text: str) -> str:
    return f"<tr><td><code>{method} {escape(path)}</code></td><td>{escape(text)}</td></tr>"
