"""The only renderers and parsers of steps."""

from r3flow.protocol.base import Block, Limits, Segment, StepProtocol, segments
from r3flow.protocol.r3rag import R3RAG
from r3flow.protocol.tags import ReSearch, SearchR1

PROTOCOLS: dict[str, StepProtocol] = {protocol.name: protocol for protocol in (R3RAG(), SearchR1(), ReSearch())}

__all__ = ["PROTOCOLS", "Block", "Limits", "Segment", "StepProtocol", "segments"]
