"""The stream that answers a request for a refinement: progress, then a result or an error.

A frame is a byte for its kind, its length in four bytes, little-endian, and its content.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from crfield._core.validate import InputError
from crfield.app.guards import as_json
from crfield.app.refining import CancelledError, StepCallback
from crfield.app.workspace import Refinement

PROGRESS, RESULT, ERROR = 1, 2, 3
logger = logging.getLogger("crfield.app")

Work = Callable[[StepCallback], Refinement]


def frame(kind: int, *parts: bytes) -> bytes:
    """One frame."""
    content = b"".join(parts)
    return struct.pack("<BI", kind, len(content)) + content


def result_frame(refinement: Refinement) -> bytes:
    """The report and three planes (H, W): labels after, labels before, entropies."""
    report = as_json(refinement.report)
    planes = (refinement.labels, refinement.before, refinement.entropy)
    return frame(RESULT, struct.pack("<I", len(report)), report, *(p.tobytes() for p in planes))


def error_frame(error: BaseException) -> bytes:
    """One sentence; what nobody foresaw goes to the log and not to the page."""
    if isinstance(error, CancelledError):
        return frame(ERROR, as_json({"error": "cancelled", "cancelled": True}))
    if isinstance(error, InputError):
        return frame(ERROR, as_json({"error": str(error)}))
    if isinstance(error, MemoryError):
        return frame(ERROR, as_json({"error": "not enough memory; use a smaller image."}))
    logger.error("a refinement failed", exc_info=error)
    return frame(ERROR, as_json({"error": "something went wrong; the server's log says what."}))


class JobResponse(StreamingResponse):
    """The frames of a job, which ends with the connection whichever way that ends."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.frames(), media_type="application/octet-stream")
        self._job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._job.end()


class Job:
    """Work in a thread of `pool` whose frames a page reads; `cancelled` makes it stop."""

    def __init__(
        self, work: Work, pool: ThreadPoolExecutor, cancelled: threading.Event
    ) -> None:
        self._work, self._cancelled = work, cancelled
        self._loop = asyncio.get_running_loop()
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.is_over = False
        pool.submit(self._run)

    async def frames(self) -> AsyncIterator[bytes]:
        """Frames as they come."""
        while (content := await self._frames.get()) is not None:
            yield content

    def end(self) -> None:
        """Nobody reads any more: cancel what is left and forget what was not read."""
        self.is_over = True
        self._cancelled.set()
        self._frames = asyncio.Queue()

    def _run(self) -> None:
        try:
            if self._cancelled.is_set():
                raise CancelledError
            done = self._work(lambda step: self._put(frame(PROGRESS, as_json(step))))
            self._put(result_frame(done))
        except BaseException as error:
            self._put(error_frame(error))
        finally:
            self._put(None)

    def _put(self, content: bytes | None) -> None:
        if self.is_over:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._frames.put_nowait, content)
