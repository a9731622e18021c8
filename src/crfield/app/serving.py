"""The server: on this machine only, in the foreground or beside other work."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from crfield._core.optional import missing
from crfield._core.validate import InputError, as_count, shown
from crfield.app.limits import Limits

_STOP_SECONDS = 30.0
# Connections that the system keeps until they are taken; of more than that, some try again only
# after a second.
_BACKLOG = 4096


def serve(
    port: int = 8000, *, host: str = "127.0.0.1", limits: Limits | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the page at http://host:port until interrupted; `ready` is told the address.

    Port 0 takes a free one; a port in use is refused. Other machines cannot connect: `host` must be
    an address of this one.
    """
    listener = _listen(host, port)
    server = _server(limits)
    if ready is not None:
        ready(_address(listener))
    with listener:
        server.run(sockets=[listener])


class RunningApp:
    """The server in a thread of its own, for as long as a `with` block lasts; `url` is its page."""

    def __init__(self, limits: Limits | None = None, port: int = 0) -> None:
        self._listener = _listen("127.0.0.1", port)
        self._server = _server(limits)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listener]}, daemon=True
        )
        self.url = _address(self._listener)

    def __enter__(self) -> RunningApp:
        # The socket listens already: a request made now waits until the server takes it up.
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(_STOP_SECONDS)
        self._listener.close()


def _server(limits: Limits | None) -> Any:
    try:
        import uvicorn

        from crfield.app.connections import Connection, Connections
        from crfield.app.log_lines import few_lines
        from crfield.app.routes import create_app
    except ImportError:
        raise InputError(missing("the playground needs", "starlette", "uvicorn")) from None
    connections = Connections(limits)
    app = create_app(connections)

    class Server(uvicorn.Server):
        """Drops clients that are late; does not wait for any when it is asked to stop."""

        async def serve(self, sockets: list[socket.socket] | None = None) -> None:
            with few_lines(time.monotonic) as self.lines:
                await super().serve(sockets)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            asyncio.get_running_loop().set_exception_handler(self.handle_fault)
            await super().startup(sockets)
            for listener in sockets or []:
                listener.listen(_BACKLOG)

        def handle_fault(self, loop: asyncio.AbstractEventLoop, fault: dict[str, Any]) -> None:
            if "accept" in fault["message"]:  # there are no descriptors left
                connections.drop_slowest()
            loop.default_exception_handler(fault)

        async def on_tick(self, counter: int) -> bool:
            connections.drop_late()
            self.lines.summarize()
            return await super().on_tick(counter)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            for server in self.servers:
                server.close()
            app.stop()
            connections.drop_all()
            await asyncio.sleep(0)  # until they are gone
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app, http=Connection, loop="asyncio", ws="none", lifespan="off", proxy_headers=False,
        log_level="warning", access_log=False, server_header=False,
        timeout_graceful_shutdown=2, h11_max_incomplete_event_size=64 * 2**10,
        # This many are taken at once: fewer than there is room for, so that none has to go before
        # it could ask.
        backlog=max(1, connections.most // 4),
    )
    return Server(config)


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens on a loopback address."""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise InputError(
            f"host must be an address of this machine, got {shown(host)}; use 127.0.0.1."
        ) from None
    if not address.is_loopback:
        raise InputError(
            f"host must be a loopback address, got {host}; the page is for this machine only, "
            "reach it from another one through an SSH tunnel."
        )
    number = as_count(port, "port", 0, 65535)
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(address), number))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = (error.strerror or str(error)).lower()
        raise InputError(
            f"cannot listen on port {number}: {reason}; choose another port, or 0 for any."
        ) from None
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
