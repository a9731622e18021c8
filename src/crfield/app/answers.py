"""Pictures, names and errors as the page receives them."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from crfield._core.validate import InputError
from crfield.app.guards import refusal
from crfield.app.streams import logger
from crfield.app.workspace import Refinement, UnknownError
from crfield.show.pictures import label_palette

_LONGEST_NAME = 120
_Value = TypeVar("_Value")


async def in_thread(function: Callable[..., _Value], *arguments: Any) -> _Value:
    """The value of a function that takes a while, the server going on meanwhile."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


def png(picture: Image.Image) -> Response:
    """A picture without loss; little effort goes into making it small, since it stays here."""
    stream = io.BytesIO()
    picture.save(stream, "PNG", compress_level=1)
    return Response(stream.getvalue(), media_type="image/png")


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


def upload_name(request: Request, default: str) -> str:
    """What the page calls a file: shown and printed in scripts, never opened."""
    given = request.query_params.get("name", "")
    last = given.replace("\\", "/").rsplit("/", 1)[-1]
    kept = "".join(letter for letter in last if letter.isprintable()).strip()
    return kept[:_LONGEST_NAME] or default


async def _unknown(request: Request, error: Exception) -> Response:
    return refusal(404, str(error))


async def _wrong(request: Request, error: Exception) -> Response:
    return refusal(422, str(error))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentences = {
        404: "there is nothing at this address; open the page at /.",
        405: "this address does not answer to that method; use the page.",
        413: "expected fewer bytes; send a smaller file.",
        429: "too much is being sent at once; try again in a moment.",
    }
    sentence = sentences.get(error.status_code, "the request cannot be answered; use the page.")
    return refusal(error.status_code, sentence)


async def _gone(request: Request, error: Exception) -> Response:
    return refusal(400, "the request ended before it was complete; send it again.")


async def _too_slow(request: Request, error: Exception) -> Response:
    return refusal(408, "the request stopped half way; send it again.")


async def _no_room(request: Request, error: Exception) -> Response:
    logger.error("a file could not be stored", exc_info=error)
    return refusal(507, "the server cannot store the file just now; make room on its disk.")


async def _no_memory(request: Request, error: Exception) -> Response:
    return refusal(413, "not enough memory for this; use a smaller image.")


async def _unforeseen(request: Request, error: Exception) -> Response:
    logger.error("a request failed", exc_info=error)
    return refusal(500, "something went wrong; the server's log says what.")


ERROR_HANDLERS: dict[Any, Callable[..., Any]] = {
    UnknownError: _unknown, InputError: _wrong, HTTPException: _http_error,
    ClientDisconnect: _gone, TimeoutError: _too_slow, OSError: _no_room,
    MemoryError: _no_memory, Exception: _unforeseen,
}
