"""Fuzz one reader under atheris: `python -m tests.fuzz.atheris_target npy -max_total_time=3600`.

What follows the name goes to libFuzzer: a folder to keep the corpus in, options, or a file that
it found, to repeat it. Anything but an answer or a refusal ends the run and leaves such a file.
"""

import contextlib
import sys
import tempfile
import warnings
from pathlib import Path

import atheris

# nibabel and tifffile are imported where they are used, which would be too late.
with warnings.catch_warnings(), atheris.instrument_imports(
    include=["crfield", "nibabel", "PIL", "tifffile"]
):
    warnings.simplefilter("ignore")
    import nibabel  # noqa: F401
    import tifffile  # noqa: F401

    from crfield import InputError
    from tests.fuzz.readers import MEGABYTES, SECONDS, TARGETS, try_input


def main(words: list[str]) -> None:
    if not words or words[0] not in TARGETS:
        sys.exit(f"Expected one of: {', '.join(TARGETS)}.")
    target = TARGETS[words[0]]

    def TestOneInput(data: bytes) -> None:
        with contextlib.suppress(InputError):  # a refusal in one sentence is an answer
            try_input(target, data)

    with tempfile.TemporaryDirectory() as seeds:
        for number, seed in enumerate(target.seeds()):
            Path(seeds, str(number)).write_bytes(seed)
        # Of several folders libFuzzer writes only to the first.
        given = [word for word in words[1:] if not word.startswith("-")]
        folders = [] if any(Path(word).is_file() for word in given) else [seeds]
        defaults = [f"-timeout={SECONDS}", f"-rss_limit_mb={2 * MEGABYTES}", "-max_len=20000"]
        atheris.Setup([sys.argv[0], *defaults, *words[1:], *folders], TestOneInput)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
