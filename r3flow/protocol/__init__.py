"""The only renderers and parsers of steps."""

from r3flow.protocol.base import Segment, StepProtocol, segments
from r3flow.protocol.r3rag import R3RAG

PROTOCOLS: dict[str, StepProtocol] = {"r3rag": R3RAG()}

__all__ = ["PROTOCOLS", "Segment", "StepProtocol", "segments"]
