"""The judge: how much a search helped, and whether an answer is right, asked of a model. What it can not tell is None, never 0.

Unknown has two causes. The reply could not be read: it is in the ledger and stays unknown. Or the call failed after all retries: asked
again later, it may be known. `failed` counts the second kind, for callers whose result must not depend on an endpoint's bad day.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from r3flow.errors import EndpointError, EndpointRefusedError
from r3flow.llm import wording
from r3flow.llm.client import ChatClient, Request
from r3flow.trajectory import Step

T = TypeVar("T")

_OBJECT = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True, slots=True)
class RelevanceItem:
    """A search step to be graded, and the steps before it."""

    question: str
    earlier: tuple[Step, ...]
    step: Step


@dataclass(frozen=True, slots=True)
class VerdictItem:
    """An answer to be compared with the gold answers."""

    question: str
    answers: tuple[str, ...]
    prediction: str


class Judge:
    """Asks many questions at once through one client; equal ones are asked (and paid) once.

    `max_characters` is where passages are cut for it, None for nowhere: the policy's `protocol.max_document_characters`.
    """

    def __init__(self, client: ChatClient, max_characters: int | None = None) -> None:
        self._client, self._max_characters = client, max_characters
        self.failed = 0
        self.unreadable = 0

    def relevance(self, items: Sequence[RelevanceItem]) -> list[float | None]:
        """Relevance in [0, 1] on a 0.1 grid (R3-RAG's Rel), None where unknown, in the order of `items`.

        Raises EndpointRefusedError and BudgetError.
        """
        prompts = [wording.relevance(item.question, item.earlier, item.step, self._max_characters) for item in items]
        return self._ask("judge_relevance", prompts, read_relevance)

    def verdict(self, items: Sequence[VerdictItem]) -> list[bool | None]:
        """Whether each prediction is right, None where unknown, in the order of `items`. Raises as `relevance` does."""
        prompts = [wording.verdict(item.question, item.answers, item.prediction) for item in items]
        return self._ask("judge_answer", prompts, read_verdict)

    def _ask(self, system: str, prompts: Sequence[str], read: Callable[[str], T | None]) -> list[T | None]:
        replies = self._client.run(self._ask_all([Request(wording.text(system), prompt) for prompt in prompts]))
        values: list[T | None] = []
        for reply in replies:
            value = None if reply is None else read(reply)
            self.failed += reply is None
            self.unreadable += reply is not None and value is None
            values.append(value)
        return values

    async def _ask_all(self, requests: Sequence[Request]) -> list[str | None]:
        """The replies; None for a call that failed. A batch whose first calls all fail is not asked to its end: the endpoint is down."""
        replies: list[str | None] = [None] * len(requests)
        todo = iter(enumerate(requests))
        patience = self._client.params.concurrency
        failures, answered = 0, False

        async def work() -> None:
            nonlocal failures, answered
            for place, request in todo:
                if failures >= patience and not answered:
                    return
                try:
                    replies[place] = (await self._client.complete(request)).text
                    answered = True
                except EndpointRefusedError:
                    raise
                except EndpointError:
                    failures += 1

        workers = [asyncio.create_task(work()) for _ in range(min(patience, len(requests)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return replies


def read_relevance(reply: str) -> float | None:
    """The `relevance` of the last JSON object that has one, on the 0.1 grid; None if there is none or it lies outside [0, 1]."""
    value = _last(reply, "relevance")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        return None
    return round(value * 10) / 10


def read_verdict(reply: str) -> bool | None:
    """The `correct` of the last JSON object that has one; None if there is none or it is no truth value."""
    value = _last(reply, "correct")
    return value if isinstance(value, bool) else None


def _last(reply: str, key: str) -> Any:
    for match in reversed(list(_OBJECT.finditer(reply))):
        try:
            value = json.loads(match.group())
        except ValueError:
            continue
        if key in value:
            return value[key]
    return None
