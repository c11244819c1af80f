"""The smallest HTTP/1.1 server that a chat endpoint needs, on loopback and in a thread of its own.

A request costs it about a twentieth of a millisecond, so that a pipeline which makes tens of thousands of them on two cores spends its time
elsewhere. It can misbehave on command, which is how the client is tested against a real socket and not against a mock.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Self

MAX_HEAD, MAX_BODY = 64 << 10, 16 << 20
"""Bytes of a request's head and body; more is refused."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What to send back. The fields after `headers` misbehave."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    """Wait so long before the first byte."""
    blank_lines: int = 0
    """Send so many empty lines, one every `delay_s`, before the body, as DeepSeek does under load."""
    cut: bool = False
    """Send half of the body and drop the connection."""

    @classmethod
    def json(cls, value: Any, status: int = 200, **rest: Any) -> Reply:
        return cls(status, json.dumps(value, ensure_ascii=False).encode(), **rest)


Handler = Callable[[str, str, bytes], Reply]
"""(method, path, body) -> reply; runs in the server's thread."""


class _Connection(asyncio.Protocol):
    """One connection; requests on it are answered one after the other."""

    def __init__(self, handle: Handler, open_connections: set[_Connection]) -> None:
        self._handle, self._open = handle, open_connections
        self._buffer = b""
        self._waiting = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while not self._waiting and self._take():
            pass

    def _take(self) -> bool:
        """Answer the next whole request of the buffer; False if there is none yet."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return self._refuse(431) if len(self._buffer) > MAX_HEAD else False
        lines = self._buffer[:end].split(b"\r\n")
        length = 0
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            name = name.strip().lower()
            if name == b"transfer-encoding":
                return self._refuse(411)
            if name == b"content-length":
                if not value.strip().isdigit():
                    return self._refuse(400)
                length = int(value)
        if length > MAX_BODY:
            return self._refuse(413)
        stop = end + 4 + length
        if len(self._buffer) < stop:
            return False
        body, self._buffer = self._buffer[end + 4 : stop], self._buffer[stop:]
        words = lines[0].split(b" ")
        if len(words) != 3:
            return self._refuse(400)
        reply = self._handle(words[0].decode("latin-1"), words[1].decode("latin-1"), body)
        if reply.delay_s:
            self._waiting = True
            asyncio.get_running_loop().call_later(reply.delay_s, self._late, reply, reply.blank_lines)
        else:
            self._send(reply)
        return True

    def _late(self, reply: Reply, blanks: int) -> None:
        """Send what `delay_s` held back: an empty line at a time, then the rest."""
        if self.transport.is_closing():
            return
        if blanks:
            if blanks == reply.blank_lines:
                self.transport.write(_head(reply, reply.blank_lines + len(reply.body)))
            self.transport.write(b"\n")
            asyncio.get_running_loop().call_later(reply.delay_s, self._late, reply, blanks - 1)
            return
        self._waiting = False
        if reply.blank_lines:
            self.transport.write(reply.body)
        else:
            self._send(reply)
        self.data_received(b"")

    def _send(self, reply: Reply) -> None:
        head = _head(reply, len(reply.body))
        if reply.cut:
            self.transport.write(head + reply.body[: len(reply.body) // 2])
            self.transport.close()
        else:
            self.transport.write(head + reply.body)

    def _refuse(self, status: int) -> bool:
        self._send(Reply(status, b"", {"Connection": "close"}))
        self._buffer = b""
        self.transport.close()
        return False


def _head(reply: Reply, length: int) -> bytes:
    extra = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
    text = (
        f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n{extra}\r\n"
    )
    return text.encode("latin-1")


class LocalServer:
    """`with LocalServer(handler) as server:` listens on 127.0.0.1; `server.url` is its address. Port 0 takes a free one."""

    def __init__(self, handle: Handler, port: int = 0) -> None:
        self._handle, self._port = handle, port
        self._ready = threading.Event()
        self._problem: OSError | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="local-http", daemon=True)
        self.url = ""

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        connections: set[_Connection] = set()
        try:
            server = await self._loop.create_server(lambda: _Connection(self._handle, connections), "127.0.0.1", self._port, backlog=4096)
        except OSError as error:
            self._problem = error
            self._ready.set()
            return
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await self._stop.wait()
        server.close()
        for connection in list(connections):
            connection.transport.abort()

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._problem is not None:
            raise self._problem
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
