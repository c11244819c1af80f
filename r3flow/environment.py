"""The environment of a policy or teacher: a retriever, and how its passages are shown."""

from __future__ import annotations

from collections.abc import Sequence

from r3flow.params import Params
from r3flow.protocol import StepProtocol
from r3flow.retrieval.base import Retriever
from r3flow.trajectory import Hit


class Environment:
    """Searches with the configured top-k, and renders what came back in the protocol's frame, cut and neutralised."""

    def __init__(self, retriever: Retriever, protocol: StepProtocol, params: Params) -> None:
        self.retriever, self.protocol = retriever, protocol
        self.top_k = params.retrieval.top_k
        self.max_characters = params.protocol.max_document_characters

    def search(self, queries: Sequence[str]) -> list[tuple[Hit, ...]]:
        """For each query at most top-k hits, best first. Raises EndpointError if a remote retriever fails."""
        return [tuple(hits) for hits in self.retriever.search(queries, self.top_k)] if queries else []

    def documents(self, hits: Sequence[Hit]) -> str:
        """The environment's segment for these hits."""
        return self.protocol.render_documents([hit.passage for hit in hits], self.max_characters)
