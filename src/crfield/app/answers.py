"""What the page receives: pictures, streams of steps with a result, and errors.

A stream answers a request for a refinement. A frame of it is a byte for its kind, its length in
four bytes, little-endian, and its content.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import struct
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from crfield._core.validate import InputError
from crfield.app.guards import as_json, refusal
from crfield.app.refining import CancelledError, StepCallback
from crfield.app.workspace import Refinement, UnknownError
from crfield.show.pictures import label_palette

STEP, RESULT, ERROR = 1, 2, 3
logger = logging.getLogger("crfield.app")

Work = Callable[[StepCallback], Refinement]
_Value = TypeVar("_Value")


async def in_thread(function: Callable[..., _Value], *arguments: Any) -> _Value:
    """Run a slow function in a thread, so that the server goes on answering."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


def png(picture: Image.Image) -> bytes:
    """A picture as PNG, compressed little, since it does not leave this machine."""
    stream = io.BytesIO()
    picture.save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def labels_picture(done: Refinement) -> Image.Image:
    """The labels of a refinement as a picture of their values, in the colors of the page where
    they fit into bytes.
    """
    values = done.mask_values
    picture = Image.fromarray(values[done.labels])
    if values.dtype == np.uint8:
        palette = label_palette(256)
        palette[values] = label_palette(len(values))
        picture.putpalette(palette.tobytes())
    return picture


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
    """The frames of a job, which is cancelled when the connection ends."""

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
        self._work: Work | None = work
        self._cancelled = cancelled
        self._loop = asyncio.get_running_loop()
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._is_read = True
        self._future = pool.submit(self._run)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to compute; its frames may not be read yet."""
        return self._future.done()

    async def frames(self) -> AsyncIterator[bytes]:
        """Frames as they come."""
        while (content := await self._frames.get()) is not None:
            yield content

    def end(self) -> None:
        """Nobody reads any more: cancel what is left and forget what was not read."""
        self._is_read = False
        self._cancelled.set()
        self._future.cancel()
        self._work = None  # and the scribbles in it, before its turn comes
        self._frames = asyncio.Queue()

    def _run(self) -> None:
        try:
            work, self._work = self._work, None
            if work is None or self._cancelled.is_set():
                raise CancelledError
            done = work(lambda step: self._put(frame(STEP, as_json(step))))
            self._put(result_frame(done))
        except BaseException as error:
            self._put(error_frame(error))
        finally:
            self._put(None)

    def _put(self, content: bytes | None) -> None:
        if not self._is_read:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads any more
            self._loop.call_soon_threadsafe(self._frames.put_nowait, content)


_HTTP_SENTENCES = {
    404: "there is nothing at this address; open the page at /.",
    405: "this address does not answer to that method; use the page.",
    413: "expected fewer bytes; send a smaller file.",
    429: "too much is being sent at once; try again in a moment.",
}


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    unforeseen = "the request cannot be answered; use the page."
    return refusal(error.status_code, _HTTP_SENTENCES.get(error.status_code, unforeseen))


def _answer(status: int, sentence: str = "", log: str = "") -> Callable[..., Any]:
    """A handler that answers with a sentence, by default the error's own, and writes to the log
    what the page need not know.
    """
    async def handle(request: Request, error: Exception) -> Response:
        if log:
            logger.error(log, exc_info=error)
        return refusal(status, sentence or str(error))

    return handle


ERROR_HANDLERS: dict[Any, Callable[..., Any]] = {
    UnknownError: _answer(404),
    InputError: _answer(422),
    HTTPException: _http_error,
    ClientDisconnect: _answer(400, "the request ended before it was complete; send it again."),
    OSError: _answer(
        507, "the server cannot store the file just now; make room on its disk.",
        "a file could not be stored",
    ),
    MemoryError: _answer(413, "not enough memory for this; use a smaller image."),
    Exception: _answer(
        500, "something went wrong; the server's log says what.", "a request failed"
    ),
}
