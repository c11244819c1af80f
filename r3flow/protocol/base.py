"""What a protocol is: the text form of a trajectory. One object renders it and parses it, for every stage alike.

A trajectory is an append-only stream of segments. `prompt` (the question) and `environment` (retrieved documents, or a word about a
turn that was no step) are given to the policy and masked in training; `policy` segments are what the policy writes. A policy turn is
one step. It ends with the tokenizer's end-of-text token, which is no part of the text here, or in protocols with `stops` with one of them.
"""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

from r3flow.trajectory import InvalidStep, Passage, Step, Trajectory

Role = Literal["prompt", "policy", "environment"]

# halves of surrogate pairs are no characters: no tokenizer, file or endpoint takes them
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# what looks like a colon, and blanks that are letters or symbols to Unicode (the first one is SentencePiece's space)
_LOOKS = dict.fromkeys("\u02d0\u02f8\u0589\u05c3\u0703\u0704\u16ec\u1803\u1809\u205a\u2236\ua4fd\ua789\ufe30", ":")
_LOOKS |= dict.fromkeys("\u2581\u115f\u1160\u2800\u3164\uffa0", " ")


@dataclass(frozen=True, slots=True)
class Block:
    """Retrieved documents in a protocol's frame. Whoever shortens a block cuts `body` alone, so that the frame stays whole."""

    opening: str
    body: str
    closing: str

    @property
    def text(self) -> str:
        return f"{self.opening}{self.body}{self.closing}"


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the stream and who wrote it. `block` is set where the text is one of retrieved documents."""

    role: Role
    text: str
    block: Block | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of the retrieved documents is shown, in characters: of each passage, and of all passages of a step together."""

    passage: int
    total: int | None = None


class StepProtocol(ABC):
    """One text format of reasoning and retrieval. Implementations are stateless."""

    name: ClassVar[str]
    stops: ClassVar[tuple[str, ...]] = ()
    """ASCII texts that end a policy turn as soon as the policy has written one. Any other turn ends with end-of-text."""
    tolerant: ClassVar[bool] = False
    """Whether a turn with text outside of the protocol's parts is a step all the same, if not a tidy one."""

    @abstractmethod
    def quoted(self, question: str) -> str:
        """The question on one line, neutralised."""

    @abstractmethod
    def prompt(self, question: str) -> str:
        """The first segment, for a model that completes plain text."""

    @abstractmethod
    def instruction(self, question: str) -> str:
        """The user's message, for a model with a chat template."""

    @abstractmethod
    def render_step(self, step: Step) -> str:
        """The policy's text of a well-formed step, without documents and without end-of-text."""

    @abstractmethod
    def documents(self, passages: Sequence[Passage], limits: Limits) -> Block:
        """The environment's segment after a query: every passage neutralised and cut, the frame whole."""

    @abstractmethod
    def feedback(self, step: InvalidStep) -> str:
        """The environment's segment after a turn that was no step, where the trajectory goes on all the same."""

    @abstractmethod
    def parse(self, text: str, number: int, *, complete: bool = True) -> Step | InvalidStep:
        """Read one policy turn. `number` is the step it must be; `complete` is False if the turn was cut at the token limit."""

    def render_documents(self, passages: Sequence[Passage], max_characters: int) -> str:
        """`documents` as text, with a limit for each passage alone."""
        return self.documents(passages, Limits(max_characters)).text


CUT = "is cut at the token limit"
"""The reason of an `InvalidStep` that had no end."""


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


def find_marks(text: str, pattern: re.Pattern[str], place: Callable[[re.Match[str]], int]) -> list[int]:
    """Where in `text` the character stands that `place` names in each match of `pattern` in the folded text; from the end to the start."""
    pieces = folded(text)
    found = [place(match) for match in pattern.finditer("".join(pieces))]
    if not found:
        return []
    owners = [index for index, piece in enumerate(pieces) for _ in piece]
    return sorted({owners[index] for index in found}, reverse=True)


def one_line(passage: Passage, max_characters: int, title: str = "{}: ") -> str:
    """`passage` on one line of at most `max_characters`, its title (if it has one) before its text in the form `title`."""
    name = squeeze(passage.title)
    text = f"{title.format(name)}{passage.text}" if name else passage.text
    return squeeze(text[: 4 * max_characters])[:max_characters].rstrip()


def segments(protocol: StepProtocol, trajectory: Trajectory, limits: Limits) -> Iterator[Segment]:
    """The whole stream of a trajectory, in order: prompt, then policy and environment by turns."""
    yield Segment("prompt", protocol.prompt(trajectory.question.question))
    for place, step in enumerate(trajectory.steps, 1):
        if isinstance(step, InvalidStep):
            yield Segment("policy", step.raw)
            if place < len(trajectory.steps):
                yield Segment("environment", protocol.feedback(step))
            continue
        yield Segment("policy", protocol.render_step(step))
        if step.query is not None:
            block = protocol.documents([hit.passage for hit in step.hits], limits)
            yield Segment("environment", block.text, block)
