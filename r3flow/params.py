"""The typed `params.yaml`: unknown keys are refused with the nearest right one, and every bound is checked.

Imports no torch, so that a bad file is refused in a fraction of a second, before DVC starts.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from r3flow.errors import ConfigError

Rate = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Name = Annotated[str, Field(min_length=1)]
NonNegative = Annotated[float, Field(ge=0)]


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


class ProtocolParams(Section):
    name: Literal["r3rag"]
    max_steps: Annotated[int, Field(ge=1, le=64)]
    max_turn_tokens: Annotated[int, Field(ge=8)]
    max_document_characters: Annotated[int, Field(ge=16)]
    max_context_tokens: Annotated[int, Field(ge=64)]

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


class Synthesize(Section):
    questions: Count
    attempts: Annotated[int, Field(ge=1, le=64)]
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


class Reward(Section):
    preset: Literal["demo", "paper", "code"]
    outcome: Literal["match", "match_or_judge"]
    process: Literal["judge", "gold", "score", "none"]


class PPO(Section):
    algorithm: Literal["ppo", "grpo"]
    iterations: Count
    prompts: Count
    group: Count
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
    kl_coefficient: NonNegative
    entropy_coefficient: float
    temperature: Positive
    max_grad_norm: Positive
    mask_retrieved: bool
    max_unknown: Rate
    eval_questions: Whole
    eval_every: Count
    save_every: Count

    @model_validator(mode="after")
    def _batch(self) -> PPO:
        if (self.prompts * self.group) % self.minibatch:
            raise ValueError(
                f"minibatch ({self.minibatch}) must divide prompts x group ({self.prompts * self.group}); no sample is duplicated"
            )
        if self.algorithm == "grpo" and self.group < 2:
            raise ValueError("group must be 2 or more with algorithm: grpo")
        return self


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
        if self.prepare.source == "files":
            for who in ("teacher", "judge"):
                if getattr(self, who).endpoint == "simulated" and (who == "teacher" or self.judge_needed):
                    raise ValueError(
                        f"{who}.endpoint: simulated knows only the generated world; for your own corpus set {who}.endpoint: openai, "
                        f"{who}.base_url: https://api.deepseek.com, {who}.model: deepseek-v4-flash, and export DEEPSEEK_API_KEY"
                    )
        return self

    @property
    def judge_needed(self) -> bool:
        """Whether any stage asks the judge."""
        return self.filter.judge or self.evaluate.judge or self.reward.process == "judge" or self.reward.outcome == "match_or_judge"


def _fields(model: Any) -> list[str]:
    """The keys of a section's class; also of `Section | None`."""
    for candidate in (model, *get_args(model)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return list(candidate.model_fields)
    return []


def _line_of(text: str, location: tuple[Any, ...]) -> int:
    """The line in the YAML text of the deepest key of `location` that the file has; 1 if none."""
    node, line = yaml.compose(text, Loader=yaml.SafeLoader), 1
    for key in location:
        if not isinstance(node, yaml.MappingNode):
            break
        found = [(k, v) for k, v in node.value if k.value == key]
        if not found:
            break
        line, node = found[0][0].start_mark.line + 1, found[0][1]
    return line


def _explain(problem: Any) -> str:
    """One line for one pydantic error."""
    location = tuple(part for part in problem["loc"] if part != "function-after")
    name = ".".join(map(str, location))
    if problem["type"] == "extra_forbidden":
        model: Any = Params
        for part in location[:-1]:
            model = model.model_fields[part].annotation
        near = difflib.get_close_matches(str(location[-1]), _fields(model), 1, 0.5)
        return f"unknown key '{name}'" + (f"; did you mean '{near[0]}'?" if near else f"; known here: {', '.join(_fields(model))}")
    if problem["type"] == "missing":
        return f"key '{name}' is missing"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{name}: {message}" + ("" if problem["type"] == "value_error" else f", got {problem['input']!r}") if name else message


def _refuse_twice(node: Any, source: str) -> None:
    """YAML readers take the last of two equal keys without a word."""
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            if key.value in seen:
                raise ConfigError(
                    f"{source}:{key.start_mark.line + 1}: key '{key.value}' stands in line {seen[key.value]} already; keep one"
                )
            seen[key.value] = key.start_mark.line + 1
            _refuse_twice(value, source)


_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
_PLAIN_NUMBER = re.compile(r"[-+]?(0|[1-9]\d*|\d+\.\d*([eE][-+]\d+)?|\.\d+([eE][-+]\d+)?|\.(inf|nan))", re.IGNORECASE)


def _refuse_odd_numbers(node: Any, source: str) -> None:
    """Refuse numbers that readers of YAML take differently: `3e-3` is text to some, `010` is 8 or 10, `1:30` may be 90."""
    if isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            _refuse_odd_numbers(value, source)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_odd_numbers(value, source)
    elif isinstance(node, yaml.ScalarNode) and node.style is None:
        where = f"{source}:{node.start_mark.line + 1}: '{node.value}'"
        if node.tag.endswith((":int", ":float")) and not _PLAIN_NUMBER.fullmatch(node.value):
            raise ConfigError(f"{where} is read as another number by some readers of YAML; write it in plain digits, or in quotation marks")
        if node.tag.endswith(":str") and _EXPONENT.fullmatch(node.value):
            number = repr(float(node.value))
            right = number if "." in number else number.replace("e", ".0e")
            raise ConfigError(f"{where} is text in YAML 1.1, not a number; write {right}")


def parse(text: str, source: str = "params.yaml") -> Params:
    """Validate YAML text. Raises ConfigError: one line with file, line, key and remedy."""
    try:
        return _parse(text, source)
    except RecursionError:
        raise ConfigError(f"{source}: a value holds itself (by & and *) or is nested too deeply; write it out") from None


def _parse(text: str, source: str) -> Params:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{source}{where}: not valid YAML: {getattr(error, 'problem', None) or str(error).splitlines()[0]}") from None
    except ValueError as error:  # a date that is none
        raise ConfigError(f"{source}: not valid YAML: {error}; put quotation marks around what is no number and no date") from None
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    _refuse_twice(root, source)
    _refuse_odd_numbers(root, source)
    if not isinstance(value, dict):
        raise ConfigError(f"{source}: expected sections, got {type(value).__name__}")
    try:
        return Params.model_validate(value)
    except ValidationError as error:
        problems = sorted(error.errors(), key=lambda item: item["type"] != "extra_forbidden")
        rest = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ConfigError(f"{source}:{_line_of(text, problems[0]['loc'])}: {_explain(problems[0])}{rest}") from None


def load(path: str | Path = "params.yaml") -> Params:
    """Read and validate a params file. Raises ConfigError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; run this in the project's folder") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not valid UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; expected a params file") from None
    params = parse(text, str(path))
    folder = Path(path).parent

    def where(*key: str) -> str:
        return f"{path}:{_line_of(text, key)}: {'.'.join(key)}"

    _check_base(params.policy, folder, lambda key: where("policy", key))
    if params.prepare.source == "files":
        for key, name in params.prepare.files.model_dump().items():
            if not (folder / name).is_file():
                hint = "; write the path without '~'" if name.startswith("~") else ""
                raise ConfigError(f"{where('prepare', 'files', key)}: '{name}' is no file{hint}")
    return params


def _check_base(policy: Policy, folder: Path, where: Callable[[str], str]) -> None:
    """A base that is a folder must be the one that DVC watches: its path is all that DVC would see otherwise. Raises ConfigError."""
    local = (folder / policy.base).is_dir()
    if local and policy.watch != policy.base:
        raise ConfigError(
            f"{where('watch')}: is '{policy.watch}', but policy.base is the folder '{policy.base}'; write the same in both, so that DVC "
            "trains anew when the folder changes"
        )
    if not local and policy.base.startswith((".", "/", "~")):
        raise ConfigError(f"{where('base')}: '{policy.base}' is no folder; give a Hugging Face name, or a path without '~'")


if __name__ == "__main__":
    try:
        load(*sys.argv[1:2])
    except ConfigError as error:
        sys.exit(f"error: {error}")
