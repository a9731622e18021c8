"""Clients of the playground that are slow in every way that HTTP allows, many at a time.

    python -m tests.app.slow_clients PORT --large=ID --small=ID [--clients=2000] [--seed=0]

Each connects again soon after the server has closed its connection. It says `ready` when all have
been connected once, and ends with its standard input; then it prints what became of them as JSON.
`tests/app/hostile_requests.py` runs it.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import random
import resource
import socket
import struct
import sys
from collections.abc import Awaitable, Callable

HEAD = b"Host: 127.0.0.1\r\nX-Crfield: 1\r\n"
POST = b"POST /api/images HTTP/1.1\r\n" + HEAD
PAUSES = (0.5, 3.0)  # seconds between the bytes of a client, and before it connects again
PATIENCE = 45.0  # seconds that a client waits without reading
AT_ONCE = 50  # connections that are being made

Client = Callable[["Line"], Awaitable[None]]


class Line:
    """A connection, and how its client uses it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._loop = asyncio.get_running_loop()
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.status = ""

    async def connect(self, port: int) -> None:
        """Connect, now and then from another address of this machine."""
        if self.rng.random() < 0.2:
            self._socket.bind((f"127.0.0.{self.rng.randrange(2, 200)}", 0))
        await self._loop.sock_connect(self._socket, ("127.0.0.1", port))

    async def send(self, data: bytes) -> None:
        """Send bytes at once."""
        await self._loop.sock_sendall(self._socket, data)

    async def drip(self, data: bytes) -> None:
        """Send bytes one by one with pauses, over and over, until the server has had enough."""
        while True:
            for place in range(len(data)):
                await self.send(data[place : place + 1])
                await self.listen(self.rng.uniform(*PAUSES))

    async def listen(self, seconds: float) -> None:
        """Read what comes; ends with an error when the server closes the connection."""
        try:
            async with asyncio.timeout(seconds):
                while answer := await self._loop.sock_recv(self._socket, 65536):
                    self.status = self.status or answer[9:12].decode("latin-1")
                raise ConnectionResetError
        except TimeoutError:
            pass

    async def ignore(self) -> None:
        """Read nothing for long, then look whether the server still waits."""
        await asyncio.sleep(PATIENCE)
        await self.listen(1.0)
        raise AssertionError("the server waited for a client that does not read")

    def end_sending(self) -> None:
        """Close one direction."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def kinds(large: str, small: str) -> dict[str, tuple[int, Client]]:
    """Names of clients, how many of each in a hundred, and what they do."""
    picture = f"GET /api/images/{large}/picture.png HTTP/1.1\r\n".encode() + HEAD + b"\r\n"
    state = b"GET /api/state HTTP/1.1\r\n" + HEAD
    body = struct.pack("<I", 2) + b"{}" + bytes(40 * 60)
    refine = (
        f"POST /api/images/{small}/refine HTTP/1.1\r\nContent-Length: {len(body)}\r\n".encode()
        + HEAD + b"\r\n" + body
    )
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n"

    async def silent(line: Line) -> None:
        await line.listen(PATIENCE)

    async def slow_head(line: Line) -> None:
        await line.drip(state + b"X-Long: " + b"x" * 1000)

    async def paused_head(line: Line) -> None:
        await line.send(state[: line.rng.randrange(1, len(state))])
        await line.listen(PATIENCE)

    async def slow_body(line: Line) -> None:
        await line.send(POST + b"Content-Length: 60000\r\n\r\n" + bytes(line.rng.randrange(50_000)))
        await line.drip(b"x")

    async def chunk_extensions(line: Line) -> None:
        await line.send(chunked + b"1;" + b"x" * 20_000)
        await line.drip(b"x")

    async def trailers(line: Line) -> None:
        await line.send(chunked + b"1\r\nx\r\n0\r\n")
        await line.drip(b"A: b\r\n")

    async def expecting(line: Line) -> None:
        await line.send(POST + b"Content-Length: 60000\r\nExpect: 100-continue\r\n\r\n")
        await line.listen(PATIENCE)

    async def idle(line: Line) -> None:
        await line.send(state + b"\r\n")
        await line.listen(PATIENCE)

    async def old_idle(line: Line) -> None:
        await line.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n" + HEAD + b"\r\n")
        await line.listen(PATIENCE)

    async def upgrading(line: Line) -> None:
        await line.send(state + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        await line.listen(PATIENCE)

    async def pipelining(line: Line) -> None:
        await line.send((state + b"\r\n") * 50)
        await line.ignore()

    async def refused(line: Line) -> None:
        await line.send(b"POST / HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 99999\r\n\r\n")
        await line.drip(b"x")

    async def never_reading(line: Line) -> None:
        await line.send(picture)
        await line.ignore()

    async def half_closed(line: Line) -> None:
        await line.send(refine)
        line.end_sending()
        await line.ignore()

    async def result_unread(line: Line) -> None:
        await line.send(refine)
        await line.ignore()

    return {
        "silent": (15, silent), "heads that drip": (15, slow_head),
        "heads that pause": (15, paused_head), "bodies that drip": (15, slow_body),
        "chunk extensions": (5, chunk_extensions), "trailers": (5, trailers),
        "waiting for 100": (5, expecting), "idle": (8, idle), "idle, HTTP/1.0": (2, old_idle),
        "WebSocket": (2, upgrading), "pipelined": (4, pipelining),
        "refused, dripping": (3, refused),
        "never reading": (2, never_reading), "half-closed": (2, half_closed),
        "results unread": (2, result_unread),
    }


async def run(port: int, large: str, small: str, n_clients: int, seed: int) -> None:
    """Keep all clients busy until the standard input ends."""
    found = kinds(large, small)
    names = [name for name, (share, _) in found.items() for _ in range(share)]
    random.Random(seed).shuffle(names)
    counts: dict[str, collections.Counter[str]] = {name: collections.Counter() for name in found}
    connecting = asyncio.Semaphore(AT_ONCE)
    n_fresh = n_clients
    all_connected = asyncio.Event()

    async def client(number: int) -> None:
        nonlocal n_fresh
        rng = random.Random(f"{seed} {number}")
        name = names[number % len(names)]
        is_first = True
        while True:
            line = Line(rng)
            try:
                async with connecting:
                    await line.connect(port)
                counts[name]["connected"] += 1
                if is_first:
                    is_first = False
                    n_fresh -= 1
                    if n_fresh == 0:
                        all_connected.set()
                await found[name][1](line)
            except OSError:
                counts[name]["closed"] += 1
            except AssertionError:
                counts[name]["held"] += 1
            finally:
                line.close()
                if line.status:
                    counts[name][line.status] += 1
            await asyncio.sleep(rng.uniform(*PAUSES))

    tasks = [asyncio.create_task(client(number)) for number in range(n_clients)]
    await all_connected.wait()
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps(counts), flush=True)


def main() -> None:
    """Read the arguments and start."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("port", type=int)
    parser.add_argument("--large", required=True, help="id of a large image")
    parser.add_argument("--small", required=True, help="id of a small image")
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = arguments.clients + 100
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, max(needed, hard)))
    asyncio.run(run(
        arguments.port, arguments.large, arguments.small, arguments.clients, arguments.seed
    ))


if __name__ == "__main__":
    main()
