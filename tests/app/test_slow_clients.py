"""Clients of the playground that keep it waiting, and what becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import itertools
import json
import logging
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("starlette", reason="the playground needs starlette")
pytest.importorskip("uvicorn", reason="the playground needs uvicorn")

import h11
import uvicorn

from crfield.app import Limits, RunningApp, serving
from crfield.app.connections import Connection
from crfield.app.log_lines import LOGGERS, MOST, RepeatFilter
from crfield.app.serving import _server
from crfield.app.workspace import Refinement
from crfield.cli import main

OWN = {"X-Crfield": "1"}
HEAD = b"Host: 127.0.0.1\r\nX-Crfield: 1\r\n"
GET = b"GET / HTTP/1.1\r\n" + HEAD + b"\r\n"
POST = b"POST /api/images HTTP/1.1\r\n" + HEAD
BODY = POST + b"Content-Length: 60000\r\n\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
RATE = 1000


class Transport:
    """A connection to a client that reads only what `unread` is lowered by."""

    def __init__(self, client):
        self.client, self.unread, self.written, self.end = client, 0, b"", ""

    def get_extra_info(self, name):
        return {"peername": self.client, "sockname": ("127.0.0.1", 8000)}.get(name)

    def get_write_buffer_size(self):
        return self.unread

    def write(self, data):
        self.written += data

    def is_closing(self):
        return bool(self.end)

    def close(self):
        self.end = self.end or "closed"

    def abort(self):
        self.end = "aborted"

    def pause_reading(self):
        pass

    resume_reading = pause_reading


def idle_loop():
    """An event loop in which nothing happens: requests are taken and never answered."""
    loop = Mock()
    loop.create_task.side_effect = lambda work: work.close() or Mock()
    return loop


class World:
    """A server's connections under a clock that the test moves."""

    def __init__(self, **limits):
        self.now = 0.0
        self.server = _server(Limits(
            head_seconds=10, body_seconds=20, read_seconds=30, min_rate=RATE, **limits
        ))
        self.connections = self.server.config.app.connections
        self.connections.clock = lambda: self.now
        self.ports = itertools.count(1)

    def connect(self, data=b"", host="127.0.0.1"):
        connection = Connection(self.server.config, self.server.server_state, {}, idle_loop())
        connection.connection_made(Transport((host, next(self.ports))))
        if data:
            connection.data_received(data)
        return connection

    def at(self, now):
        self.now = now
        self.connections.drop_late()


def ends(*connections):
    return [connection.transport.end for connection in connections]


def answer(connection, status=200):
    """Have the server's answer to a connection's request complete."""
    connection.cycle.response_started = connection.cycle.response_complete = True
    connection.conn.send(h11.Response(status_code=status, headers=[("content-length", "0")]))
    connection.conn.send(h11.EndOfMessage())
    connection.on_response_complete()


def test_a_head_has_one_deadline_however_it_drips():
    world = World()
    silent, dripping, asking = world.connect(), world.connect(), world.connect(GET)
    for place in range(9):
        world.at(place + 1)
        dripping.data_received(GET[place : place + 1])
    assert ends(silent, dripping, asking) == ["", "", ""]
    world.at(10)
    assert ends(silent, dripping, asking) == ["closed", "closed", ""]
    assert len(world.connections) == 1
    world.at(10_000)  # the server's own work has no deadline
    assert ends(asking) == [""]
    answer(asking)
    world.at(10_009)
    asking.data_received(GET[:5])
    assert ends(asking) == [""]
    world.at(10_010)
    assert ends(asking) == ["closed"]


