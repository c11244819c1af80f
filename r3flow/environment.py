"""The environment of a policy or teacher: a retriever, and how its passages are shown."""

from __future__ import annotations

from collections.abc import Sequence

from r3flow.params import Params, ProtocolParams
from r3flow.protocol import Limits, StepProtocol
from r3flow.retrieval.base import Retriever
from r3flow.trajectory import Hit, InvalidStep, Step


def limits_of(settings: ProtocolParams) -> Limits:
    """How many characters of retrieved documents are shown."""
    return Limits(settings.max_document_characters, settings.max_documents_characters)


class Environment:
    """Searches with the configured top-k, leaves out what was shown before, and renders the rest in the protocol's frame."""

    def __init__(self, retriever: Retriever, protocol: StepProtocol, params: Params) -> None:
        self.retriever, self.protocol = retriever, protocol
        self.top_k = params.retrieval.top_k
        self.settings = params.protocol
        self.limits = limits_of(params.protocol)

    def search(self, queries: Sequence[str]) -> list[tuple[Hit, ...]]:
        """For each query at most top-k hits, best first. Raises EndpointError if a remote retriever fails."""
        return [tuple(hits) for hits in self.retriever.search(queries, self.top_k)] if queries else []

    def shown(self, hits: tuple[Hit, ...], earlier: Sequence[Step | InvalidStep]) -> tuple[Hit, ...]:
        """Those of `hits` that are shown behind the steps `earlier`.

        With `repeat_passages: false` a passage that was shown before is left out, and no other takes its place (R3-RAG's code); a
        trajectory is shown `max_passages` different ones at most.
        """
        settings = self.settings
        if settings.repeat_passages and settings.max_passages is None:
            return hits
        seen = {hit.passage.id for step in earlier if isinstance(step, Step) for hit in step.hits}
        kept: list[Hit] = []
        for hit in hits:
            name = hit.passage.id
            if name in seen and not settings.repeat_passages:
                continue
            if name not in seen and settings.max_passages is not None and len(seen) >= settings.max_passages:
                continue
            seen.add(name)
            kept.append(hit)
        return tuple(kept)

    def documents(self, hits: Sequence[Hit]) -> str:
        """The environment's segment for these hits, as text."""
        return self.protocol.documents([hit.passage for hit in hits], self.limits).text
