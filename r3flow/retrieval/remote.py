"""A retriever behind HTTP: `POST URL {"queries": [...], "k": n}` -> `{"results": [[{"id", "title", "text", "score"}, ...], ...]}`."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Sequence
from typing import Any

import httpx

from r3flow.errors import EndpointError, EndpointRefusedError
from r3flow.trajectory import Hit, Passage

RETRIES, TIMEOUT_S, CONNECT_TIMEOUT_S = 5, 60.0, 5.0
_TRY_AGAIN = (408, 409, 425, 429)  # of the 4xx; every other one says that the request itself is wrong


class RemoteRetriever:
    """Bounded retries with jitter; a failure raises EndpointError and never looks like an empty result."""

    def __init__(self, url: str, *, retries: int = RETRIES, pause_s: float = 0.5, timeout_s: float = TIMEOUT_S) -> None:
        """`timeout_s` bounds each try as a whole, `pause_s` is about the wait before the first retry; each next one is twice as long."""
        self.url, self.retries, self.pause_s, self.timeout_s = url, retries, pause_s, timeout_s
        self.client = httpx.Client(timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S))

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """As `Retriever.search`. Raises EndpointRefusedError at once where trying again cannot help, EndpointError after all tries."""
        if not queries:
            return []
        problem = ""
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(self.pause_s * 2 ** (attempt - 1) * (0.5 + random.random()))  # jitter, not a secret
            try:
                status, body = self._post({"queries": list(queries), "k": k})
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if 300 <= status < 500 and status not in _TRY_AGAIN:
                raise EndpointRefusedError(f"retrieval.url {self.url}: answered {status}; check the address and its API")
            if status != 200:
                problem = f"answered {status}"
                continue
            try:
                return _read(json.loads(body), len(queries), k)
            except KeyError as error:
                problem = f"sent something that is no result (no field {error})"
            except (ValueError, TypeError, OverflowError, RecursionError) as error:
                problem = f"sent something that is no result ({error})"
        raise EndpointError(f"retrieval.url {self.url}: {problem}, after {self.retries + 1} tries; is the server running?")

    def _post(self, payload: dict[str, Any]) -> tuple[int, bytes]:
        """Status and body. The clock is watched while the body comes, since httpx's own time-out starts anew with every byte."""
        end = time.monotonic() + self.timeout_s
        with self.client.stream("POST", self.url, json=payload) as response:
            body = bytearray()
            for chunk in response.iter_bytes():
                body += chunk
                if time.monotonic() > end:
                    raise httpx.ReadTimeout(f"no whole answer within {self.timeout_s:g} s")
            return response.status_code, bytes(body)


def _read(body: Any, count: int, k: int) -> list[list[Hit]]:
    """The hits of a reply. Raises KeyError, TypeError or ValueError for one that breaks the contract."""
    rows = body["results"]
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise TypeError("field 'results' must be a list of lists")
    if len(rows) != count:
        raise ValueError(f"{len(rows)} results for {count} queries")
    return [[_hit(item) for item in row[:k]] for row in rows]


def _hit(item: dict[str, Any]) -> Hit:
    score, place = item["score"], item["id"]
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not math.isfinite(score):
        raise ValueError(f"field 'score' must be a finite number, got {score!r}")
    if isinstance(place, int) and not isinstance(place, bool):
        item = {**item, "id": str(place)}
    passage = Passage.from_json(item)
    return Hit(Passage(_stored(passage.id), _stored(passage.title), _stored(passage.text)), float(score))


def _stored(text: str) -> str:
    """JSON may spell half a surrogate pair, which no file and no tokenizer takes: a question mark in its place."""
    return text.encode("utf-8", "replace").decode()
