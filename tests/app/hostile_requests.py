"""Thousands of requests that no page would send, against a playground that must go on serving.

    python -m tests.app.hostile_requests [--requests 10000] [--slow 2000] [--within 2] [--seed 0]

Wrong types, huge sizes, path tricks, foreign Host and Origin, truncated and mutated images, label
maps, probabilities and models, malformed HTTP, while slow clients (`slow_clients.py`) take up all
connections that they can get. Every answer must be 4xx (or a connection that is closed, for bytes
that are not HTTP). Meanwhile a well-behaved client asks for the page, a refinement and its mask
several times per second, and must get them, right and soon; the server's memory and log must stay
small, and Ctrl-C must end it at once. Prints what was sent and answered.
"""

from __future__ import annotations

import argparse
import collections
import functools
import http.client
import io
import json
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import crfield

OWN = {"X-Crfield": "1"}
PIXELS = (40, 60)
MOST_GROWTH = 300  # MiB of memory beyond what honest use took
MOST_LOG = 100_000  # bytes
LONG_ENOUGH = 50.0  # seconds, more than any deadline
DESCRIPTORS = 1024  # of the server; fewer than there are slow clients
Request = tuple[str, str, bytes, dict[str, str]]


def main(argv: list[str] | None = None) -> int:
    """Send the requests; 0 if all went well."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--slow", type=int, default=2000, help="slow clients at a time")
    parser.add_argument(
        "--within", type=float, default=2.0, metavar="SECONDS",
        help="the longest that an answer may take, and twice as long as the end after Ctrl-C",
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    command = [sys.executable, "-m", "crfield", "app", "--port", "0", "--no-browser"]
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, preexec_fn=_few_descriptors
        ) as server,
    ):
        try:
            assert server.stdout is not None
            address = re.search(rb"http://[\d.]+:(\d+)", server.stdout.readline())
            assert address is not None
            wrong = attack(
                int(address[1]), server, arguments.requests, arguments.slow, arguments.within,
                arguments.seed,
            )
        finally:
            server.kill()
            server.wait()
        log.seek(0)
        errors = log.read()
    print(f"log: {len(errors)} bytes")
    if len(errors) > MOST_LOG:
        wrong.append(f"the log has {len(errors)} bytes")
    if b"Traceback" in errors:
        wrong.append("the log has a traceback")
        print(errors.decode()[-4000:], file=sys.stderr)
    for line in wrong[:20]:
        print("WRONG", line)
    print(f"{arguments.requests} requests, {arguments.slow} slow clients, {len(wrong)} wrong")
    return 1 if wrong else 0


def _few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


def attack(
    port: int, server: subprocess.Popen[bytes], n_requests: int, n_slow: int, within: float,
    seed: int,
) -> list[str]:
    """What goes wrong while hostile requests and slow clients keep the server at `port` busy."""
    rng = random.Random(seed)
    files = honest_files()
    keys = {name: opened(port, files[name]) for name in ("image", "small", "large")}
    before = memory(server.pid)
    kinds = hostile_kinds(files, keys["image"])
    answers: dict[str, collections.Counter[str]] = {name: collections.Counter() for name in kinds}
    command = [sys.executable, "-m", "tests.app.slow_clients", str(port)]
    command += [f"--large={keys['large']}", f"--small={keys['small']}"]  # which may begin with -
    command += [f"--clients={n_slow}", f"--seed={seed}"]
    with (
        Page(port, keys["image"], server.pid) as page,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as slow,
    ):
        assert slow.stdin is not None
        assert slow.stdout is not None
        started = time.monotonic()
        assert slow.stdout.readline() == b"ready\n"
        wrong = []
        number = 0
        while number < n_requests or (n_slow and time.monotonic() < started + LONG_ENOUGH):
            number += 1
            name = rng.choice(list(kinds))
            request = kinds[name](rng)
            status = raw(port, request) if isinstance(request, bytes) else send(port, request)[0]
            answers[name][str(status)] += 1
            if not 400 <= status < 500 and not (status == 0 and isinstance(request, bytes)):
                wrong.append(f"{name}: {status} for {str(request)[:200]}")
        page.stop()
        lasted = time.monotonic() - started
        interrupted = time.monotonic()
        server.send_signal(signal.SIGINT)
        server.wait(60)
        ended = time.monotonic() - interrupted
        became = json.loads(slow.communicate()[0])
    table("kind", {name: dict(counts) for name, counts in answers.items()})
    table("slow clients", became)
    print(f"{number} hostile requests in {lasted:.0f} s")
    print(f"answers to the well-behaved client: {len(page.seconds)}, {page.summary()}")
    print(f"memory: {before:.0f} MiB before, at most {page.most_memory:.0f} MiB")
    print(f"Ctrl-C: {ended:.2f} s")
    wrong += page.wrong
    if max(page.seconds) > within:
        wrong.append(f"an answer took {max(page.seconds):.1f} s")
    if page.most_memory > before + MOST_GROWTH:
        wrong.append(f"memory grew by {page.most_memory - before:.0f} MiB")
    if ended > within / 2:
        wrong.append(f"the server ended {ended:.1f} s after Ctrl-C")
    if held := sum(counts.get("held", 0) for counts in became.values()):
        wrong.append(f"the server waited for {held} clients that did not read")
    return wrong


def table(title: str, rows: dict[str, dict[str, int]]) -> None:
    """Print how often each kind had each end."""
    print(f"{title:34} {'sent':>6}  answers")
    for name, counts in rows.items():
        listed = ", ".join(
            f"{'closed' if status == '0' else status}: {n}"
            for status, n in sorted(counts.items()) if status != "connected"
        )
        print(f"{name:34} {counts.get('connected', sum(counts.values())):6}  {listed}")


class Page:
    """A client as it should be, in a thread: asks for the page, a refinement and its mask, again
    and again, and for nothing before it has the last answer.
    """

    def __init__(self, port: int, key: str, process: int) -> None:
        self.seconds: list[float] = []
        self.wrong: list[str] = []
        self.most_memory = 0.0
        self._port, self._key, self._process = port, key, process
        self._expected = serves(port, key, send)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Page:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End, and wait for the last answer."""
        self._is_over.set()
        self._thread.join()

    def summary(self) -> str:
        """The median and the longest time."""
        return f"median {1e3 * np.median(self.seconds):.0f} ms, longest {max(self.seconds):.2f} s"

    def _ask(self, port: int, request: Request) -> tuple[int, bytes]:
        started = time.monotonic()
        answer = send(port, request)
        self.seconds.append(time.monotonic() - started)
        return answer

    def _run(self) -> None:
        while not self._is_over.wait(0.1):
            status, page = self._ask(self._port, ("GET", "/", b"", {}))
            if status != 200 or b"<html" not in page:
                self.wrong.append(f"the page: {status}")
            try:
                if serves(self._port, self._key, self._ask) != self._expected:
                    self.wrong.append("the refinement differs")
            except AssertionError as error:
                self.wrong.append(f"the refinement: {error}")
            self.most_memory = max(self.most_memory, memory(self._process))


