"""Equations become MathML while the site is built, so that pages need no script to show them.

`pymdownx.arithmatex` finds `$...$` and `$$...$$` and leaves `<span|div class="arithmatex">TeX`.
"""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

_EQUATION = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.S)
# What latex2mathml passes on without understanding it.
_NOT_UNDERSTOOD = re.compile(r"<m[io]>(?:\\\w+|&(?:amp;)?)</m[io]>")
# Names of functions as identifiers: as operators they would keep a distance from their argument.
_NAME_AS_OPERATOR = re.compile(r"<mo>([a-zA-Z]{2,})</mo>")
# "log q" keeps its space, "log(q)" needs none.
_NAME_BEFORE_ARGUMENT = re.compile(r"(<mi>[a-zA-Z]{2,}</mi>)(?=<(?:mi|mn|mfrac|mover|msu[bp]))")


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """The page's HTML with its equations as MathML."""
    return _EQUATION.sub(lambda found: _mathml(found, page.file.src_uri), content)


def _mathml(found: re.Match[str], where: str) -> str:
    display = "block" if found[1] == "div" else "inline"
    tex = html.unescape(found[2]).strip()
    try:
        result = convert(tex, display=display)
    except Exception as error:
        raise PluginError(f"{where}: no MathML for ${tex}$: {error!r}") from error
    unknown = _NOT_UNDERSTOOD.search(result)
    if unknown:
        raise PluginError(f"{where}: no MathML for {unknown[0]} in ${tex}$; write it otherwise.")
    result = _NAME_AS_OPERATOR.sub(r"<mi>\1</mi>", result)
    result = _NAME_BEFORE_ARGUMENT.sub(r'\1<mspace width="0.17em"/>', result)
    return f'<div class="equation">{result}</div>' if display == "block" else result
