"""The other sections of `params.yaml`, the whole file, and what must fit together between sections."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from r3flow.params.base import Attempts, Count, Name, NonNegative, Positive, Rate, Section, Whole
from r3flow.params.endpoints import Endpoint, SecondTeacher, Simulated, base_url_host
from r3flow.params.rl import PPO, Reward


class Files(Section):
    """Your own files. Always set, since `dvc.yaml` names them as dependencies of `prepare`: an edited corpus must make it run again."""

    corpus: str
    train: str
    dev: str
    test: str


class World(Section):
    train_questions: Count
    dev_questions: Count
    test_questions: Count
    passages: Annotated[int, Field(ge=100)]


class Prepare(Section):
    source: Literal["world", "files"]
    files: Files
    world: World


class Index(Section):
    encoder: Name
    dimension: Annotated[int, Field(ge=2, le=4096)]
    stopwords: Literal["en"] | None


class Retrieval(Section):
    kind: Literal["bm25", "dense", "remote"]
    top_k: Annotated[int, Field(ge=1, le=100)]
    url: str | None = None

    @model_validator(mode="after")
    def _url(self) -> Retrieval:
        if self.url is not None:
            base_url_host(self.url, "url", "http://127.0.0.1:8000/search")
        return self


QUESTION_PLACE = "{question}"
"""Where the question goes in `protocol.instruction`."""


class ProtocolParams(Section):
    name: Literal["r3rag", "search_r1", "research"]
    prompt: Literal["plain", "chat"] = "plain"
    system: Name | None = None
    instruction: Name | None = None
    max_steps: Annotated[int, Field(ge=1, le=64)]
    max_turn_tokens: Annotated[int, Field(ge=8)]
    max_context_tokens: Annotated[int, Field(ge=64)]
    max_document_characters: Annotated[int, Field(ge=16)]
    max_documents_characters: Annotated[int, Field(ge=16)] | None
    max_documents_tokens: Annotated[int, Field(ge=16)] | None = None
    repeat_passages: bool
    max_passages: Count | None
    on_invalid: Literal["stop", "feedback"] = "stop"
    search_at_limit: bool = False

    @property
    def as_evaluated(self) -> ProtocolParams:
        """Without the search at the limit: it is for the training's reward alone, and nobody reads what it brings."""
        return self.model_copy(update={"search_at_limit": False})

    @model_validator(mode="after")
    def _instruction(self) -> ProtocolParams:
        if self.instruction is not None and self.instruction.count(QUESTION_PLACE) != 1:
            raise ValueError(
                f"instruction must hold {QUESTION_PLACE} once, where the question goes, or be null for the protocol's own words"
            )
        return self

    @model_validator(mode="after")
    def _system(self) -> ProtocolParams:
        if self.system is not None and self.prompt == "plain":
            raise ValueError("system is a message of a chat; set prompt: chat, or system: null")
        return self

    @model_validator(mode="after")
    def _room(self) -> ProtocolParams:
        if self.max_turn_tokens >= self.max_context_tokens:
            raise ValueError(
                f"max_turn_tokens ({self.max_turn_tokens}) must be less than max_context_tokens ({self.max_context_tokens}): "
                "the question and the documents need room too"
            )
        return self


class Synthesize(Section):
    questions: Count
    attempts: Attempts
    temperature_first: Annotated[float, Field(ge=0, le=2)]
    temperature_later: Annotated[float, Field(ge=0, le=2)]
    format_tries: Annotated[int, Field(ge=1, le=10)]


class Filter(Section):
    judge: bool


class Policy(Section):
    base: Name
    watch: Name
    """What DVC watches as the base's files. `load` sees to it that it is the base where that is a folder."""
    trust_remote_code: bool


class SFT(Section):
    epochs: Count
    batch_size: Count
    learning_rate: Positive
    warmup_ratio: Rate
    weight_decay: NonNegative
    max_grad_norm: Positive
    save_steps: Count


class Control(Section):
    learning_rate: Positive


class Evaluate(Section):
    questions: Count
    batch_size: Count
    bootstrap: Annotated[int, Field(ge=100)]
    judge: bool


class Report(Section):
    trajectories: Whole


class Params(Section):
    """The whole file. See `params.yaml` for what each key means."""

    seed: Annotated[int, Field(ge=0, lt=2**31)]
    prepare: Prepare
    index: Index
    retrieval: Retrieval
    protocol: ProtocolParams
    teacher: Endpoint
    second_teacher: SecondTeacher | None = None
    judge: Endpoint
    simulated: Simulated
    synthesize: Synthesize
    filter: Filter
    policy: Policy
    sft: SFT
    reward: Reward
    ppo: PPO
    control: Control
    evaluate: Evaluate
    report: Report

    @model_validator(mode="after")
    def _together(self) -> Params:
        if self.retrieval.kind == "remote" and not self.retrieval.url:
            raise ValueError("retrieval.url is needed with retrieval.kind: remote")
        if self.protocol.search_at_limit and (not self.reward.pays_process or self.reward.process == "none"):
            raise ValueError(
                f"protocol.search_at_limit: true searches for the process reward alone, and reward.preset: {self.reward.preset} with "
                f"reward.process: {self.reward.process} pays none; set protocol.search_at_limit: false"
            )
        second = self.second_teacher
        if second is not None and second.endpoint == "openai":
            first = self.teacher
            if (first.base_url, first.model, first.extra_body) == (second.base_url, second.model, second.extra_body):
                raise ValueError(
                    "second_teacher is the same as teacher: base_url, model and extra_body are equal; name a stronger model, let it think "
                    "(extra_body), or set second_teacher: null"
                )
        if self.prepare.source == "files":
            for who in self.asked:
                if getattr(self, who).endpoint == "simulated":
                    raise ValueError(
                        f"{who}.endpoint: simulated knows only the generated world; for your own corpus set {who}.endpoint: openai, "
                        f"{who}.base_url: https://api.deepseek.com, {who}.model: deepseek-v4-flash, and export DEEPSEEK_API_KEY"
                    )
        return self

    @property
    def asked(self) -> list[str]:
        """The endpoints' sections that any stage asks."""
        return ["teacher", *([] if self.second_teacher is None else ["second_teacher"]), *(["judge"] if self.judge_needed else [])]

    @property
    def judge_needed(self) -> bool:
        """Whether any stage asks the judge."""
        return self.filter.judge or self.evaluate.judge or self.reward.judge_needed