def test_a_body_must_come_at_some_rate_and_without_long_pauses():
    world = World()
    steady, slow, pausing = world.connect(BODY), world.connect(BODY), world.connect(BODY)
    world.at(1)
    pausing.data_received(bytes(50 * RATE))  # which does not buy a pause of 50 s
    for second in range(1, 20):
        world.at(second)
        steady.data_received(bytes(RATE))
        slow.data_received(bytes(RATE // 10))
    world.at(20.9)
    assert ends(steady, slow, pausing) == ["", "", ""]
    world.at(21)
    assert ends(steady, slow, pausing) == ["", "", "closed"]
    world.at(22)  # 1.9 s earned
    assert ends(steady, slow) == ["", "closed"]
    assert slow.transport.written.startswith(b"HTTP/1.1 408 ")
    assert b"send it again" in slow.transport.written
    assert steady.transport.written == b""


@pytest.mark.parametrize("waste", [
    b"1;" + b"x" * 30_000 + b"\r\ny\r\n", b"1\r\ny\r\n" * 5,
], ids=["chunk extensions", "tiny chunks"])
def test_only_the_content_of_a_body_counts(waste):
    world = World()
    connection = world.connect(CHUNKED)
    for second in range(1, 20):
        world.at(second)
        connection.data_received(waste)
    assert ends(connection) == [""]
    world.at(20.2)
    assert ends(connection) == ["closed"]


def test_trailers_do_not_go_on_forever():
    world = World()
    connection = world.connect(CHUNKED + b"0\r\n")
    for second in range(1, 20):
        world.at(second)
        connection.data_received(b"A: b\r\n" * 500)
    world.at(20)
    assert ends(connection) == ["closed"]
    flood = world.connect(CHUNKED + b"0\r\n" + b"A: b\r\n" * 20_000)
    assert flood.transport.written.startswith(b"HTTP/1.1 400 ")


def test_what_follows_a_refused_head_is_not_read_forever():
    world = World()
    connection = world.connect(BODY)
    answer(connection, 413)
    for second in range(1, 20):
        world.at(second)
        connection.data_received(bytes(2 * RATE))
    assert ends(connection) == [""]
    world.at(20)
    assert ends(connection) == ["closed"]


def test_malformed_bytes_behind_a_refused_head_are_no_error():
    world = World()
    connection = world.connect(CHUNKED)
    answer(connection, 403)
    connection.data_received(b"no chunk\r\n")
    assert ends(connection) == ["closed"]


def test_an_answer_must_be_read():
    world = World()
    reading, lazy, leaving = world.connect(GET), world.connect(GET), world.connect(GET)
    for connection in (reading, lazy, leaving):
        connection.transport.unread = 50 * RATE
        answer(connection)
    leaving.transport.close()  # which waits until the answer is read
    for second in range(1, 30):
        reading.transport.unread -= RATE
        world.at(second)
    assert len(world.connections) == 3
    world.at(30)
    assert ends(reading, lazy, leaving) == ["", "aborted", "aborted"]
    reading.transport.unread = 0
    world.at(31)
    world.at(40)
    assert ends(reading) == [""]  # now it may ask again
    world.at(41)
    assert ends(reading) == ["closed"]


@pytest.mark.parametrize("unread", [0, 1])
def test_requests_in_advance_are_refused(unread):
    world = World()
    pipelined, patient, early = world.connect(GET + GET), world.connect(GET), world.connect(GET)
    assert ends(pipelined) == ["closed"]
    early.data_received(b"G")
    assert ends(early) == ["closed"]
    answer(patient)
    patient.transport.unread = unread
    patient.data_received(GET)
    assert ends(patient) == ["aborted" if unread else ""]


def test_when_it_is_full_the_slowest_goes():
    world = World(max_connections=3)
    working = world.connect(GET)
    world.now = 1
    body = world.connect(BODY)  # which has time until 21
    world.now = 5
    silent = world.connect()  # until 15
    newcomer = world.connect()
    assert ends(working, body, silent, newcomer) == ["", "closed", "", ""]
    newcomer.data_received(GET)
    another = world.connect(GET)
    assert ends(working, silent, newcomer, another) == ["", "closed", "", ""]
    assert ends(world.connect(GET)) == ["closed"]  # all the others are being answered


def test_many_addresses_do_not_crowd_out_the_page():
    world = World(max_connections=4)
    for number in range(20):
        world.now = number / 10
        world.connect(host=f"127.0.0.{number + 2}")
    page, other = world.connect(), world.connect()
    world.connect(host="127.0.0.99")
    assert ends(page, other) == ["", ""]


def test_half_of_the_descriptors_are_left(monkeypatch):
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, 4096))
    world = World()
    connections = [world.connect() for _ in range(25)]
    assert len(world.connections) == 10
    assert ends(*connections).count("closed") == 15


def test_no_descriptors_left(caplog):
    world = World()
    connection = world.connect()

    class Faulty:
        default_exception_handler = staticmethod(
            lambda fault: logging.getLogger("asyncio").error(fault["message"])
        )

    fault = {"message": "socket.accept() out of system resource", "exception": OSError(24, "x")}
    world.server.handle_fault(Faulty(), fault)
    assert ends(connection) == ["closed"]
    assert "out of system resource" in caplog.text


def test_answers_that_nobody_reads_are_bounded():
    world = World(max_unread=1_000_000)
    hoarders = [world.connect(GET) for _ in range(3)]
    for second, connection in enumerate(hoarders):
        world.now = second
        connection.transport.unread = 300_000
        answer(connection)
    world.connections.before_answer(100_000, None)
    assert ends(*hoarders) == ["", "", ""]
    world.connections.before_answer(200_000, None)
    assert ends(*hoarders) == ["aborted", "", ""]
    world.connections.before_answer(1_000_000, hoarders[1].client)  # which is reading this one
    assert ends(*hoarders) == ["aborted", "", "aborted"]