def honest_files() -> dict[str, bytes]:
    """Files that would be accepted, to be damaged."""
    rng = np.random.default_rng(0)
    files = {}
    for kind in ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP"):
        stream = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (*PIXELS, 3)).astype(np.uint8)).save(stream, kind)
        files[kind] = stream.getvalue()
    files["image"] = files["small"] = files["PNG"]
    stream = io.BytesIO()  # more than the system keeps for a connection
    Image.fromarray(rng.integers(0, 255, (2300, 2300)).astype(np.uint8)).save(stream, "PNG")
    files["large"] = stream.getvalue()
    for name, array in {
        "labels": rng.integers(0, 3, PIXELS), "probabilities": rng.dirichlet([1, 1, 1], PIXELS)
    }.items():
        stream = io.BytesIO()
        np.save(stream, array)
        files[name] = stream.getvalue()
    crf = crfield.DenseCRF(2, [crfield.Pairwise(crfield.Spatial(3), crfield.Potts(3))])
    with tempfile.TemporaryDirectory() as folder:
        crf.save(Path(folder) / "model")
        files["model"] = (Path(folder) / "model").read_bytes()
    return files


def packed(settings: bytes, pixels: bytes) -> bytes:
    """The body of a request to refine."""
    return struct.pack("<I", len(settings)) + settings + pixels


