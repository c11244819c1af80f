"""The sections of reinforcement learning: what is paid, and how the policy learns from it."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import field_validator, model_validator

from r3flow.params.base import Count, NonNegative, Positive, Rate, Section, Whole

_STEPWISE = ("demo", "paper", "code", "code_outcome", "code_process")
_GRADED = ("research", "research_paper")
_WITH_PROCESS = ("demo", "paper", "code", "code_process")
_RULES = ("judge", "gold", "score", "none")


class Reward(Section):
    """The tables of the presets are in `r3flow.rewards`."""

    preset: Literal[
        "demo", "paper", "code", "code_outcome", "code_process", "search_r1", "search_r1_format", "empirical", "research", "research_paper"
    ]
    outcome: Literal["match", "f1", "cover", "judge", "match_or_judge"]
    process: str
    """`judge`, `gold`, `score`, `none`, or a function of the project's folder `plugins`, so that DVC can watch it."""

    @field_validator("process")
    @classmethod
    def _process(cls, value: str) -> str:
        if value not in _RULES and not re.fullmatch(r"plugins(\.[a-z_][a-z0-9_]*)+:[a-z_]\w*", value):
            raise ValueError(f"{value!r} is neither {', '.join(_RULES)} nor a function such as plugins.ranking:score")
        return value

    @model_validator(mode="after")
    def _together(self) -> Reward:
        if self.preset in _GRADED and self.outcome != "f1":
            raise ValueError(f"preset: {self.preset} pays by F1, not by outcome: {self.outcome}; set outcome: f1")
        if self.preset not in _GRADED and self.outcome == "f1":
            other = "" if self.preset in _STEPWISE else ", and outcome: match is what was published"
            raise ValueError(
                f"outcome: f1 is a grade, but preset: {self.preset} needs right or wrong; set outcome: match, cover, judge or "
                f"match_or_judge{other}"
            )
        if not self.pays_process and self.process != "none":
            raise ValueError(f"preset: {self.preset} has no process reward, so process: {self.process} cannot be; set process: none")
        if self.preset == "code_process" and self.process == "none":
            raise ValueError(
                "preset: code_process has no reward but the process reward, so process: none cannot be; set process: judge, gold, score or "
                "a plugin"
            )
        return self

    @property
    def pays_process(self) -> bool:
        """Whether the preset has a process reward."""
        return self.preset in _WITH_PROCESS

    @property
    def verdict_needed(self) -> bool:
        """Whether the judge may be asked if an answer is right. `code_process` pays for no answer."""
        return self.outcome in ("judge", "match_or_judge") and self.preset != "code_process"

    @property
    def judge_needed(self) -> bool:
        """Whether anything is asked of the judge."""
        return self.process == "judge" or self.verdict_needed

    @property
    def plugin(self) -> str | None:
        """The user's function, None where `process` is one of the built-in rules."""
        return None if self.process in _RULES else self.process


class Guards(Section):
    """Limits of the curve's columns that stop the training; None: no limit. See `r3flow.training.guards`."""

    max_kl: Positive | None = None
    min_entropy: Positive | None = None
    min_answer_rate: Rate | None = None
    max_tokens: Positive | None = None
    patience: Count = 2


class PPO(Section):
    algorithm: Literal["ppo", "grpo", "leave_one_out"]
    iterations: Count
    prompts: Count
    group: Count
    group_scale: bool = True
    minibatch: Count
    epochs: Count
    learning_rate: Positive
    warmup_iterations: Whole
    final_lr_factor: Rate
    critic: Literal["head", "model"]
    critic_learning_rate: Positive
    critic_warmup_iterations: Whole
    value_coefficient: NonNegative
    clip: Positive
    value_clip: Positive | None
    gamma: Rate
    lam: Rate
    credit: Literal["trajectory", "step"]
    kl: Literal["reward", "loss", "none"]
    kl_estimator: Literal["k1", "k2", "k3"] | None = None
    kl_coefficient: NonNegative
    entropy_coefficient: float
    temperature: Positive
    max_grad_norm: Positive
    mask_retrieved: bool
    max_unknown: Rate
    guards: Guards = Guards()
    keep: Literal["last", "best"] = "last"
    early_stop: Count | None = None
    eval_questions: Whole
    eval_every: Count
    save_every: Count

    @model_validator(mode="after")
    def _batch(self) -> PPO:
        if (self.prompts * self.group) % self.minibatch:
            raise ValueError(
                f"minibatch ({self.minibatch}) must divide prompts x group ({self.prompts * self.group}); no sample is duplicated"
            )
        if self.algorithm != "ppo" and self.group < 2:
            raise ValueError(f"group must be 2 or more with algorithm: {self.algorithm}")
        if not self.group_scale and self.algorithm != "grpo":
            raise ValueError(f"group_scale is of algorithm: grpo alone, {self.algorithm} divides by no deviation; set group_scale: true")
        return self

    @model_validator(mode="after")
    def _estimator(self) -> PPO:
        if self.kl == "none" and self.kl_estimator is not None:
            raise ValueError(f"kl_estimator: {self.kl_estimator} has nothing to estimate with kl: none; set it to null")
        if self.kl == "loss" and self.kl_estimator == "k1":
            raise ValueError("kl_estimator: k1 has no gradient on average, so it cannot be used with kl: loss; set k2, k3 or null")
        return self

    @model_validator(mode="after")
    def _stops(self) -> PPO:
        if self.guards.max_kl is not None and self.kl == "none":
            raise ValueError("guards.max_kl has nothing to look at with kl: none; set it to null, or kl to reward or loss")
        if self.eval_questions == 0 and (self.keep == "best" or self.early_stop is not None):
            key = "keep: best" if self.keep == "best" else f"early_stop: {self.early_stop}"
            raise ValueError(f"{key} goes by the dev score, and eval_questions: 0 evaluates none; set eval_questions to 1 or more")
        return self

    @property
    def estimator(self) -> str:
        """Of the divergence from the reference: k1 in the reward and k3 in the loss, unless `kl_estimator` says otherwise."""
        return self.kl_estimator or ("k3" if self.kl == "loss" else "k1")