def test_a_client_that_ends_its_side_is_gone():
    world = World()
    connection = world.connect(GET)
    connection.eof_received()
    assert connection.cycle.disconnected


def test_repeated_lines_are_counted():
    now = 0.0
    lines = RepeatFilter(lambda: now)
    record = logging.LogRecord("uvicorn.error", 30, "file.py", 7, "again %d", (1,), None)
    assert [lines.filter(record) for _ in range(1000)] == [True] * MOST + [False] * (1000 - MOST)
    other = logging.LogRecord("uvicorn.error", 30, "file.py", 8, "other", (), None)
    assert lines.filter(other)
    told = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(handler)
    try:
        lines.summarize()
        assert told == []
        now = 61.0
        lines.summarize()
        lines.summarize(is_last=True)
    finally:
        logger.removeHandler(handler)
    assert told == [f"again 1 ({1000 - MOST} more times)"]
    assert lines.filter(record)  # a new minute


def test_the_server_watches_its_log_and_what_it_cannot_accept(monkeypatch):
    server = _server(None)
    seen = []

    async def main_loop(self):
        handler = asyncio.get_running_loop().get_exception_handler()
        record = logging.LogRecord("uvicorn.error", 30, "file.py", 7, "again", (), None)
        seen.append((handler, [
            sum(bool(logging.getLogger(name).filter(record)) for _ in range(2 * MOST))
            for name in LOGGERS
        ]))

    monkeypatch.setattr(uvicorn.Server, "main_loop", main_loop)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.run(sockets=[listener])
    (handler, let_through), = seen
    assert handler == server.handle_fault
    # All loggers share one count of the same line.
    assert let_through == [MOST, 0, 0]


def test_the_command_starts_that_server(monkeypatch):
    started = Mock()
    monkeypatch.setattr(serving, "_server", lambda limits: started)
    assert main(["app", "--port", "0", "--no-browser"]) == 0
    started.run.assert_called_once()


def ask(app, method, path, body=None):
    address = urlsplit(app.url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path, body, OWN)
        answer = connection.getresponse()
        return answer.status, answer.read()


def dial(app, data):
    """A connection that has sent some bytes, and does not read much of what comes."""
    address = urlsplit(app.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect((address.hostname, address.port))
    connection.sendall(data)
    return connection


def held(app):
    """A request that the server has taken and that sends no body."""
    connection = dial(app, POST + b"Content-Length: 60000\r\nExpect: 100-continue\r\n\r\n")
    assert connection.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"[:25]
    return connection


def test_slow_requests_make_room():
    with RunningApp(Limits(body_seconds=600, max_requests=3)) as app, contextlib.ExitStack() as all:
        first, *others = (all.enter_context(held(app)) for _ in range(3))
        assert ask(app, "POST", "/api/images", b"x")[0] == 422
        assert first.recv(12) == b"HTTP/1.1 408"
        assert select.select(others, [], [], 0)[0] == []
        assert ask(app, "POST", "/api/images", b"x")[0] == 422


def test_slow_bodies_make_room():
    limits = Limits(body_seconds=600, max_in_flight=100_010)
    with RunningApp(limits) as app, contextlib.ExitStack() as all:
        waiting = [all.enter_context(held(app)) for _ in range(2)]
        for connection in waiting:
            connection.sendall(bytes(50_000))
        answers = set()
        for _ in range(5000):  # until the server has seen all those bytes
            answers.add(ask(app, "POST", "/api/images", b"more than there is room for")[0])
            if readable := select.select(waiting, [], [], 0)[0]:
                break
        assert answers == {422}
        assert readable[0].recv(12) == b"HTTP/1.1 408"


def test_bodies_that_were_answered_take_no_room():
    with RunningApp(Limits(max_in_flight=100_000)) as app:
        for _ in range(3):
            assert ask(app, "POST", "/api/images", bytes(50_000))[0] == 422


def test_requests_at_work_make_no_room(monkeypatch):
    started, go_on = threading.Event(), threading.Event()

    def decode(_):
        started.set()
        go_on.wait(60)
        raise MemoryError

    monkeypatch.setattr("crfield.app.routes.decode_model", decode)
    with RunningApp(Limits(max_requests=1)) as app, ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, app, "POST", "/api/models", b"x")
        assert started.wait(60)
        assert ask(app, "GET", "/")[0] == 429
        go_on.set()
        assert first.result(60)[0] == 413


