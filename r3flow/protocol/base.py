"""What a protocol is: the text form of a trajectory. One object renders it and parses it, for every stage alike.

A trajectory is an append-only stream of segments. `prompt` (the question) and `environment` (retrieved documents) are given to the
policy and masked in training; `policy` segments are what the policy writes. A policy turn is one step and ends with the
tokenizer's end-of-text token, which is no part of the text here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

from r3flow.trajectory import InvalidStep, Passage, Step, Trajectory

Role = Literal["prompt", "policy", "environment"]

# halves of surrogate pairs are no characters: no tokenizer, file or endpoint takes them
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# what looks like a colon, and blanks that are letters or symbols to Unicode (the first one is SentencePiece's space)
_LOOKS = dict.fromkeys("\u02d0\u02f8\u0589\u05c3\u0703\u0704\u16ec\u1803\u1809\u205a\u2236\ua4fd\ua789\ufe30", ":")
_LOOKS |= dict.fromkeys("\u2581\u115f\u1160\u2800\u3164\uffa0", " ")


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the stream and who wrote it."""

    role: Role
    text: str


class StepProtocol(Protocol):
    """One text format of reasoning and retrieval. Implementations are stateless."""

    name: str

    def prompt(self, question: str) -> str:
        """The first segment."""

    def render_step(self, step: Step) -> str:
        """The policy's text of a well-formed step, without documents and without end-of-text."""

    def render_documents(self, passages: Sequence[Passage], max_characters: int) -> str:
        """The environment's segment after a query. Every passage is cut to `max_characters` and neutralised; the frame is never cut."""

    def parse(self, text: str, number: int, *, complete: bool = True) -> Step | InvalidStep:
        """Read one policy turn. `number` is the step it must be; `complete` is False if the turn was cut at the token limit."""


def squeeze(text: str) -> str:
    """One line: control characters, halves of surrogate pairs and every run of white space become a single space."""
    return re.sub(r"\s+", " ", _CONTROL.sub(" ", text)).strip()


@lru_cache(maxsize=1 << 16)
def fold(character: str) -> str:
    """What is left of a character where case, width, accents and invisible marks do not count; may be empty, or several characters.

    Readers and many tokenizers' normalisers make such a difference none. Look-alike letters of other scripts stay what they are.
    """
    if character in _LOOKS:
        return _LOOKS[character]
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    return "".join(part for part in plain if unicodedata.category(part) not in ("Mn", "Me", "Cf", "Cn", "Co", "Cs"))


def folded(text: str) -> Sequence[str]:
    """`fold` of each character of `text`; ASCII text, the common case, holds nothing to fold but case (controls apart)."""
    return text.lower() if text.isascii() else list(map(fold, text))


def segments(protocol: StepProtocol, trajectory: Trajectory, max_characters: int) -> list[Segment]:
    """The whole stream of a trajectory, in order: prompt, then step and documents by turns."""
    stream = [Segment("prompt", protocol.prompt(trajectory.question.question))]
    for step in trajectory.steps:
        if isinstance(step, InvalidStep):
            stream.append(Segment("policy", step.raw))
            continue
        stream.append(Segment("policy", protocol.render_step(step)))
        if step.query is not None:
            stream.append(Segment("environment", protocol.render_documents([h.passage for h in step.hits], max_characters)))
    return stream
