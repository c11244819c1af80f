"""Trajectory synthesis: a teacher writes steps, the real retriever answers its queries (R3-RAG section 3.2, algorithm 1).

A question gets up to `attempts` trajectories, the first with `temperature_first`, and no more after one whose answer matches. A malformed
step is asked again, up to `format_tries` times. Questions run side by side; what comes out is in their order and does not depend on which
reply arrived first, nor on whether it came from the ledger.

A second teacher works in the same way, on the questions that the first one failed. What a model thinks before it writes is no part of a
trajectory and is sent back to nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args

from r3flow.errors import R3FlowError
from r3flow.llm import wording
from r3flow.llm.batching import BatchedSearch
from r3flow.llm.client import ChatClient, Request
from r3flow.matching import exact_match
from r3flow.params import Params
from r3flow.progress import Reporter
from r3flow.protocol import PROTOCOLS
from r3flow.protocol.r3rag import DOCUMENTS
from r3flow.trajectory import FinishReason, Hit, InvalidStep, Question, Step, Trajectory

FORM = "r3rag"
"""The protocol in which the teacher reads and writes, whatever the policy's is: a trajectory is steps, and becomes the policy's text
only in the token stream. So a change of the policy's protocol pays no teacher again.
"""
WINDOW = 4
"""Questions at work per slot of concurrency: enough that a slow question at the head leaves no slot idle."""
GRACE_S = 5.0
"""How long calls on the wire may still end (and be kept) after a failure."""
TRY_STRIDE = 1000
"""The seed of a second try at a step is `attempt + TRY_STRIDE`: more than the most attempts that params allow."""


Teacher = Literal["first", "second"]
"""Who wrote a trajectory: the section `teacher`, or `second_teacher`."""
THOUGHT = "</think>"
"""Where reasoning ends that a server left in the reply's text (DeepSeek-R1's weights without a reasoning parser)."""


class Searcher(Protocol):
    """The part of `Environment` that synthesis needs."""

    def search(self, queries: Sequence[str]) -> list[tuple[Hit, ...]]: ...

    def shown(self, hits: tuple[Hit, ...], earlier: Sequence[Step | InvalidStep]) -> tuple[Hit, ...]: ...

    def documents(self, hits: Sequence[Hit]) -> str: ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """One trajectory of a question; `attempt` counts from 0, for each teacher anew."""

    attempt: int
    trajectory: Trajectory
    teacher: Teacher = "first"

    @property
    def matched(self) -> bool:
        """Whether the final answer matches a gold answer as text."""
        answer = self.trajectory.answer
        return answer is not None and exact_match(answer, self.trajectory.question.answers)

    def to_json(self) -> dict[str, Any]:
        return {"attempt": self.attempt, **self._signature, "trajectory": self.trajectory.to_json()}

    def signed_trajectory(self) -> dict[str, Any]:
        """The trajectory's JSON with its teacher in it."""
        return {**self.trajectory.to_json(), **self._signature}

    @property
    def _signature(self) -> dict[str, str]:
        """Unsigned is the first teacher's, as is every file from before there was a second."""
        return {} if self.teacher == "first" else {"teacher": self.teacher}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Attempt:
        """Raises KeyError, TypeError or ValueError naming the field."""
        number = value["attempt"]
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ValueError(f"field 'attempt' must be a whole number from 0, got {number!r}")
        teacher = value.get("teacher", "first")
        if teacher not in get_args(Teacher):
            raise ValueError(f"field 'teacher' must be {' or '.join(get_args(Teacher))}, got {teacher!r}")
        return cls(number, Trajectory.from_json(value["trajectory"]), teacher)


def synthesize(
    params: Params,
    questions: Sequence[Question],
    environment: Searcher,
    client: ChatClient,
    reporter: Reporter,
    teacher: Teacher = "first",
) -> Iterator[Attempt]:
    """Yield every attempt of `teacher`, whose endpoint `client` is, in the order of `questions`.

    Memory holds `WINDOW * concurrency` questions at a time.

    Raises what the client or the retriever raises: a failed call never becomes a trajectory. Run again, it goes on from the ledger.
    """
    stream = _Synthesis(params, environment, client, teacher).stream(questions)
    done = accepted = 0
    try:
        while (attempts := client.run(_next(stream))) is not None:
            yield from attempts
            done += 1
            accepted += attempts[-1].matched
            reporter.progress(done, len(questions), f"accepted {accepted}/{done}")
    finally:
        client.run(stream.aclose())