def opened(port: int, image: bytes) -> str:
    """The id of an image."""
    return str(json.loads(send(port, ("POST", "/api/images", image, OWN))[1])["id"])


def serves(port: int, key: str, ask: Callable[[int, Request], tuple[int, bytes]]) -> bytes:
    """The mask that honest requests get."""
    scribbles = np.full(PIXELS, 255, np.uint8)
    scribbles[5, :20], scribbles[30, :20] = 0, 1
    body = packed(b'{"max_iter": 3}', scribbles.tobytes())
    status, content = ask(port, ("POST", f"/api/images/{key}/refine", body, OWN))
    assert status == 200, content
    status, mask = ask(port, ("GET", f"/api/images/{key}/mask.png", b"", OWN))
    assert status == 200, mask
    return mask


def hostile_kinds(
    files: dict[str, bytes], key: str
) -> dict[str, Callable[[random.Random], Request | bytes]]:
    """Names of attacks and what makes one request of each."""
    refine, initial = f"/api/images/{key}/refine", f"/api/images/{key}/initial"
    pixels = bytes(PIXELS[0] * PIXELS[1])
    formats = ["PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP"]
    values: list[Any] = [
        None, -1, 0, 1e308, -1e308, "x", "9" * 400, [], {}, [[]], [1, 2, 3], 10**40, "\0", 0.5, -0.0
    ]
    names = ["n_labels", "source", "algorithm", "spatial", "bilateral", "components", "model", "?"]
    hosts = ["evil.example", "127.0.0.1.evil.example", "", "[::2]", "localhost:x", "a" * 3000, "0"]
    paths = [
        "/../../etc/passwd", "/static/../../../etc/passwd", "/static/..%2f..%2fetc%2fpasswd",
        "/static/%2e%2e/routes.py", "/api/images/../secret", "/static/C:\\windows\\win.ini",
        "/api/samples/..%2f..%2fetc", "/static/\u0130", "/" + "a" * 3000, "/api/images//mask.png",
        "/static/index.html%00.png", "//evil.example/", "/api/images/%00/picture.png",
    ]

    def bad_settings(rng: random.Random) -> Request:
        chosen: dict[str, Any] = {rng.choice(names): rng.choice(values)}
        chosen["tol"] = rng.choice([-1, 7, "t", None, [0]])  # never acceptable
        return "POST", refine, packed(json.dumps(chosen).encode(), pixels), OWN

    def bad_body(rng: random.Random) -> Request:
        body = rng.choice([
            b"", b"\0" * 3, struct.pack("<I", 2**32 - 1), rng.randbytes(rng.randrange(1, 3000)),
            packed(b"{", pixels), packed(b"[" * 50_000, pixels), packed(b"{}", pixels[1:]),
            packed(b"\xff\xfe", pixels), packed(b'{"tol": NaN}', pixels), packed(b"null", pixels),
            packed(b'{"n_labels": 2}', b"\x07" * len(pixels)),
        ])
        return "POST", refine, body, OWN

    def cut(rng: random.Random, name: str) -> bytes:
        data = files[name]
        return data[: rng.randrange(len(data) // 2)]

    return {
        "foreign host": lambda r: ("GET", "/", b"", {**OWN, "Host": r.choice(hosts)}),
        "foreign origin": lambda r: (
            "POST", "/api/samples/coffee", b"",
            {**OWN, "Origin": r.choice(["http://evil.example", "null", "https://127.0.0.1", "x"])},
        ),
        "missing header": lambda r: ("POST", r.choice(["/api/images", initial]), b"x", {}),
        "path tricks": lambda r: ("GET", r.choice(paths), b"", OWN),
        "unknown ids": lambda r: (
            "GET", f"/api/images/{r.randbytes(8).hex()}/{r.choice(['mask', 'picture'])}.png", b"",
            OWN,
        ),
        "wrong methods": lambda r: (
            r.choice(["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FOO"]), "/api/images", b"", OWN
        ),
        "wrong settings": bad_settings,
        "malformed bodies": bad_body,
        "truncated images": lambda r: ("POST", "/api/images", cut(r, r.choice(formats)), OWN),
        "random bytes as images": lambda r: (
            "POST", "/api/images", r.randbytes(r.randrange(3000)), OWN
        ),
        "images that announce too much": lambda r: ("POST", "/api/images", bomb(r), OWN),
        "truncated label maps": lambda r: (
            "POST", f"{initial}?kind=labels", cut(r, "labels"), OWN
        ),
        "labels of another size": lambda r: (
            "POST", f"{initial}?kind=labels", npy(np.eye(r.randrange(2, 30), dtype=np.int8)), OWN
        ),
        "strange probabilities": lambda r: (
            "POST", f"{initial}?kind=probabilities", npy(r.choice([
                np.zeros(0), np.zeros((3, 4, 5)), np.array(["a"]), np.zeros((2,) * 9),
                np.zeros(PIXELS, complex), np.zeros((*PIXELS, 40)),
            ])), OWN
        ),
        "damaged models": lambda r: ("POST", "/api/models", flipped(r, files["model"]), OWN),
        "huge announced length": lambda r: (
            f"POST /api/images HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Crfield: 1\r\n"
            f"Content-Length: {r.choice([2**27, 2**40, 10**30])}\r\n\r\nx"
        ).encode(),
        "bodies without a length": lambda r: (
            b"POST /api/images HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Crfield: 1\r\nConnection: close\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n5\r\n" + r.randbytes(5) + b"\r\n0\r\n\r\n"
        ),
        "files that unpack to much more": lambda r: (
            "POST", f"{initial}?kind=probabilities",
            npz(r.choice([3000, 20_000])) if r.random() < 0.5 else long_header(), OWN
        ),
        "not HTTP": lambda r: r.choice([
            r.randbytes(200), b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\0" * 500,
            b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5000,
            b"GET / HTTP/1.1\r\nHost: a\r\nHost: 127.0.0.1\r\n\r\n",
        ]),
    }


def bomb(rng: random.Random) -> bytes:
    """A PNG or array whose header announces more pixels than are allowed."""
    if rng.random() < 0.5:
        side = rng.choice([10**5, 2**31 - 1])
        header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        chunk = struct.pack(">I", 13) + b"IHDR" + header
        return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)}
    )
    return stream.getvalue()


