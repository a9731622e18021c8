"""How far long work is, shown while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_DELAY = 0.5  # seconds before a bar appears: what is done sooner needs none


@contextmanager
def shown_progress(
    unit: str, total: int, callback: Callable[..., Any] | None = None
) -> Iterator[Callable[..., Any] | None]:
    """`callback`, whose first argument is how much is done, with a bar on standard error.

    unit, total : what is counted, and how much of it there is at most.
    """
    if not (callback is None or callable(callback)):  # whoever calls it refuses it
        yield callback
        return
    from tqdm import tqdm

    with tqdm(total=total, unit=unit, leave=None, delay=_DELAY) as bar:
        def told(done: int, *more: Any) -> Any:
            bar.update(done - bar.n)  # what goes on from an earlier run begins in the middle
            return None if callback is None else callback(done, *more)

        yield told
