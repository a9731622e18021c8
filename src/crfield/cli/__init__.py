"""The command `crfield`: one module per subcommand; this one parses, dispatches, reports errors."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from crfield._validate import InputError

DESCRIPTION = "Make segmentations follow the image, with a dense conditional random field."
EPILOG = """\
examples:
  crfield demo                                     see what it does, on photos that come with it
  crfield refine photo.jpg --probs softmax.npy     a network's probabilities, (H, W, labels)
  crfield refine photo.jpg --labels mask.png       a coarse or scribbled label image
  crfield refine --help                            every option
  crfield learn data/ --split train -o model       fit a model to images with true labels

exit codes: 0 fine, 1 some images of a batch failed, 2 wrong usage or input, 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv`, by default the program's arguments, and give its exit code."""
    parser = build_parser()
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as stop:  # argparse has printed its help, the version or an error
        return int(stop.code or 0)
    if not hasattr(arguments, "run"):
        parser.print_help(sys.stderr)
        return 2
    _share_one_heap()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("crfield: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of a pipe has gone: nothing to say, and nothing may be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except InputError as error:
        return _fail(str(error))
    except MemoryError:
        return _fail("not enough memory; use a smaller image, fewer labels or --filter lattice.")
    except OSError as error:
        return _fail(f"{error.strerror or error}: {error.filename or 'no file name'}.")


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    from crfield import __version__
    from crfield.cli import demo, evaluate, learn, refine

    parser = argparse.ArgumentParser(
        prog="crfield",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"crfield {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    refine.add_command(commands)
    learn.add_command(commands)
    evaluate.add_command(commands)
    demo.add_command(commands)
    return parser


def _share_one_heap() -> None:
    """Keep less memory idle with several images at a time; a library may not decide that for its
    program, a program may.
    """
    from crfield import _native

    _native.share_one_heap()


def _fail(sentence: str) -> int:
    print(f"crfield: error: {sentence}", file=sys.stderr)
    return 2


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"crfield: warning: {message}", file=sys.stderr)
