"""What the library says, in the words of the command: options instead of arguments."""

from __future__ import annotations

import re
from shlex import quote
from typing import TextIO

from crfield._core.validate import printable

_PHRASES = {
    "pass the folders, ": "add ",
    "pass the folder, ": "add ",
    'pass layout="channels_first" or layout="channels_last"':
        "add --layout channels_first or --layout channels_last",
    'pass layout="channels_first"': "add --layout channels_first",
    'pass layout="channels_last"': "add --layout channels_last",
    "pass logits=True": "add --logits",
    "raise max_pixels": "raise the limit with --max-pixels",
    "read it as labels": "pass it with --labels",
    "read it as probabilities": "pass it with --probabilities",
    'pass scale="auto" to bring its widths to that size, or scale=1':
        "add --scale auto to bring its widths to that size, or --scale 1",
    'scale="auto"': "--scale auto",
    ", or give the kernels a color_scale": "",
    "pass the opened picture if the photo is turned (EXIF), or transpose one of them":
        "turn one of them by 90 degrees, or transpose it",
    "pass both as nibabel images": "give both as NIfTI files",
    "choose another port": "choose another with --port",
}
_OPTIONS = (
    "spatial_weight", "bilateral_weight", "confidence", "unknown", "algorithm", "filter",
    "max_iter", "tol", "threads", "layout", "block", "overlap",
)
_FOLDERS = re.compile(r"\b(images|labels|probabilities)='?((?<=')[^']*|[A-Z]+)'?,?")
_UNKNOWN = re.compile(r"pass unknown=(\w+)")
_LEADING = re.compile(rf"^({'|'.join(_OPTIONS)}) must ")


def say(line: str, stream: TextIO | None = None) -> None:
    """Print one line, on standard output unless told otherwise: names of files and what is in them
    may hold control codes of terminals, which it spells out.
    """
    print(printable(line), file=stream)


def counted(n: int, noun: str) -> str:
    """A number of things, "1 round" or "2 rounds"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def in_options(sentence: str) -> str:
    """A sentence of the library about its arguments as one about the options of the command."""
    for phrase, option in _PHRASES.items():
        sentence = sentence.replace(phrase, option)
    sentence = _FOLDERS.sub(lambda found: f"--{found[1]} {quote(found[2])}", sentence)
    sentence = _UNKNOWN.sub(lambda found: f"add --unknown {found[1].lower()}", sentence)
    return _LEADING.sub(lambda found: f"--{found[1].replace('_', '-')} must ", sentence)
