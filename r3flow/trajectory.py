"""What the pipeline is about: questions, passages, steps and trajectories, and their JSONL form.

A trajectory is a question and a list of steps. A step is an analysis and then either a retrieval query with the passages that
came back, or a final answer (R3-RAG section 3.1). A step that does not parse is kept as `InvalidStep`, so that format rewards
have something to judge. All of it is frozen data; behaviour lives elsewhere.
"""

from __future__ import annotations

import unicodedata
from dataclasses import asdict, dataclass
from typing import Any, Literal

FinishReason = Literal["answered", "budget", "malformed", "length", "failed"]
"""answered: a final answer. budget: the step limit came first. malformed: an invalid step ended it. length: no room in the
context. failed: a service failed, so nothing may be concluded (its reward is unknown)."""


def _unseen(character: str) -> bool:
    """Blanks, control characters, and invisible ones such as a zero-width space."""
    return unicodedata.category(character) in ("Zs", "Zl", "Zp", "Cc", "Cf")


def unseen(text: str) -> bool:
    """Whether `text` holds nothing that a reader sees; true of an empty one."""
    return all(map(_unseen, text))


def _text(value: Any, field: str, *, empty: bool = False) -> str:
    if not isinstance(value, str):
        raise TypeError(f"field '{field}' must be text, got {type(value).__name__}")
    if not empty and unseen(value):
        raise ValueError(f"field '{field}' is empty")
    return value


def _texts(value: Any, field: str) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"field '{field}' must be a list of texts, got {type(value).__name__}")
    return tuple(_text(item, field) for item in value)


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its gold answers. `gold_ids` are the ids of the supporting passages, None where unknown."""

    id: str
    question: str
    answers: tuple[str, ...]
    gold_ids: tuple[str, ...] | None = None
    type: str | None = None
    hops: int | None = None

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Question:
        """Raises KeyError, TypeError or ValueError naming the field."""
        answers = _texts(value["answers"], "answers")
        if not answers:
            raise ValueError("field 'answers' holds no answer")
        gold, kind, hops = value.get("gold_ids"), value.get("type"), value.get("hops")
        if hops is not None and (isinstance(hops, bool) or not isinstance(hops, int) or hops < 1):
            raise ValueError(f"field 'hops' must be a whole number from 1, got {hops!r}")
        return cls(
            id=_text(value["id"], "id"),
            question=_text(value["question"], "question"),
            answers=answers,
            gold_ids=None if gold is None else _texts(gold, "gold_ids"),
            type=None if kind is None else _text(kind, "type"),
            hops=hops,
        )

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Passage:
    """One retrievable piece of the corpus."""

    id: str
    title: str
    text: str

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Passage:
        return cls(_text(value["id"], "id"), _text(value["title"], "title", empty=True), _text(value["text"], "text"))

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "title": self.title, "text": self.text}


@dataclass(frozen=True, slots=True)
class Hit:
    """A retrieved passage with the retriever's score (larger is better; comparable only within one retriever)."""

    passage: Passage
    score: float


@dataclass(frozen=True, slots=True)
class Step:
    """A well-formed step: exactly one of `query` and `answer` is set. `hits` are what the environment showed for `query`."""

    number: int
    analysis: str
    query: str | None = None
    answer: str | None = None
    hits: tuple[Hit, ...] = ()
    tidy: bool = True
    """False if the policy's turn held text outside of the protocol's parts, or lacked the thought; protocols that tolerate such a turn
    say so."""

    def __post_init__(self) -> None:
        if (self.query is None) == (self.answer is None):
            raise ValueError(f"step {self.number} needs either a query or an answer")


@dataclass(frozen=True, slots=True)
class InvalidStep:
    """A step that the protocol's parser refused: the raw text, and why."""

    number: int
    raw: str
    reason: str


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A question and what a policy or teacher did about it."""

    question: Question
    steps: tuple[Step | InvalidStep, ...]
    finish: FinishReason

    @property
    def answer(self) -> str | None:
        """The final answer, None if there is none."""
        last = self.steps[-1] if self.steps else None
        return last.answer if isinstance(last, Step) and self.finish == "answered" else None

    @property
    def searches(self) -> int:
        """Number of retrievals."""
        return sum(isinstance(step, Step) and step.query is not None for step in self.steps)

    def passages(self) -> list[Passage]:
        """Every passage shown, in order, repeats included."""
        return [hit.passage for step in self.steps if isinstance(step, Step) for hit in step.hits]

    def to_json(self) -> dict[str, Any]:
        steps: list[dict[str, Any]] = []
        for step in self.steps:
            if isinstance(step, InvalidStep):
                steps.append({"number": step.number, "raw": step.raw, "reason": step.reason})
                continue
            record: dict[str, Any] = {"number": step.number, "analysis": step.analysis}
            if step.query is not None:
                record["query"] = step.query
                record["hits"] = [{**hit.passage.to_json(), "score": hit.score} for hit in step.hits]
            else:
                record["answer"] = step.answer
            if not step.tidy:
                record["tidy"] = False
            steps.append(record)
        return {"question": self.question.to_json(), "steps": steps, "finish": self.finish}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Trajectory:
        steps: list[Step | InvalidStep] = []
        for item in value["steps"]:
            if "raw" in item:
                steps.append(InvalidStep(item["number"], item["raw"], item["reason"]))
            else:
                hits = tuple(Hit(Passage.from_json(hit), float(hit["score"])) for hit in item.get("hits", ()))
                steps.append(Step(item["number"], item["analysis"], item.get("query"), item.get("answer"), hits, item.get("tidy", True)))
        return cls(Question.from_json(value["question"]), tuple(steps), value["finish"])
