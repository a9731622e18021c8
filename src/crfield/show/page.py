"""Pieces of an HTML page that needs nothing else: no scripts, no other files.

Texts are escaped here; what is called drawing or body is HTML already.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence

from PIL import Image

from crfield.show.svg import AFTER, GRID_LINE, INK, PALE_INK

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; color: #24292f; background: #fff;
       max-width: 1120px; margin: 32px auto; padding: 0 20px; }
h1 { font-size: 26px; margin: 0 0 16px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 40px 0 8px; } h3 { font-size: 15px; margin: 24px 0 6px; }
p { margin: 4px 0 12px; max-width: 80ch; }
.row { display: flex; flex-wrap: wrap; gap: 16px 24px; align-items: flex-start;
       margin-bottom: 14px; }
figure { margin: 0; } figcaption { font-size: 13px; color: #6b7280; margin-bottom: 4px; }
.tile { border: 1px solid #e5e7eb; border-radius: 8px; padding: 8px 16px; }
.tile b { display: block; font-size: 20px; font-weight: 600; }
table { border-collapse: collapse; font-size: 14px; }
th, td { text-align: left; padding: 3px 18px 3px 0; border-bottom: 1px solid #e5e7eb; }
td.number { font-variant-numeric: tabular-nums; }
svg { display: block; overflow: visible; font-family: system-ui, sans-serif; }
img { display: block; max-width: 100%; }
"""
# Charts are drawn for light pages; rules of a page go before the colors that a drawing names.
_DARK = {
    "fill": {INK: "#e8ecf0", PALE_INK: "#a3afba", AFTER: "#6ea0ff"},
    "stroke": {GRID_LINE: "#343d46", PALE_INK: "#76828e", AFTER: "#6ea0ff"},
}
_DARK_STYLE = "\n".join([
    "@media (prefers-color-scheme: dark) {",
    "body { color: #e8ecf0; background: #14181c; } figcaption { color: #a3afba; }",
    ".tile, th, td { border-color: #343d46; }",
    *(f'svg [{attribute}="{light}"] {{ {attribute}: {dark}; }}'
      for attribute, colors in _DARK.items() for light, dark in colors.items()),
    "}",
])


# By this a page of ours is told from the files of others.
BEGIN = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="generator" content="crfield">\n'
)


def page(title: str, sections: Iterable[str]) -> str:
    """A whole document; empty sections are left out."""
    body = "\n".join(section for section in sections if section)
    name = html.escape(title)
    return (
        f"{BEGIN}<title>{name}</title>\n<style>{_STYLE}{_DARK_STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{name}</h1>\n{body}\n</body>\n</html>\n"
    )


def heading(text: str, level: int = 2) -> str:
    """A heading of level 2 or 3."""
    return f"<h{level}>{html.escape(text)}</h{level}>"


def paragraph(text: str) -> str:
    """A paragraph."""
    return f"<p>{html.escape(text)}</p>"


def figure(caption: str, drawing: str) -> str:
    """A drawing below its caption."""
    return f"<figure><figcaption>{html.escape(caption)}</figcaption>{drawing}</figure>"


def picture(image: Image.Image, meaning: str, form: str = "PNG") -> str:
    """A picture within the page, as PNG or JPEG; `meaning` is for those who cannot see it."""
    stream = io.BytesIO()
    image.save(stream, form)
    data = base64.b64encode(stream.getvalue()).decode("ascii")
    source = f"data:image/{form.lower()};base64,{data}"
    return f'<img alt="{html.escape(meaning)}" style="max-width: 100%" src="{source}">'


def tile(name: str, value: str) -> str:
    """A number that stands out."""
    return f'<div class="tile">{html.escape(name)}<b>{html.escape(value)}</b></div>'


def row(items: Sequence[str]) -> str:
    """Items side by side, as many as there is room for."""
    return f'<div class="row">{"".join(items)}</div>' if items else ""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; an empty header is left out."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    lines = [
        "".join(f'<td class="number">{html.escape(cell)}</td>' for cell in cells)
        for cells in rows
    ]
    written = ([head] if head else []) + lines
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in written)}</table>"


def number(value: float, digits: int = 4) -> str:
    """A number in so many digits, what rounding left of a zero as 0."""
    return f"{0.0 if abs(value) < 1e-12 else value:.{digits}g}"
