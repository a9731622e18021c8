"""The command `crfield`: one module per subcommand; this one parses, dispatches, reports errors."""

from __future__ import annotations

import argparse
import difflib
import functools
import os
import signal
import sys
import threading
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from shlex import quote
from typing import Any, NoReturn

from crfield._core.validate import InputError, printable
from crfield.cli.words import in_options, say

DESCRIPTION = "Make segmentations follow the image, with a dense conditional random field."
EPILOG = """\
examples:
  crfield demo                                          see what it does, on its own photos
  crfield refine photo.jpg --probabilities softmax.npy  a network's output, (H, W, labels)
  crfield refine photo.jpg --labels mask.png            a coarse label image
  crfield refine photo.jpg --scribbles strokes.png      a few strokes, 255 elsewhere
  crfield refine --help                                 every option
  crfield learn --images photos/ --labels masks/ --probabilities softmax/ -o model
                                                        fit a model to images with true labels
  crfield graph model.uai --evidence seen.evid          solve a graphical model in the UAI format
  crfield app                                           paint labels in the browser

exit codes: 0 fine, 1 some images of a batch failed, 2 wrong usage or input, 130 interrupted
"""

# What argparse says of files where none belong, or of one too many.
_STRAY = ("unrecognized arguments", "is required", "ignored explicit argument")
_ALIKE = 0.7  # how much of a mistyped option must be right for a hint


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv`, by default the program's arguments, and give its exit code."""
    _prepare_streams()
    try:
        with _terminated_as_interrupted():
            return _run(argv)
    except KeyboardInterrupt:
        print("crfield: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has gone: nothing to say
        _drop_output()
        return 1
    except InputError as error:
        return _fail(str(error))
    except MemoryError:
        return _fail(
            "not enough memory; use a smaller image or model, fewer labels, or --filter lattice "
            "where there is a filter."
        )
    except OSError as error:
        where = error.filename or "standard output or another stream"
        return _fail(f"{error.strerror or error}: {where}.")


def _run(argv: Sequence[str] | None) -> int:
    parser = build_parser()
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as stop:  # argparse has printed its help, the version or an error
        return int(stop.code or 0)
    if not hasattr(arguments, "run"):
        parser.print_help(sys.stderr)
        return 2
    with warnings.catch_warnings():
        prepare_process()
        code: int = arguments.run(arguments)
    sys.stdout.flush()
    return code


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    from crfield import __version__
    from crfield.cli import app, demo, evaluate, graph, learn, refine

    parser = Parser(
        prog="crfield",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"crfield {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in (refine, learn, evaluate, graph, app, demo):
        command.add_command(commands)
    return parser


# Options of other programs that have another name here.
_MEANINGS = {
    "--max-iter": "iterations iteration iters iter n-iter n-iters max-iterations steps epochs",
    "--jobs": "n-jobs workers n-workers processes parallel",
    "--threads": "n-threads num-threads",
    "--overwrite": "force replace",
    "--output": "out output-folder output-dir dest",
    "--labels": "mask masks segmentation",
    "--probabilities": "softmax unary unaries",
    "--quiet": "silent",
}


def _meant(name: str, known: Sequence[str]) -> str | None:
    """The option that an unknown one stands for, by its meaning or because it is nearly the same.
    """
    for option, words in _MEANINGS.items():
        if option in known and name.removeprefix("--").replace("_", "-") in words.split():
            return option
    # Without dashes, which all have in common.
    bare = {option.removeprefix("--"): option for option in known}
    close = difflib.get_close_matches(name.removeprefix("--"), bare, 1, _ALIKE)
    return bare[close[0]] if close else None


def _file_hint(words: Sequence[str], known: Collection[str]) -> str:
    """What to write in place of options with too many files, if there are any that are `known`."""
    given: dict[str, list[str]] = {}
    option = ""
    for word in words:
        if word.startswith("-"):
            option, _, file = word.partition("=")
            given[option] = [file] if file else []
        else:
            given.setdefault(option, []).append(word)
    if "--logits" in known and (files := given.get("--logits")):
        return f"--logits takes no file: write --probabilities {quote(files[0])} --logits"
    for option in ("--labels", "--probabilities", "--probs", "--scribbles"):
        files = given.get(option, [])
        folders = {os.path.dirname(file) or "." for file in files}
        if len(files) > 1 and len(folders) == 1:
            folder = quote(folders.pop())
            return f"{option} takes one file or a folder; give the folder: {option} {folder}"
    return ""


class Parser(argparse.ArgumentParser):
    """The parser of the command line and of each of its subcommands, which tells which option a
    mistyped one was meant to be.
    """

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
            if meant := _meant(name, known):
                message = f"there is no {name}; did you mean {meant}?"
                break
        else:
            if any(kind in message for kind in _STRAY):
                message = _file_hint(self._words, known) or message
        super().error(printable(message))

    def _options(self) -> list[str]:
        """All long options that the words could hold."""
        found: list[str] = []
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, command in action.choices.items():
                    found += command._options() if name in self._words else []
            found += [option for option in action.option_strings if option.startswith("--")]
        return found


def prepare_process() -> None:
    """Show warnings as the command does, and keep less memory idle with several images at a time.
    Both hold for the whole process, so the command does it and the library does not.
    """
    from crfield._core import _native

    warnings.showwarning = functools.partial(_show_warning, set())
    _native.share_one_heap()


def _prepare_streams() -> None:
    """Let file names that are no text be printed, and everything where a stream was closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, so that it tidies up and says what is left."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _drop_output() -> None:
    """Have nothing more written to standard output, also not when the program ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(sentence: str) -> int:
    say(f"crfield: error: {in_options(sentence)}", sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
    return 2


def _show_warning(said: set[str], message: Warning | str, *_: Any, **__: Any) -> None:
    """Say it, unless it was `said`: the command and the library may both look at a file."""
    sentence = in_options(str(message))
    if sentence not in said:
        said.add(sentence)
        say(f"crfield: warning: {sentence}", sys.stderr)
