"""A parser that tells which option a mistyped one was meant to be."""

from __future__ import annotations

import argparse
import difflib
import sys
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """The parser of the command line, and of each of its subcommands."""

    _words: tuple[str, ...] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Remember the words, so that an error can look at them."""
        self._words = tuple(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """End with the message, and with the option that comes nearest to an unknown one."""
        known = self._options()
        for word in self._words:
            name = word.split("=")[0]
            if not name.startswith("--") or any(option.startswith(name) for option in known):
                continue
            if close := difflib.get_close_matches(name, known, 1):
                message = f"there is no {name}; did you mean {close[0]}?"
                break
        super().error(message)

    def _options(self) -> list[str]:
        """All long options that the words could hold."""
        found: list[str] = []
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, command in action.choices.items():
                    found += command._options() if name in self._words else []
            found += [option for option in action.option_strings if option.startswith("--")]
        return found
