"""The typed sections of `params.yaml`, a class each, with every bound and what must fit together."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Rate = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Name = Annotated[str, Field(min_length=1)]
NonNegative = Annotated[float, Field(ge=0)]
Attempts = Annotated[int, Field(ge=1, le=64)]


class Section(BaseModel):
    """Strict and frozen; a key that is not named here is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


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


class Price(Section):
    """US dollars for a million tokens. Prices change: date them in a comment."""

    cached_input: NonNegative = 0.0
    input: NonNegative = 0.0
    output: NonNegative = 0.0


def base_url_host(url: str, key: str = "base_url", like: str = "https://api.deepseek.com") -> str:
    """The host of a server's address. Raises ValueError unless it is a plain http or https address without user, query or fragment.

    `key` and `like` are how the error calls the setting, and its example of a right one.
    """
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises ValueError for a bad port
    except ValueError as error:
        raise ValueError(f"{key} {url!r} is no address: {error}") from None
    if "@" in parts.netloc:
        raise ValueError(f"{key} may not hold a user or password: secrets come from the environment alone (see api_key_env)")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or url != url.strip():
        raise ValueError(f"{key} {url!r} must look like {like}")
    return parts.hostname


_NOT_EXTRA = {"model", "messages", "stream", "n"}
"""Fields of a request that `extra_body` may not set: the ledger, the prices and the reader of replies rely on them."""


class Endpoint(Section):
    """An OpenAI-compatible server. `endpoint: simulated` is the stand-in that a stage starts itself on loopback."""

    endpoint: Literal["simulated", "openai"]
    base_url: str | None
    api_key_env: str
    model: str
    max_tokens: Count
    extra_body: dict[str, Any]
    concurrency: Annotated[int, Field(ge=1, le=4096)]
    timeout_s: Positive
    max_retries: Annotated[int, Field(ge=0, le=100)]
    budget_usd: Positive | None
    price_usd_per_million: Price

    @model_validator(mode="after")
    def _key_name(self) -> Endpoint:
        if self.api_key_env and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):
            # the value is not shown: it may be the key
            raise ValueError(
                "api_key_env must be the name of an environment variable, such as DEEPSEEK_API_KEY; a key itself belongs in no file"
            )
        return self

    @model_validator(mode="after")
    def _extra(self) -> Endpoint:
        taken = sorted(_NOT_EXTRA & self.extra_body.keys())
        if taken:
            raise ValueError(f"extra_body.{taken[0]}: cannot be set here; the model is `model`, the rest belongs to the stage")
        try:
            json.dumps(self.extra_body, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"extra_body: holds what JSON cannot ({error}); put quotation marks around dates") from None
        return self

    @model_validator(mode="after")
    def _url(self) -> Endpoint:
        if self.endpoint == "openai" and not self.base_url:
            raise ValueError("base_url is needed with endpoint: openai (for DeepSeek: https://api.deepseek.com)")
        if self.base_url is not None:
            base_url_host(self.base_url)
        return self


class Simulated(Section):
    partial_query: Rate
    vague_query: Rate
    needless_search: Rate
    early_answer: Rate
    fails_four_hops: Rate


class SecondTeacher(Endpoint):
    """A stronger server for the questions that the first teacher failed, and how often it may try each of them."""

    attempts: Attempts
    simulated: Simulated | None = None
    """How the stand-in errs, of its own; with `endpoint: simulated` alone."""

    @model_validator(mode="after")
    def _stand_in(self) -> SecondTeacher:
        if self.endpoint == "simulated" and self.simulated is None:
            raise ValueError(
                "simulated is needed with endpoint: simulated: the error rates of the second stand-in, with the keys of the first"
            )
        if self.endpoint != "simulated" and self.simulated is not None:
            raise ValueError("simulated holds the error rates of a stand-in; leave it out, or set endpoint: simulated")
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
