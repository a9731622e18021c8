"""The options in docs/command_line.md, written from the parser itself; --check only compares."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from crfield.cli import build_parser

PAGE = Path(__file__).resolve().parent.parent / "docs" / "command_line.md"
START = "<!-- from here on written by docs_tools/command_line_page.py -->\n"


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parser of each subcommand, in the order of the help."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def options() -> str:
    """A section for each subcommand: description, arguments and options, notes."""
    lines = [
        line for name, parser in subcommands(build_parser()).items()
        for line in section(name, parser)
    ]
    return "\n" + "\n".join(lines).rstrip() + "\n"


def section(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## crfield {name}\n"
    yield f"{' '.join((parser.description or '').split())}\n"
    for group in parser._action_groups:
        actions = [a for a in group._group_actions if not isinstance(a, argparse._HelpAction)]
        if not actions:
            continue
        title = {"options": "option", "positional arguments": "argument"}.get(
            group.title or "", group.title
        )
        yield f"| {title} | |\n|---|---|"
        for action in actions:
            yield f"| {spelling(action)} | {meaning(action, parser)} |"
        yield ""
    yield from notes(parser.epilog or "")


def spelling(action: argparse.Action) -> str:
    """How to write it, such as `-o OUT`, `--output OUT`."""
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    value = ""
    if action.nargs != 0:
        shown = action.metavar or (action.dest.upper() if action.choices is None else "")
        value = " " + (" ".join(shown) if isinstance(shown, tuple) else shown or "NAME")
    return ", ".join(f"`{option}{value}`" for option in action.option_strings)


def meaning(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    """The help, with what can be chosen and what is needed."""
    text = " ".join((action.help or "").split()) % {
        **vars(action), "prog": parser.prog, "default": action.default
    }
    if action.choices is not None:
        text = f"one of {', '.join(f'`{choice}`' for choice in action.choices)}; {text}"
    if action.required and action.option_strings:
        text += " (needed)"
    return text.strip("; ").replace("|", "\\|").replace("*", "\\*")


def notes(epilog: str) -> Iterator[str]:
    """What the help adds below its examples, which name files that are not there."""
    lines = [line for line in epilog.splitlines() if not line.startswith("  ")]
    text = "\n".join(line for line in lines if line != "examples:").strip()
    if text:
        yield text + "\n"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--check", action="store_true", help="fail if the page is out of date")
    check = arguments.parse_args().check
    before = PAGE.read_text("utf-8")
    written = before.partition(START)[0] + START + options()
    if check and written != before:
        remedy = "run python -m docs_tools.command_line_page"
        print(f"{PAGE.name} is out of date; {remedy}", file=sys.stderr)
        return 1
    if not check:
        PAGE.write_text(written, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
