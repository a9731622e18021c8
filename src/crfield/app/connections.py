"""How many connections there may be, and how long each may keep the server waiting.

The server waits for a client in three ways: for the head of a request, for its body, and until an
answer is read. Each has a deadline. A connection that misses it is dropped, and where there is no
room for a newcomer, the one that has kept the server waiting longest goes at once: a page, which
never does so for long, always gets in. Addresses do not count: a program on this machine can have
as many as it likes, and shares of each address would let it crowd out the page on its one.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import sys
import time
from collections.abc import Callable
from enum import Enum
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from crfield.app.limits import Limits

_SMALL = 2**16  # bytes of an answer that uvicorn keeps for a client at most before it waits
_TOO_SLOW = b'{"error":"the request stopped half way; send it again."}'
_TOO_SLOW_ANSWER = (
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_TOO_SLOW), _TOO_SLOW)
)


class Phase(Enum):
    """What a connection is waiting for."""

    HEAD = "a request, or the rest of its head"
    BODY = "the rest of a body"
    READING = "the client to read the answer"
    WORK = "the server"


class Connections:
    """All connections of a server; `clock` tells the time in seconds."""

    def __init__(
        self, limits: Limits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = Limits() if limits is None else limits
        self.clock = clock
        # Half of the descriptors are left for files and for connections that are just ending.
        self.most = min(self.limits.max_connections, _n_descriptors() // 2)
        self._open: set[Connection] = set()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection) -> None:
        """Take a connection in, in the place of another if need be."""
        # Some more than needed give way, so that a flood is not one long search.
        if len(self._open) >= self.most and not self.drop_slowest(n=1 + self.most // 16):
            connection.drop()
            return
        self._open.add(connection)

    def discard(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self._open.discard(connection)

    def drop_slowest(
        self, among: Callable[[Connection], Any] = lambda _: True, n: int = 1
    ) -> bool:
        """Drop the `n` connections that have kept the server waiting longest; False if none has."""
        waiting = [c for c in self._open if c.since < math.inf and among(c)]
        for connection in heapq.nsmallest(n, waiting, key=lambda c: c.since):
            connection.drop()
        return bool(waiting)

    def make_room(self, client: Any) -> bool:
        """Drop a request that another client than `client` is slow to send, or whose answer it is
        slow to read; False if there is none.
        """
        return self.drop_slowest(lambda c: c.is_asking and c.client != client)

    def before_answer(self, n_bytes: int, client: Any) -> None:
        """Keep the answers that nobody has read yet, this one included, within the limit."""
        if n_bytes <= _SMALL:
            return
        most = self.limits.max_unread - n_bytes
        while sum(c.n_unread for c in self._open) > most:
            if not self.drop_slowest(lambda c: c.n_unread and c.client != client):
                return

    def drop_late(self) -> None:
        """Drop all that have missed their deadline."""
        now = self.clock()
        for connection in list(self._open):
            connection.watch()
            if connection.deadline() <= now:
                connection.drop()

    def drop_all(self) -> None:
        """End everything at once."""
        for connection in list(self._open):
            connection.transport.abort()


class Connection(H11Protocol):
    """One connection, with a deadline for what its client has to do next.

    The server waits for the client `since` a moment, infinity if it does not. Bytes of a body that
    come, and of an answer that are read, move it on, at `min_rate` bytes per second.
    """

    def __init__(self, config: Any, *arguments: Any, **named: Any) -> None:
        super().__init__(config, *arguments, **named)
        self._all: Connections = config.app.connections
        limits = self._all.limits
        self._seconds: dict[Phase, float] = {
            Phase.HEAD: limits.head_seconds, Phase.BODY: limits.body_seconds,
            Phase.READING: limits.read_seconds, Phase.WORK: math.inf,
        }
        self._phase = Phase.WORK
        self._n_unread = 0
        self.since = math.inf

    @property
    def is_asking(self) -> bool:
        """Whether a request is being sent or answered."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def n_unread(self) -> int:
        """Bytes that are ready for the client and that the system has no room for."""
        return self.transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self.watch()
        self._all.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._all.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self.n_unread and self.conn.their_state is not h11.SEND_BODY:
            self.drop()  # asks again before it has read the last answer
            return
        before = self._n_body()
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # malformed bytes behind a head that is answered already
            self.drop()
            return
        # No browser sends a request before the last one is answered. Requests in advance would
        # make answers pile up.
        if self.conn.their_state is h11.DONE and self.conn.trailing_data[0].strip():
            self.drop()
            return
        self.watch(self._n_body() - before)

    def eof_received(self) -> None:
        """The client sends no more, and is gone in all likelihood: whatever works for it stops."""
        if self.is_asking:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        """An answer is complete, and perhaps not sent yet."""
        super().on_response_complete()
        self.watch()

    def watch(self, n_bytes: int = 0) -> None:
        """See what the server waits for, after `n_bytes` of a body have come."""
        phase, n_unread = self._now_waiting_for(), self.n_unread
        now = self._all.clock()
        if phase is not self._phase:
            self._phase, self.since = phase, math.inf if phase is Phase.WORK else now
        elif phase is not Phase.WORK:
            if phase is Phase.READING:
                n_bytes = max(0, self._n_unread - n_unread)
            self.since = min(now, self.since + n_bytes / self._all.limits.min_rate)
        self._n_unread = n_unread

    def deadline(self) -> float:
        """When the client must have done what it has to do."""
        return self.since + self._seconds[self._phase]

    def drop(self) -> None:
        """End the connection; who is sending a request is told, where that takes no waiting."""
        self._all.discard(self)
        is_told = self._phase is Phase.BODY and not self.cycle.response_started
        if is_told and not self.transport.is_closing() and not self.n_unread:
            self.transport.write(_TOO_SLOW_ANSWER)
        if self.n_unread:
            self.transport.abort()
        else:
            self.transport.close()

    def _n_body(self) -> int:
        return 0 if self.cycle is None else len(self.cycle.body)

    def _now_waiting_for(self) -> Phase:
        if self.n_unread or self.transport.is_closing():
            return Phase.READING
        if self.conn.their_state is h11.SEND_BODY:
            return Phase.BODY
        return Phase.HEAD if self.conn.their_state is h11.IDLE else Phase.WORK


def _n_descriptors() -> int:
    """How many files and connections the process may have open."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
