"""One system answers the held-out questions in batches, and the judge looks at what did not match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from r3flow.environment import Environment
from r3flow.errors import ConfigError, EndpointError
from r3flow.evaluation.rag import answer_by_rag
from r3flow.evaluation.results import Result, Verdict, read_results, write_results
from r3flow.evaluation.systems import SYSTEMS
from r3flow.llm.judge import Judge, VerdictItem
from r3flow.params import Params
from r3flow.policy import load_policy
from r3flow.progress import Reporter
from r3flow.protocol import PROTOCOLS
from r3flow.retrieval.base import Retriever
from r3flow.rollout import generate_rollouts
from r3flow.trajectory import Question


class Answering:
    """One system over a retriever. Its model is loaded when the first batch needs it."""

    def __init__(self, params: Params, system: str, retriever: Retriever) -> None:
        """Raises ConfigError for a system that is none."""
        if system not in SYSTEMS:
            raise ConfigError(f"evaluate: unknown system '{system}'; known are {', '.join(SYSTEMS)}")
        self.params, self.system = params, SYSTEMS[system]
        self.environment = Environment(retriever, PROTOCOLS[params.protocol.name], params)
        self._loaded: tuple[Any, Any] | None = None

    def answer(self, questions: Sequence[Question]) -> list[Result]:
        """One batch, without verdicts. Raises EndpointError if the retriever failed for any question: that says nothing about a system."""
        policy = self.params.policy
        if self._loaded is None:
            self._loaded = load_policy(self.system.model or policy.base, trust_remote_code=policy.trust_remote_code)
        model, tokenizer = self._loaded
        if self.system.one_shot:
            return answer_by_rag(model, tokenizer, self.environment, questions, self.params)
        rollouts = generate_rollouts(
            model, tokenizer, self.environment, questions, self.params.protocol.as_evaluated, temperature=0.0, seed=self.params.seed
        )
        failed = sum(rollout.trajectory.finish == "failed" for rollout in rollouts)
        if failed:
            raise EndpointError(f"the retriever failed for {failed} of {len(rollouts)} questions; run again: finished batches are kept")
        return [Result(rollout.trajectory, sum(rollout.mask)) for rollout in rollouts]


def answer_all(answering: Answering, questions: Sequence[Question], batch_size: int, work: Path, reporter: Reporter) -> list[Result]:
    """All results, in order. Each finished batch is kept in `work`, so a killed run goes on behind it with the same result."""
    results: list[Result] = []
    for start in range(0, len(questions), batch_size):
        batch = questions[start : start + batch_size]
        path = work / f"batch-{start}.jsonl"
        if not path.exists():
            write_results(path, answering.answer(batch))
        results += read_results(path)
        right = sum(result.em for result in results)
        reporter.progress(len(results), len(questions), f"right {right}/{len(results)}")
    return results


def judge_all(judge: Judge, results: Sequence[Result]) -> list[Result]:
    """Results with verdicts where the string match fails and there is an answer to be judged.

    A reply that cannot be read is "unknown" for good. Raises EndpointError for calls that failed: a figure may not depend on that.
    """
    places = [place for place, result in enumerate(results) if not result.em and result.trajectory.answer is not None]
    items = []
    for place in places:
        trajectory = results[place].trajectory
        items.append(VerdictItem(trajectory.question.question, trajectory.question.answers, trajectory.answer or ""))
    failed = judge.failed
    verdicts = judge.verdict(items)
    if judge.failed > failed:
        count = judge.failed - failed
        raise EndpointError(f"the judge failed for {count} of {len(items)} answers; run again: what it said is in the ledger")
    judged = list(results)
    for place, verdict in zip(places, verdicts, strict=True):
        name: Verdict = "unknown" if verdict is None else "right" if verdict else "wrong"
        judged[place] = replace(results[place], verdict=name)
    return judged
