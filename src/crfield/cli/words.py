"""What the library says, in the words of the command: options instead of arguments."""

from __future__ import annotations

import re

_PHRASES = {
    'pass layout="channels_first"': "add --layout channels_first",
    "pass unknown=None": "add --unknown none",
    "raise max_pixels": "raise the limit with --max-pixels",
    "read it as labels": "pass it with --labels",
    "read it as probabilities": "pass it with --probabilities",
    "choose another port": "choose another with --port",
}
_OPTIONS = (
    "spatial_weight", "bilateral_weight", "confidence", "unknown", "algorithm", "filter",
    "max_iter", "tol", "threads", "layout", "block", "overlap",
)
_LEADING = re.compile(rf"^({'|'.join(_OPTIONS)}) must ")


def in_options(sentence: str) -> str:
    """A sentence of the library about its arguments as one about the options of the command."""
    for phrase, option in _PHRASES.items():
        sentence = sentence.replace(phrase, option)
    return _LEADING.sub(lambda found: f"--{found[1].replace('_', '-')} must ", sentence)
