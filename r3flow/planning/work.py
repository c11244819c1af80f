"""How much there is to do: questions, tokens, calls of teacher and judge with their price, optimizer updates. All are upper bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from r3flow.evaluation.systems import SYSTEMS
from r3flow.llm import wording
from r3flow.params import Endpoint, Params

TOKENS_PER_CHARACTER = 0.3
"""Of English text, the rule of thumb of DeepSeek's documentation (api-docs.deepseek.com, "Token & Token Usage", 2026)."""
PASSAGE_CHARACTERS = 700
"""Assumed of a passage of 100 words where the params set no lower limit."""
SHORT_CHARACTERS = 150
"""Assumed of a question, of all its gold answers together, of a prediction, of a query, and of a title, each."""


@dataclass(frozen=True, slots=True)
class Calls:
    """At most so many calls for one purpose, and what one of them holds at most, in tokens."""

    purpose: str
    calls: int
    input_tokens: int
    output_tokens: int

    def usd(self, endpoint: Endpoint) -> float:
        """At the params' prices, all input at the price of uncached input."""
        price = endpoint.price_usd_per_million
        return self.calls * (self.input_tokens * price.input + self.output_tokens * price.output) / 1e6


def tokens_of(characters: int) -> int:
    """Tokens of so many characters, rounded up."""
    return ceil(characters * TOKENS_PER_CHARACTER)


def documents_characters(params: Params) -> int:
    """Characters of the documents of one search, as they are shown."""
    protocol = params.protocol
    shown = params.retrieval.top_k * min(protocol.max_document_characters, PASSAGE_CHARACTERS)
    return shown if protocol.max_documents_characters is None else min(shown, protocol.max_documents_characters)


def trajectories(params: Params) -> int:
    """Rollouts of the whole `ppo` stage that are learned from."""
    return params.ppo.iterations * params.ppo.prompts * params.ppo.group


def dev_evaluations(params: Params) -> int:
    """How often `ppo` looks at the dev questions: before the first iteration, every `eval_every`, and after the last."""
    if not params.ppo.eval_questions:
        return 0
    return 1 + params.ppo.iterations // params.ppo.eval_every + (params.ppo.iterations % params.ppo.eval_every > 0)


def trajectory_tokens(params: Params) -> int:
    """What a policy may write in one trajectory: turns times their limit, and no more than fits behind a prompt of a token."""
    protocol = params.protocol
    return min(protocol.max_steps * protocol.max_turn_tokens, protocol.max_context_tokens - 1)


def questions(params: Params, counted: Mapping[str, int | None], split: str, wanted: int) -> int:
    """`wanted`, or as many as the split has where that is known."""
    there = counted.get(split)
    return wanted if there is None else min(wanted, there)


def generated(params: Params, counted: Mapping[str, int | None]) -> dict[str, int]:
    """Tokens that the policy may write, by stage."""
    each = trajectory_tokens(params)
    dev = questions(params, counted, "dev", params.ppo.eval_questions)
    test = questions(params, counted, "test", params.evaluate.questions)
    loops = sum(not system.one_shot for system in SYSTEMS.values())
    return {
        "rollouts": trajectories(params) * each,
        "dev_evaluation": dev_evaluations(params) * dev * each,
        "evaluate": test * (loops * each + (len(SYSTEMS) - loops) * params.protocol.max_turn_tokens),
    }


def updates(params: Params, counted: Mapping[str, int | None]) -> dict[str, int]:
    """Optimizer updates. SFT's is with every question accepted; that of `control` is as many tokens as PPO will have used: not known."""
    ppo, sft = params.ppo, params.sft
    return {
        "sft": ceil(sft.epochs * questions(params, counted, "train", params.synthesize.questions) / sft.batch_size),
        "ppo": ppo.iterations * ppo.epochs * (ppo.prompts * ppo.group // ppo.minibatch),
    }


def teacher_calls(params: Params, counted: Mapping[str, int | None]) -> list[Calls]:
    """Every question takes every attempt, every step and every format try. A prompt is that of the middle step."""
    return [_steps(params, counted, params.synthesize.attempts, params.teacher.max_tokens)]


def second_teacher_calls(params: Params, counted: Mapping[str, int | None]) -> list[Calls]:
    """The same, as if the first teacher failed every question; what the second thinks is no part of a prompt. None without one."""
    second = params.second_teacher
    return [] if second is None else [_steps(params, counted, second.attempts, second.max_tokens)]


def _steps(params: Params, counted: Mapping[str, int | None], attempts: int, limit: int) -> Calls:
    settings, steps = params.synthesize, params.protocol.max_steps
    asked = questions(params, counted, "train", settings.questions)
    step = params.teacher.max_tokens + tokens_of(documents_characters(params))
    prompt = tokens_of(len(wording.teacher("r3rag")) + SHORT_CHARACTERS) + ceil((steps - 1) * step / 2)
    return Calls("steps", asked * attempts * steps * settings.format_tries, prompt, limit)


def judge_calls(params: Params, counted: Mapping[str, int | None]) -> list[Calls]:
    """Every attempt, every rollout and every tested answer is judged where the params ask for a judge at all; nothing matches as text."""
    steps, limit = params.protocol.max_steps, params.judge.max_tokens
    verdict = tokens_of(len(wording.text("judge_answer")) + 3 * SHORT_CHARACTERS)
    found: list[Calls] = []
    if params.filter.judge:
        asked = questions(params, counted, "train", params.synthesize.questions)
        tries = params.synthesize.attempts + (params.second_teacher.attempts if params.second_teacher else 0)
        found.append(Calls("filter: verdicts", asked * tries, verdict, limit))
    if params.reward.process == "judge":
        searches = steps - 1 + params.protocol.search_at_limit
        seen = (steps - 1) * params.retrieval.top_k * SHORT_CHARACTERS // 2
        text = len(wording.text("judge_relevance")) + 2 * SHORT_CHARACTERS + seen + documents_characters(params)
        prompt = tokens_of(text) + params.protocol.max_turn_tokens
        found.append(Calls("ppo: relevance", trajectories(params) * searches, prompt, limit))
    if params.reward.verdict_needed:
        found.append(Calls("ppo: verdicts", trajectories(params), verdict, limit))
    if params.evaluate.judge:
        asked = questions(params, counted, "test", params.evaluate.questions)
        found.append(Calls("evaluate: verdicts", asked * len(SYSTEMS), verdict, limit))
    return found


def assumptions() -> list[str]:
    """What the price rests on, one line each."""
    return [
        "every question takes every attempt, step and format try; no search fails, no answer matches as text, nothing is in the ledger",
        f"{TOKENS_PER_CHARACTER} tokens a character (DeepSeek's rule for English), passages of {PASSAGE_CHARACTERS} characters at most",
        f"{SHORT_CHARACTERS} characters for a question, its answers, a prediction, a query and a title, each",
        "replies of max_tokens; all input at the price of uncached input, prompts of the middle step",
    ]
