"""A log that stays short: what repeats is counted, and summarized once a minute."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOGGERS = ("asyncio", "crfield.app", "uvicorn.error")
MOST = 5  # lines of one kind per minute
_SECONDS = 60.0
_LONGEST = 200  # characters of a line in a summary
_Place = tuple[str, str, int]


class RepeatFilter(logging.Filter):
    """Lets a few records from each place in the code through, and counts the others."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock, self._since = clock, clock()
        self._lock = threading.Lock()
        self._counts: dict[_Place, tuple[int, str]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written."""
        place = (record.name, record.pathname, record.lineno)
        with self._lock:
            count = self._counts.get(place, (0, ""))[0] + 1
            self._counts[place] = count, record.getMessage()[:_LONGEST]
        return count <= MOST

    def summarize(self, is_last: bool = False) -> None:
        """Once a minute, and at the end, write how many records were left out."""
        now = self._clock()
        if now < self._since + _SECONDS and not is_last:
            return
        with self._lock:
            counts, self._counts, self._since = self._counts, {}, now
        for (name, _, _), (count, text) in counts.items():
            if count > MOST:
                line = text.strip().split("\n")[0]
                logging.getLogger(name).warning("%s (%d more times)", line, count - MOST)


@contextmanager
def few_lines(clock: Callable[[], float]) -> Iterator[RepeatFilter]:
    """Keep the server's log short for as long as the block lasts."""
    thread = threading.get_ident()
    lines = RepeatFilter(clock)

    def of_this_server(record: logging.LogRecord) -> bool:
        # Another event loop of the same process is none of our business.
        return (record.name == "asyncio" and record.thread != thread) or lines.filter(record)

    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addFilter(of_this_server)
    try:
        yield lines
    finally:
        lines.summarize(is_last=True)
        for logger in loggers:
            logger.removeFilter(of_this_server)
