"""One-shot RAG: retrieve once with the question itself, read, answer. The baseline that a policy must beat.

It gets a fair budget: as many documents at once as the policy may fetch over all its searches, as far as the context has room. The
prompt is plain text that a base model can complete, since this baseline is the base model without training. It ends as a sentence begins:
a model that was never shown the protocol's heading "The final answer:" does not answer behind it (0% on the demo's dev questions, with
the sentence 4 to 7%).

    The retrieval documents: [1] ... [2] ...
    The question: ...
    The answer is
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from r3flow.decoding import Decoder
from r3flow.environment import Environment
from r3flow.errors import ConfigError
from r3flow.evaluation.results import Result
from r3flow.params import Params
from r3flow.protocol import PROTOCOLS
from r3flow.tokens import TokenStream
from r3flow.trajectory import Hit, InvalidStep, Question, Step, Trajectory

ANALYSIS = "One-shot retrieval with the question as the query."
READ = "Read from all documents at once."
CUE = "The answer is"

_END = re.compile(r"\n|(?<=\w{3})[.!?](?=\s|$)")
"""Where a completed answer ends: its line, or its sentence. A full stop behind one or two letters may be an initial ("J. R. Lee")."""


def budget(params: Params) -> int:
    """Documents that a policy may fetch: `top_k` at each step but the last, which has to answer."""
    return params.retrieval.top_k * max(1, params.protocol.max_steps - 1)


def build_prompt(
    stream: TokenStream, environment: Environment, question: Question, hits: Sequence[Hit], limit: int
) -> tuple[list[int], int]:
    """(ids of at most `limit` tokens, number of documents shown): the last-ranked documents go first where room is short.

    Raises ConfigError if not even the question fits.
    """
    for shown in range(len(hits), -1, -1):
        documents = environment.documents(tuple(hits[:shown])).lstrip("\n")
        text = f"{documents}{stream.protocol.prompt(question.question)}{CUE}"
        ids = stream.text_ids(text)
        if len(ids) <= limit:
            return ids, shown
    raise ConfigError(
        f"protocol.max_context_tokens: question '{question.id}' leaves no room for an answer of protocol.max_turn_tokens; raise the first"
    )


def answer_by_rag(model: Any, tokenizer: Any, environment: Environment, questions: Sequence[Question], params: Params) -> list[Result]:
    """One result a question, in order, greedy. As a trajectory: a search step with the question as query, then an answer step.

    `tokens` counts what was generated up to the end of the answer. Raises as the retriever does, and ConfigError.
    """
    protocol = params.protocol
    stream = TokenStream(tokenizer, PROTOCOLS[protocol.name])
    found = environment.retriever.search([question.question for question in questions], budget(params))
    prompts: list[list[int]] = []
    searches: list[Step] = []
    for question, hits in zip(questions, found, strict=True):
        ids, shown = build_prompt(stream, environment, question, hits, protocol.max_context_tokens - protocol.max_turn_tokens)
        prompts.append(ids)
        searches.append(Step(1, ANALYSIS, query=question.question, hits=tuple(hits[:shown])))
    decoder = Decoder(model, stream.eos, temperature=0)
    with torch.no_grad():
        decoder.extend(dict(enumerate(prompts)), protocol.max_turn_tokens)
        turns = decoder.turn(dict.fromkeys(range(len(prompts)), protocol.max_turn_tokens))
    results = []
    for place, (question, search) in enumerate(zip(questions, searches, strict=True)):
        turn = turns[place]
        answer, used = read_answer(tokenizer, turn.ids[:-1] if turn.complete else turn.ids)
        ended = used + 1 if turn.complete and used == len(turn.ids) - 1 else used  # the end-of-text token was generated too
        last = Step(2, READ, answer=answer) if answer else InvalidStep(2, "", "the completion begins with no answer")
        results.append(Result(Trajectory(question, (search, last), "answered" if answer else "malformed"), ended))
    return results


def read_answer(tokenizer: Any, ids: Sequence[int]) -> tuple[str, int]:
    """(the answer that the decoded ids begin with, how many ids it took, those of its line break or full stop included)."""

    def read(count: int) -> str:
        return str(tokenizer.decode(list(ids[:count]), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    text = read(len(ids))
    end = _END.search(text)
    if end is None:
        return text.strip(), len(ids)
    return text[: end.start()].strip(), next(count for count in range(1, len(ids) + 1) if len(read(count)) >= end.end())
