"""Docstrings as Markdown for the reference: sections, lists of parameters, examples, links.

Parameters are written `name : what it is`, with shapes in place of types; the types stand in the
signature. Lists written like that without a heading are recognized as well.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import griffe

PAGES = Path(__file__).resolve().parent.parent / "docs" / "reference"
NO_LINKS: Mapping[str, str] = {}
_ENTRY = re.compile(r"^(\*{0,2}[A-Za-z_]\w*(?:, \*{0,2}[A-Za-z_]\w*)*) : (.*)$")
_BARE_ENTRY = re.compile(r"^(\*{0,2}[A-Za-z_]\w*(?:, \*{0,2}[A-Za-z_]\w*)*)$")
_LISTED = ("Parameters", "Attributes", "Yields", "Raises")


class MarkdownDocstrings(griffe.Extension):
    """Rewrites the docstrings of a package once all of it is known."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        scopes = documented_names(pkg)
        for found in _objects(pkg):
            if found.docstring is None:
                continue
            known = {**scopes.get(pkg.path, {}), **scopes.get(_scope(found.path, scopes), {})}
            links = {name: path for name, path in known.items() if name != found.name}
            found.docstring.value = to_markdown(found.docstring.value, links)


def documented_names(pkg: griffe.Module) -> dict[str, dict[str, str]]:
    """Module -> name -> identifier in the reference, of what its pages list by `:::`."""
    scopes: dict[str, dict[str, str]] = {}
    for page in sorted(PAGES.glob("*.md")):
        for path in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.M):
            target = _resolved(pkg, path)
            if target is None:
                continue  # mkdocstrings says so itself
            if target.is_module:
                names = [name for name in target.exports or () if isinstance(name, str)]
                listed = {name: f"{path}.{name}" for name in names}
            else:
                listed = {path.rpartition(".")[2]: path}
            scope = scopes.setdefault(path if target.is_module else pkg.path, {})
            for name, identifier in listed.items():
                described = _resolved(pkg, identifier)
                if described is None or described.is_module or described.docstring is None:
                    continue
                scope[name] = identifier
                for member in described.members.values() if described.is_class else ():
                    if not member.is_alias and member.docstring and not member.is_private:
                        scope[f"{name}.{member.name}"] = f"{identifier}.{member.name}"
    return scopes


def _resolved(pkg: griffe.Module, path: str) -> Any:
    """What a path stands for, through imports of the package itself; None if there is nothing."""
    found: Any = pkg
    for part in path.split(".")[1:]:
        found = found.members.get(part)
        if found is not None and found.is_alias:
            found = _resolved(pkg, found.target_path)
        if found is None:
            return None
    return found


def _scope(path: str, scopes: dict[str, dict[str, str]]) -> str:
    """The module of the reference that an object belongs to."""
    return max((s for s in scopes if path.startswith(f"{s}.")), key=len, default="")


def _objects(parent: Any) -> Iterator[Any]:
    yield parent
    for member in parent.members.values():
        if not member.is_alias:
            yield from _objects(member)


def to_markdown(docstring: str, links: Mapping[str, str] = NO_LINKS) -> str:
    """A docstring of this project in Markdown; `links` are names and what they refer to."""
    lines = inspect.cleandoc(docstring).splitlines()
    out: list[str] = []
    section, in_entry, position = "", False, 0
    while position < len(lines):
        line = lines[position]
        following = lines[position + 1] if position + 1 < len(lines) else ""
        position += 1
        if line and following and not following.strip("-") and len(following) >= 3:
            section, in_entry = line.strip(), False
            out += ["", f"**{section}**", ""]
            position += 1
            continue
        if line.lstrip().startswith(">>>"):
            position = _example(lines, position - 1, out)
            continue
        entry = _ENTRY.match(line)
        if entry is None and section in _LISTED and following.startswith(" "):
            entry = _BARE_ENTRY.match(line)
        if entry is not None:
            names = ", ".join(f"`{name}`" for name in entry[1].split(", "))
            rest = entry[2] if entry.re is _ENTRY else ""
            out += ([] if in_entry else [""]) + [f"- {names}: {_literal(rest, links)}".rstrip()]
            in_entry = True
        elif in_entry and (line.startswith(" ") or not line):
            out.append(f"    {_literal(line.strip(), links)}".rstrip())
        elif line.startswith("    "):
            out.append(line)  # a formula on lines of its own
        else:
            out += [""] if in_entry else []
            in_entry = False
            out.append(_literal(line, links))
    return "\n".join(out)


def _example(lines: list[str], position: int, out: list[str]) -> int:
    """A fenced block of the prompt, its continuation and what they print."""
    out += ["", "```pycon"]
    while position < len(lines) and lines[position].strip():
        out.append(re.sub(r"\s*# doctest: \+SKIP", "", lines[position].strip("\n")))
        position += 1
    out += ["```", ""]
    return position


def _literal(text: str, links: Mapping[str, str]) -> str:
    """Text whose stars, underscores and brackets mean themselves; `names` become links."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        _linked(part, links) if part.startswith("`")
        else re.sub(r"([*_\[\]$])", r"\\\1", part).replace("<", "&lt;")
        for part in parts
    )


def _linked(code: str, links: Mapping[str, str]) -> str:
    target = links.get(code.strip("`"))
    return code if target is None else f"[{code}][{target}]"
