"""What every retriever offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from r3flow.trajectory import Hit


class Retriever(Protocol):
    """Batched search over one corpus. Thread-safe; ties are broken by the corpus's order."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """For each query the best passages, at most `k`, best first; fewer where fewer are found, none where no word of it is known.

        Raises EndpointError if a remote retriever fails after its retries; a failure never looks like an empty result.
        """
