"""Rollouts as R3-RAG's code makes them: one question at a time, and everything waits for the retriever and the judge.

Each step is a `generate` of its own over the whole text so far, with its key-value cache. `keep_cache` is the fastest that this shape
allows and no code of the papers does: one cache for all steps and a bare forward loop.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from transformers import DynamicCache

from r3flow.environment import Environment
from r3flow.errors import ConfigError
from r3flow.llm.judge import Judge, RelevanceItem, VerdictItem
from r3flow.matching import exact_match
from r3flow.params import ProtocolParams
from r3flow.protocol import PROTOCOLS
from r3flow.tokens import TokenStream
from r3flow.trajectory import FinishReason, InvalidStep, Question, Step, Trajectory


@torch.no_grad()
def rollout_single(
    model: Any,
    tokenizer: Any,
    environment: Environment,
    question: Question,
    params: ProtocolParams,
    judge: Judge | None = None,
    *,
    keep_cache: bool = False,
) -> tuple[list[int], Trajectory]:
    """Greedy; (completion ids, trajectory). With a judge each search is judged before the next step, and the answer at the end.

    Raises ConfigError for a setting that only the batched rollouts know.
    """
    _check(params)
    protocol = PROTOCOLS[params.name]
    text = TokenStream(tokenizer, protocol, params)
    prompt = text.prompt_ids(question.question)
    write = _Kept(model, text.eos) if keep_cache else _Generate(model, text.eos)
    stream = list(prompt)
    steps: list[Step | InvalidStep] = []
    finish: FinishReason | None = None
    while finish is None:
        start = len(stream)
        limit = min(start + params.max_turn_tokens, params.max_context_tokens)
        stream = write(stream, limit)
        complete = stream[-1] == text.eos
        written = stream[start : len(stream) - complete]
        raw = tokenizer.decode(written, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        step = protocol.parse(raw, len(steps) + 1, complete=complete)
        if isinstance(step, InvalidStep):
            finish = "malformed" if complete or limit == start + params.max_turn_tokens else "length"
        elif step.query is None:
            finish = "answered"
        elif len(steps) + 1 == params.max_steps:
            finish = "budget"
        else:
            (hits,) = environment.search([step.query])
            ids = text.documents_ids([hit.passage for hit in hits])
            if len(stream) + len(ids) >= params.max_context_tokens:
                finish = "length"
            else:
                stream += ids
                step = Step(step.number, step.analysis, query=step.query, hits=hits)
                if judge is not None and hits:
                    judge.relevance([RelevanceItem(question.question, tuple(s for s in steps if isinstance(s, Step)), step)])
        steps.append(step)
    trajectory = Trajectory(question, tuple(steps), finish)
    answer = trajectory.answer
    if judge is not None and answer is not None and not exact_match(answer, question.answers):
        judge.verdict([VerdictItem(question.question, question.answers, answer)])
    return stream[len(prompt) :], trajectory


def _check(params: ProtocolParams) -> None:
    """Two loops that do not do the same cannot be compared."""
    if PROTOCOLS[params.name].stops:
        raise ConfigError(f"protocol.name: {params.name} ends turns with tags; one question at a time is measured with name: r3rag alone")
    known = {"repeat_passages": True, "max_passages": None, "on_invalid": "stop", "search_at_limit": False}
    for key, value in known.items():
        if (given := getattr(params, key)) != value:
            shown, wanted = (json.dumps(item).strip('"') for item in (given, value))
            raise ConfigError(f"protocol.{key}: {shown} is not known to the loop of one question at a time; set {wanted} to measure it")


class _Generate:
    """A step by the library's `generate`."""

    def __init__(self, model: Any, eos: int) -> None:
        self.model, self.eos = model, eos

    def __call__(self, stream: list[int], limit: int) -> list[int]:
        ids = torch.tensor([stream], device=self.model.device)
        out = self.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=limit - len(stream),
            eos_token_id=self.eos, pad_token_id=self.eos,
        )  # fmt: skip
        written: list[int] = out[0].tolist()
        return written


class _Kept:
    """A step by a bare loop; the cache holds all of the stream but what came since."""

    def __init__(self, model: Any, eos: int) -> None:
        self.model, self.eos = model, eos
        self.cache, self.fed = DynamicCache(config=model.config), 0

    def __call__(self, stream: list[int], limit: int) -> list[int]:
        written = list(stream)
        while len(written) < limit and (len(written) == len(stream) or written[-1] != self.eos):
            ids = torch.tensor([written[self.fed :]], device=self.model.device)
            out = self.model(input_ids=ids, cache=self.cache, use_cache=True, logits_to_keep=1)
            self.fed = len(written)
            written.append(int(out.logits[0, -1].argmax()))
        return written
