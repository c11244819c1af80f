"""The remote retriever against a real HTTP server that fails in every way there is: never an empty result, never a hang."""

from __future__ import annotations

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from r3flow.errors import ConfigError, EndpointError, EndpointRefusedError
from r3flow.params import load, parse
from r3flow.retrieval.remote import RemoteRetriever
from r3flow.trajectory import Hit, Passage

PARAMS_FILE = Path(__file__).parents[2] / "params.yaml"
HIT = {"id": "7", "title": "Fox", "text": "A fox.", "score": 0.5}


def ok(queries: list[str], k: int) -> bytes:
    rows = [[{**HIT, "text": f"about {query}", "score": float(k - rank)} for rank in range(k)] for query in queries]
    return json.dumps({"results": rows}).encode()


class Server:
    """Answers with `script` in turn, its last entry for ever: a status, or a function (handler, request) that writes the answer itself."""

    def __init__(self, *script: object) -> None:
        self.requests: list[dict] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                turn = script[min(len(owner.requests), len(script) - 1)]
                owner.requests.append(request)
                if callable(turn):
                    turn(self, request)
                elif turn == 200:
                    reply(self, ok(request["queries"], request["k"]))
                else:
                    reply(self, b"{}", turn)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/search"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


def reply(handler, body: bytes, status: int = 200, length: int | None = None) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    handler.wfile.write(body)


def says(value: object):
    """A reply of status 200 that holds `value`."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return lambda handler, request: reply(handler, body)


def retriever(server: Server, retries: int = 2, timeout_s: float = 5.0) -> RemoteRetriever:
    return RemoteRetriever(server.url, retries=retries, pause_s=0.001, timeout_s=timeout_s)


def test_hits_come_back_in_order_and_cut_to_k():
    with Server(lambda handler, request: reply(handler, ok(request["queries"], 5))) as server:
        found = retriever(server).search(["fox", "hen"], 2)
    assert server.requests == [{"queries": ["fox", "hen"], "k": 2}]
    assert found == [[Hit(Passage("7", "Fox", f"about {name}"), score) for score in (5.0, 4.0)] for name in ("fox", "hen")]


def test_numbers_are_taken_as_ids_and_nothing_found_is_a_result():
    with Server(says({"results": [[{**HIT, "id": 7, "score": 1}], []]})) as server:
        assert retriever(server).search(["fox", "hen"], 2) == [[Hit(Passage("7", "Fox", "A fox."), 1.0)], []]


def test_no_query_is_no_request():
    with Server(200) as server:
        assert retriever(server).search([], 2) == [] and server.requests == []


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_a_server_that_fails_twice_is_asked_a_third_time(status):
    with Server(status, status, 200) as server:
        assert len(retriever(server).search(["fox"], 3)[0]) == 3
        assert len(server.requests) == 3 and server.requests[0] == server.requests[2]


@pytest.mark.parametrize("status", [301, 400, 401, 402, 403, 404, 405, 413, 422])
def test_a_refusal_is_final(status):
    with Server(status, 200) as server:
        with pytest.raises(EndpointRefusedError, match=rf"retrieval.url {server.url}: answered {status}") as caught:
            retriever(server).search(["fox"], 3)
        assert len(server.requests) == 1 and not caught.value.retryable


def _cut(handler, request):
    reply(handler, b'{"results": [', length=999)
    handler.close_connection = True


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        (500, "answered 500"),
        (204, "answered 204"),
        (says(b"<html>gateway</html>"), "sent something that is no result"),
        (says(b""), "sent something that is no result"),
        (says(b"\xff\xfe"), "sent something that is no result"),
        (says(b"[" * 100_000), "sent something that is no result"),
        (says([]), "sent something that is no result"),
        (says({}), "no field 'results'"),
        (says({"results": None}), "must be a list of lists"),
        (says({"results": ["ab"]}), "must be a list of lists"),
        (says({"results": []}), "0 results for 1 queries"),
        (says({"results": [[], []]}), "2 results for 1 queries"),
        (says({"results": [["fox"]]}), "sent something that is no result"),
        (says({"results": [[{"id": "7", "title": "Fox", "score": 1}]]}), "no field 'text'"),
        (says({"results": [[{**HIT, "text": ""}]]}), "field 'text' is empty"),
        (says({"results": [[{**HIT, "id": None}]]}), "field 'id' must be text"),
        (says({"results": [[{**HIT, "score": None}]]}), "field 'score' must be a finite number"),
        (says({"results": [[{**HIT, "score": True}]]}), "field 'score' must be a finite number"),
        (says({"results": [[{**HIT, "score": float("nan")}]]}), "field 'score' must be a finite number"),
        (says({"results": [[{**HIT, "score": 10**400}]]}), "sent something that is no result"),
        (_cut, "RemoteProtocolError"),
    ],
)
def test_garbage_is_tried_again_and_then_raised(turn, said):
    with Server(turn) as server:
        with pytest.raises(EndpointError, match=rf"{said}.*, after 3 tries; is the server running") as caught:
            retriever(server).search(["fox"], 3)
        assert len(server.requests) == 3 and caught.value.retryable and "\n" not in str(caught.value)
    with Server(turn, 200) as server:
        assert len(retriever(server).search(["fox"], 3)[0]) == 3


def test_a_dead_port_is_named():
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound and not listening: refused, and nobody else can take it
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}/search"
        with pytest.raises(EndpointError, match=rf"retrieval.url {url}: ConnectError: .*after 2 tries"):
            RemoteRetriever(url, retries=1, pause_s=0.001).search(["fox"], 3)


def test_a_server_that_does_not_answer_is_left():
    def silent(handler, request):
        time.sleep(4)
        reply(handler, b"{}")

    with Server(silent, 200) as server:
        started = time.monotonic()
        assert len(retriever(server, timeout_s=0.2).search(["fox"], 3)[0]) == 3
        assert time.monotonic() - started < 4


def test_a_server_that_drips_is_left_though_every_read_succeeds():
    def drip(handler, request):
        handler.send_response(200)
        handler.send_header("Content-Length", "2000")
        handler.end_headers()
        try:
            for _ in range(1500):
                handler.wfile.write(b" ")
                handler.wfile.flush()
                time.sleep(0.02)
        except OSError:
            handler.close_connection = True

    with Server(drip) as server:
        started = time.monotonic()
        with pytest.raises(EndpointError, match=r"ReadTimeout: no whole answer within 1 s, after 1 tries"):
            retriever(server, retries=0, timeout_s=1.0).search(["fox"], 3)
        assert time.monotonic() - started < 15, "it would drip for 30 s"


def test_waits_grow_and_are_bounded(monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr("r3flow.retrieval.remote.time", SimpleNamespace(sleep=waits.append, monotonic=time.monotonic))
    with Server(500) as server:
        with pytest.raises(EndpointError):
            RemoteRetriever(server.url, retries=4, pause_s=1.0).search(["fox"], 3)
    assert len(waits) == 4 and all(0.5 * 2**turn <= wait <= 1.5 * 2**turn for turn, wait in enumerate(waits))


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/search", "http://", "http://user:secret@host/search", "http://host:99999"])
def test_an_address_that_is_none_is_refused_with_the_params(url):
    text = PARAMS_FILE.read_text("utf-8").replace("  kind: bm25", "  kind: remote").replace("  url: null", f"  url: {url}", 1)
    with pytest.raises(ConfigError, match=r"params.yaml:\d+: retrieval: url ") as caught:
        parse(text)
    assert "secret@" not in str(caught.value)
    assert load(PARAMS_FILE).retrieval.url is None
