"""What stands before every request: who may ask, how much, and what an error may say."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crfield.app.connections import Connections

HEADER = b"x-crfield"
_READING = ("GET", "HEAD")
_SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_RAW_SECURITY_HEADERS = [
    (name.lower().encode(), value.encode()) for name, value in _SECURITY_HEADERS.items()
]


def refusal(status: int, sentence: str) -> Response:
    """A refusal, with its reason in one sentence."""
    return JSONResponse({"error": sentence}, status)


class Guard:
    """Lets only pages of this server through, with bodies that the limits allow.

    The bodies of all requests that are being answered may take `max_in_flight` bytes together.
    Where there is no room for another request, one that waits for its client gives way. `stop`
    ends the work that is under way.
    """

    def __init__(self, app: ASGIApp, connections: Connections, stop: Callable[[], None]) -> None:
        self._app, self.connections, self.stop = app, connections, stop
        self._limits = connections.limits
        self._n_requests = self._n_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the server has no other protocol
            return

        client = scope.get("client")

        async def guarded_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_RAW_SECURITY_HEADERS]
            else:
                self.connections.before_answer(len(message.get("body", b"")), client)
            await send(message)

        most = self._limits.max_body(scope["path"])
        answer = _refused(scope, most)
        is_full = self._n_requests >= self._limits.max_requests
        if answer is None and is_full and not self.connections.make_room(client):
            answer = refusal(429, "too many requests at once; try again in a moment.")
        if answer is not None:
            await answer(scope, receive, guarded_send)
            return
        # The page asks for whole files, and a long list of ranges takes long to sort.
        scope["headers"] = [pair for pair in scope["headers"] if pair[0] != b"range"]
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            if message["type"] == "http.request":
                n_bytes = len(message.get("body", b""))
                taken += n_bytes
                self._n_bytes += n_bytes
                if taken > most:
                    raise HTTPException(413)
                is_full = self._n_bytes > self._limits.max_in_flight
                if is_full and not self.connections.make_room(client):
                    raise HTTPException(429)
            return message

        self._n_requests += 1
        try:
            await self._app(scope, counted, guarded_send)
        except asyncio.CancelledError:
            return  # the server is being stopped
        finally:
            self._n_requests -= 1
            self._n_bytes -= taken


def _refused(scope: Scope, max_bytes: int) -> Response | None:
    """The refusal of a request by its head alone, None if it may go on."""
    headers: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.lower(), []).append(value)
    hosts = headers.get(b"host", [])
    if len(hosts) != 1 or not _is_this_machine(hosts[0]):
        return refusal(403, "expected a request to this machine; open the address as printed.")
    own = f"http://{hosts[0].decode('latin-1').lower()}"
    origins = headers.get(b"origin", [])
    if any(origin.decode("latin-1").lower() != own for origin in origins):
        return refusal(403, "expected a request from the page itself; open the page and use that.")
    sites = set(headers.get(b"sec-fetch-site", []))
    # The page itself may be reached by a link from anywhere.
    if scope["path"].startswith("/api/") and not sites <= {b"same-origin", b"none"}:
        return refusal(403, "expected a request from the page itself; open the page and use that.")
    if scope["method"] not in _READING and headers.get(HEADER) != [b"1"]:
        return refusal(403, "expected the header X-Crfield: 1; use the page, or send it.")
    lengths = headers.get(b"content-length", [])
    if len(lengths) > 1 or (lengths and not lengths[0].isdigit()):
        return refusal(400, "expected one content length, a whole number; send it so.")
    if lengths and (len(lengths[0]) > 15 or int(lengths[0]) > max_bytes):
        return refusal(413, f"expected at most {max_bytes} bytes; send a smaller file.")
    return None


def _is_this_machine(host: bytes) -> bool:
    """Whether a Host header names this machine: a page elsewhere that has its own name point here
    (DNS rebinding) still sends that name.
    """
    try:
        parts = urlsplit(f"//{host.decode('ascii')}")
        _ = parts.port
    except ValueError:
        return False
    if parts.path or parts.query or parts.fragment or parts.username is not None:
        return False
    name = parts.hostname or ""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def as_json(value: Any) -> bytes:
    """Compact JSON without NaN or infinity, which pages cannot read."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