def without_thought(reply: str) -> str:
    """What stands behind the reasoning, if the reply holds any; a reply that ended within it has nothing to say."""
    _, thought, said = reply.rpartition(THOUGHT)
    said = said.lstrip() if thought else said
    return "" if said.lstrip().startswith("<think>") else said


async def _next(stream: AsyncGenerator[list[Attempt]]) -> list[Attempt] | None:
    return await anext(stream, None)


class _Synthesis:
    def __init__(self, params: Params, environment: Searcher, client: ChatClient, teacher: Teacher) -> None:
        self._params, self._environment, self._client, self._teacher = params, environment, client, teacher
        section = params.synthesize if teacher == "first" else params.second_teacher
        assert section is not None, "there is no second teacher to ask"
        self._attempts = section.attempts
        self._protocol = PROTOCOLS[FORM]
        self._system = wording.teacher(FORM)
        self._search = BatchedSearch(environment.search)

    async def stream(self, questions: Sequence[Question]) -> AsyncGenerator[list[Attempt]]:
        """The attempts of one question after the other, while those of the next ones are under way."""
        todo = iter(questions)
        running: deque[asyncio.Task[list[Attempt]]] = deque()
        failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

        def ended(task: asyncio.Task[list[Attempt]]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None and not failed.done():
                failed.set_result(error)
                self._client.halt(error if isinstance(error, R3FlowError) else R3FlowError(f"synthesis failed: {error}"))

        try:
            while True:
                while len(running) < WINDOW * self._client.params.concurrency and (question := next(todo, None)) is not None:
                    task = asyncio.create_task(self._question(question))
                    task.add_done_callback(ended)
                    running.append(task)
                if not running:
                    return
                if not running[0].done():
                    either: tuple[asyncio.Future[Any], ...] = (running[0], failed)
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if failed.done():
                    await asyncio.wait(running, timeout=GRACE_S)
                    raise failed.result()
                yield running.popleft().result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            self._search.close()

    async def _question(self, question: Question) -> list[Attempt]:
        attempts: list[Attempt] = []
        for number in range(self._attempts):
            attempts.append(Attempt(number, await self._attempt(question, number), self._teacher))
            if attempts[-1].matched:
                break
        return attempts

    async def _attempt(self, question: Question, attempt: int) -> Trajectory:
        steps: list[Step | InvalidStep] = []
        transcript = self._protocol.prompt(question.question)
        finish: FinishReason = "budget"
        for number in range(1, self._params.protocol.max_steps + 1):
            step = await self._step(transcript, number, attempt)
            if isinstance(step, InvalidStep) or step.query is None:
                steps.append(step)
                finish = "malformed" if isinstance(step, InvalidStep) else "answered"
                break
            hits = self._environment.shown(await self._search(step.query), steps)
            steps.append(replace(step, hits=hits))
            transcript += self._protocol.render_step(step) + self._environment.documents(hits)
        return Trajectory(question, tuple(steps), finish)

    async def _step(self, transcript: str, number: int, attempt: int) -> Step | InvalidStep:
        """The first well-formed one of up to `format_tries` replies, else the last. A second try is never greedy: it would say the same."""
        settings = self._params.synthesize
        step: Step | InvalidStep = InvalidStep(number, "", "never asked")
        for again in range(settings.format_tries):
            first = attempt == 0 and again == 0
            request = Request(
                self._system,
                transcript,
                temperature=settings.temperature_first if first else settings.temperature_later,
                seed=attempt + TRY_STRIDE * again,
                stop=(f"\n{DOCUMENTS}",),
            )
            reply = await self._client.complete(request)
            step = self._protocol.parse(without_thought(reply.text), number, complete=not reply.cut)
            if isinstance(step, Step):
                break
        return step
