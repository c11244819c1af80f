"""Many coroutines that each want one search, served by few batched calls of a retriever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from r3flow.trajectory import Hit

MAX_BATCH = 256


class BatchedSearch:
    """`await search(query)`: queries that arrive while a batch is under way form the next batch; equal ones are searched once.

    The retriever works in a thread of its own, so that the network goes on. Its result for a query must not depend on the other
    queries of the batch, because these depend on the order in which the teacher's replies arrive.
    """

    def __init__(self, search: Callable[[Sequence[str]], list[tuple[Hit, ...]]], max_batch: int = MAX_BATCH) -> None:
        self._search, self._max_batch = search, max_batch
        self._waiting: dict[str, asyncio.Future[tuple[Hit, ...]]] = {}
        self._worker: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "search")

    async def __call__(self, query: str) -> tuple[Hit, ...]:
        future = self._waiting.get(query)
        if future is None:
            future = self._waiting[query] = asyncio.get_running_loop().create_future()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await asyncio.shield(future)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch = dict(list(self._waiting.items())[: self._max_batch])
            for query in batch:
                del self._waiting[query]
            try:
                results = await loop.run_in_executor(self._thread, self._search, list(batch))
            except Exception as error:  # noqa: BLE001 - handed to those who wait, whatever it is
                for future in batch.values():
                    future.set_exception(error)
                continue
            for future, hits in zip(batch.values(), results, strict=True):
                future.set_result(hits)

    def close(self) -> None:
        """Wait for the batch under way; no search may be asked afterwards."""
        self._thread.shutdown(wait=True, cancel_futures=True)
