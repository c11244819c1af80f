"""A retriever behind HTTP: `POST URL {"queries": [...], "k": n}` -> `{"results": [[{"id", "title", "text", "score"}, ...], ...]}`."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import httpx

from r3flow.errors import EndpointError, EndpointRefusedError
from r3flow.trajectory import Hit, Passage

RETRIES, READ_TIMEOUT_S, CONNECT_TIMEOUT_S = 5, 60.0, 5.0


class RemoteRetriever:
    """Bounded retries with jitter; a failure raises EndpointError and never looks like an empty result."""

    def __init__(self, url: str, *, retries: int = RETRIES, pause_s: float = 0.5) -> None:
        self.url, self.retries, self.pause_s = url, retries, pause_s
        self.client = httpx.Client(timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S))

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        if not queries:
            return []
        problem = ""
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(self.pause_s * 2 ** (attempt - 1) * (0.5 + random.random()))  # noqa: S311 - jitter, not a secret
            try:
                response = self.client.post(self.url, json={"queries": list(queries), "k": k})
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if response.status_code in (400, 401, 403, 404, 422):
                raise EndpointRefusedError(f"retrieval.url {self.url}: answered {response.status_code}; check the address and its API")
            if response.status_code != 200:
                problem = f"answered {response.status_code}"
                continue
            try:
                return self._read(response.json(), len(queries), k)
            except (ValueError, KeyError, TypeError) as error:
                problem = f"sent something that is no result ({error})"
        raise EndpointError(f"retrieval.url {self.url}: {problem}, after {self.retries + 1} tries; is the server running?")

    @staticmethod
    def _read(body: Any, count: int, k: int) -> list[list[Hit]]:
        rows = body["results"]
        if len(rows) != count:
            raise ValueError(f"{len(rows)} results for {count} queries")
        return [[Hit(Passage.from_json({**hit, "id": str(hit["id"])}), float(hit["score"])) for hit in row[:k]] for row in rows]