def npy(array: Any) -> bytes:
    """An array as a file."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@functools.cache
def npz(side: int) -> bytes:
    """A small file of many zeros."""
    stream = io.BytesIO()
    np.savez_compressed(stream, probs=np.zeros((side, 1000), np.uint8))
    return stream.getvalue()


@functools.cache
def long_header() -> bytes:
    """A small file of an array whose header is 300 MiB of zeros."""
    stream, part = io.BytesIO(), bytes(2**20)
    with (
        zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("probs.npy", "w") as member,
    ):
        member.write(b"\x93NUMPY\2\0" + struct.pack("<I", 300 * len(part)))
        for _ in range(300):
            member.write(part)
    return stream.getvalue()


def flipped(rng: random.Random, data: bytes) -> bytes:
    """A copy with one byte changed to one that is text nowhere."""
    place = rng.randrange(len(data))
    return data[:place] + bytes([255 if data[place] != 255 else 0]) + data[place + 1 :]


def send(port: int, request: Request) -> tuple[int, bytes]:
    """Status and body; 0 for a connection that was closed."""
    method, path, body, headers = request
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.putrequest(method, _ascii(path), skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (ConnectionError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def _ascii(path: str) -> str:
    return "".join(c if c.isascii() else f"%{ord(c) & 255:02x}" for c in path)


def raw(port: int, data: bytes) -> int:
    """The status that bytes get, sent as they are."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        try:
            connection.sendall(data)
            if not data.endswith(b"\r\n\r\n"):  # or the server waits for more
                connection.shutdown(socket.SHUT_WR)
            answer = b""
            # Only the first line: the server may keep the connection open after it.
            while b"\r\n" not in answer and (part := connection.recv(65536)):
                answer += part
        except ConnectionError:
            return 0
    found = re.match(rb"HTTP/1.1 (\d+)", answer)
    return int(found[1]) if found else 0


def memory(process: int) -> float:
    """Resident memory of a process in MiB."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    sys.exit(main())
