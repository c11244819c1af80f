"""Rewards for a batch of trajectories: what must be asked of the judge is asked at once, the rest is a rule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from r3flow.errors import ConfigError
from r3flow.llm.judge import RelevanceItem, VerdictItem
from r3flow.params import Reward
from r3flow.rewards import RewardBreakdown, needs_verdict, relevance_by_gold, relevance_by_score, score, searched
from r3flow.training.plugin import ProcessPlugin
from r3flow.trajectory import Step, Trajectory


class Judging(Protocol):
    """What is used of `r3flow.llm.judge.Judge`."""

    def relevance(self, items: Sequence[RelevanceItem]) -> list[float | None]: ...

    def verdict(self, items: Sequence[VerdictItem]) -> list[bool | None]: ...


class Scorer:
    """Scores trajectories by the `reward` section. `calls` counts what was asked of the judge.

    Raises ConfigError if the section asks for a judge and there is none, or for a function below `root`/plugins that cannot be had; and
    at a call for what that function does wrong.
    """

    def __init__(self, reward: Reward, judge: Judging | None, *, retriever: str = "bm25", root: str | Path = ".") -> None:
        if judge is None and reward.judge_needed:
            raise ConfigError(
                "reward: process: judge, outcome: judge and outcome: match_or_judge need a judge; without one set process: none, "
                "outcome: match"
            )
        self.reward, self.judge, self.retriever = reward, judge, retriever
        self.plugin = None if reward.plugin is None else ProcessPlugin(reward.plugin, root)
        self.calls = 0

    def __call__(self, trajectories: Sequence[Trajectory]) -> list[RewardBreakdown]:
        """One breakdown a trajectory, in order."""
        verdicts = self._verdicts(trajectories)
        relevances = self._relevances(trajectories)
        return [
            score(trajectory, verdict=verdict, relevance=relevance, preset=self.reward.preset, outcome=self.reward.outcome)
            for trajectory, verdict, relevance in zip(trajectories, verdicts, relevances, strict=True)
        ]

    def _verdicts(self, trajectories: Sequence[Trajectory]) -> list[bool | None]:
        """The judge's word on every answer that nothing else can grade; None elsewhere."""
        asked: dict[int, VerdictItem] = {}
        if self.reward.verdict_needed:
            for place, trajectory in enumerate(trajectories):
                question, answer = trajectory.question, trajectory.answer
                if answer is not None and needs_verdict(trajectory, self.reward.outcome):
                    asked[place] = VerdictItem(question.question, question.answers, answer)
        replies: list[bool | None] = []
        if asked:
            assert self.judge is not None
            replies = self.judge.verdict(list(asked.values()))
            self.calls += len(asked)
        known = dict(zip(asked, replies, strict=True))
        return [known.get(place) for place in range(len(trajectories))]

    def _relevances(self, trajectories: Sequence[Trajectory]) -> list[list[float | None]]:
        """One relevance a step of each trajectory; 0 for steps without documents."""
        process = self.reward.process
        if process == "gold":
            return [list(relevance_by_gold(trajectory)) for trajectory in trajectories]
        if process == "score":
            return [list(relevance_by_score(trajectory, self.retriever)) for trajectory in trajectories]
        values: list[list[float | None]] = [[0.0] * len(trajectory.steps) for trajectory in trajectories]
        if process == "none":
            return values
        if self.plugin is not None:
            # of a failed trajectory nothing may be concluded, so the function does not see it
            return [zeros if item.finish == "failed" else self.plugin(item) for item, zeros in zip(trajectories, values, strict=True)]
        places: list[tuple[int, int]] = []
        items: list[RelevanceItem] = []
        for row, trajectory in enumerate(trajectories):
            if trajectory.finish == "failed":
                continue  # unknown whatever the judge says
            for place in searched(trajectory):
                earlier = tuple(step for step in trajectory.steps[:place] if isinstance(step, Step))
                step = trajectory.steps[place]
                assert isinstance(step, Step)
                places.append((row, place))
                items.append(RelevanceItem(trajectory.question.question, earlier, step))
        if items:
            assert self.judge is not None
            self.calls += len(items)
            for (row, place), value in zip(places, self.judge.relevance(items), strict=True):
                values[row][place] = value
        return values