def test_a_request_that_stops_half_way_is_answered():
    with RunningApp(Limits(max_requests=1, body_seconds=0.2)) as app:
        with dial(app, BODY + bytes(50_000)) as connection:
            assert connection.recv(12) == b"HTTP/1.1 408"
        assert ask(app, "GET", "/")[0] == 200


def test_a_head_that_stops_half_way_is_closed():
    with RunningApp(Limits(head_seconds=0.2)) as app, dial(app, GET[:-2]) as connection:
        assert connection.recv(12) == b""


def opened(app, side):
    """The id of an image, and the body of a request to refine it."""
    stream = io.BytesIO()
    Image.fromarray(np.zeros((side, side), np.uint8)).save(stream, "PNG")
    key = json.loads(ask(app, "POST", "/api/images", stream.getvalue())[1])["id"]
    return key, struct.pack("<I", 2) + b"{}" + bytes(side * side)


def refine(key, body):
    head = f"POST /api/images/{key}/refine HTTP/1.1\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + HEAD + b"\r\n" + body


def test_results_that_nobody_reads_take_no_turn(monkeypatch):
    side = 2000  # a result of 12 MB, more than the system keeps for a connection

    def instead(image, settings, scribbles, *_):
        plane = np.zeros(image.grid, np.uint8)
        report = {"n_labels": 2}
        return Refinement(plane, plane, plane, report, scribbles, settings, None)

    monkeypatch.setattr("crfield.app.routes.refine_image", instead)
    limits = Limits(max_waiting=1, read_seconds=600)
    with RunningApp(limits) as app, contextlib.ExitStack() as all:
        for _ in range(3):
            request = refine(*opened(app, side))
            for _ in range(5000):  # a result may not have left the thread that made it
                connection = all.enter_context(dial(app, request))
                status = connection.recv(12)
                if status != b"HTTP/1.1 429":
                    break
            assert status == b"HTTP/1.1 200"


def test_refinements_that_wait_are_limited(monkeypatch):
    go_on = threading.Event()

    def instead(*_):
        go_on.wait(60)
        raise MemoryError

    monkeypatch.setattr("crfield.app.routes.refine_image", instead)
    with RunningApp(Limits(max_waiting=2)) as app, contextlib.ExitStack() as all:
        for _ in range(2):
            connection = all.enter_context(dial(app, refine(*opened(app, 10))))
            assert connection.recv(12) == b"HTTP/1.1 200"
        key, body = opened(app, 10)
        status, content = ask(app, "POST", f"/api/images/{key}/refine", body)
        assert status == 429
        assert b"waiting" in content
        go_on.set()


def test_a_picture_is_made_once_for_all_who_wait_for_it(monkeypatch):
    from crfield.app import routes

    made, go_on = [], threading.Event()
    encode = routes.png

    def png(picture):
        made.append(picture.size)
        go_on.wait(60)
        return encode(picture)

    with RunningApp() as app, contextlib.ExitStack() as all:
        key, _ = opened(app, 10)
        monkeypatch.setattr(routes, "png", png)
        request = f"GET /api/images/{key}/picture.png HTTP/1.1\r\n".encode() + HEAD + b"\r\n"
        waiting = [all.enter_context(dial(app, request)) for _ in range(8)]
        assert ask(app, "GET", "/")[0] == 200  # so they have all been taken
        go_on.set()
        answers = [connection.recv(12) for connection in waiting]
        assert answers == [b"HTTP/1.1 200"] * 8
        assert made == [(10, 10)]
        assert ask(app, "GET", f"/api/images/{key}/picture.png")[0] == 200
        assert len(made) == 2  # and not kept


def test_ranges_are_not_looked_at():
    with RunningApp() as app:
        address = urlsplit(app.url)
        with contextlib.closing(http.client.HTTPConnection(address.netloc, timeout=60)) as asking:
            asking.request("GET", "/static/state.js", headers={"Range": "bytes=0-1"})
            assert asking.getresponse().status == 200


def test_ctrl_c_does_not_wait_for_slow_clients():
    command = [sys.executable, "-m", "crfield", "app", "--port", "0", "--no-browser"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server,
        contextlib.ExitStack() as all,
    ):
        app = SimpleNamespace(url=server.stdout.readline().split()[2].decode())
        for data in (b"", GET[:20], BODY, CHUNKED, b"\0\r\n"):
            all.enter_context(dial(app, data))
        all.enter_context(held(app))
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=60)
    assert server.returncode == 130
    assert b"Cancel" not in errors  # which is what uvicorn says once it has waited long enough
    assert b"Traceback" not in errors
