"""One-shot RAG: retrieve once with the question itself, read, answer. The baseline that a policy must beat.

It gets a fair budget: as many documents at once as the policy may fetch over all its searches, as far as the context has room. The
prompt is the same whatever the policy's protocol is, whose tags and turns this baseline has no use for: text that a base model can
complete, since it is the base model without training. It ends as a sentence begins: a model that was never shown the heading "The final
answer:" does not answer behind it (0% on the demo's dev questions, with the sentence 4 to 7%).

    The retrieval documents: [1] ... [2] ...
    The question: ...
    The answer is

With `prompt: chat` documents, question and a request for a short answer are the user's message, and the sentence begins the model's turn.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import torch

from r3flow.decoding import Decoder
from r3flow.environment import Environment
from r3flow.errors import ConfigError
from r3flow.evaluation.results import Result
from r3flow.params import Params, ProtocolParams
from r3flow.protocol import PROTOCOLS, Limits
from r3flow.tokens import Stops, TokenStream
from r3flow.trajectory import Hit, InvalidStep, Question, Step, Trajectory

ANALYSIS = "One-shot retrieval with the question as the query."
READ = "Read from all documents at once."
CUE = "The answer is"
REQUEST = "Answer the question from these documents in a few words.\n"
"""To a chat model alone, which would talk otherwise."""
_FORM = PROTOCOLS["r3rag"]

_END = re.compile(r"\n|(?<=\w{3})[.!?](?=\s|$)")
"""Where a completed answer ends: its line, or its sentence. A full stop behind one or two letters may be an initial ("J. R. Lee")."""


def budget(params: Params) -> int:
    """Documents that a policy may be shown: `top_k` at each step but the last, which has to answer, and `max_passages` at most."""
    fetched = params.retrieval.top_k * max(1, params.protocol.max_steps - 1)
    most = params.protocol.max_passages
    return fetched if most is None else min(fetched, most)


def build_prompt(stream: TokenStream, question: Question, hits: Sequence[Hit], settings: ProtocolParams) -> tuple[list[int], int]:
    """(ids that leave room for a turn, number of documents shown): the last-ranked documents go first where room is short.

    Each document is cut to `max_document_characters`; the limits of a step's block, of which this is several, have no part. Raises
    ConfigError if not even the question fits.
    """
    limit = settings.max_context_tokens - settings.max_turn_tokens
    passages = [hit.passage for hit in hits]

    def prompt(shown: int) -> list[int]:
        documents = _FORM.documents(passages[:shown], Limits(settings.max_document_characters)).text.lstrip("\n")
        request = REQUEST if settings.prompt == "chat" else ""
        return stream.begun_ids(f"{documents}{_FORM.prompt(question.question)}{request}", CUE)

    if len(ids := prompt(len(hits))) <= limit:
        return ids, len(hits)
    # the longest that fits, by halves: every text is tokenized anew, and each document makes it longer
    most = bisect_right(range(len(hits)), limit, key=lambda shown: len(prompt(shown))) - 1
    if most < 0:
        raise ConfigError(
            f"protocol.max_context_tokens: question '{question.id}' leaves no room for an answer of protocol.max_turn_tokens; raise the "
            "first"
        )
    return prompt(most), most


def answer_by_rag(model: Any, tokenizer: Any, environment: Environment, questions: Sequence[Question], params: Params) -> list[Result]:
    """One result a question, in order, greedy. As a trajectory: a search step with the question as query, then an answer step.

    `tokens` counts what was generated up to the end of the answer. Raises as the retriever does, and ConfigError.
    """
    protocol = params.protocol
    stream = TokenStream(tokenizer, _FORM, protocol.model_copy(update={"max_documents_tokens": None}))
    found = environment.retriever.search([question.question for question in questions], budget(params))
    prompts: list[list[int]] = []
    searches: list[Step] = []
    for question, hits in zip(questions, found, strict=True):
        ids, shown = build_prompt(stream, question, hits, protocol)
        prompts.append(ids)
        searches.append(Step(1, ANALYSIS, query=question.question, hits=tuple(hits[:shown])))
    # nothing behind the line's end is read
    decoder = Decoder(model, stream.eos, temperature=0, ended=Stops(tokenizer, ("\n",)).ended)
    with torch.no_grad():
        decoder.extend(dict(enumerate(prompts)), protocol.max_turn_tokens)
        turns = decoder.turn(dict.fromkeys(range(len(prompts)), protocol.max_turn_tokens))
    results = []
    for place, (question, search) in enumerate(zip(questions, searches, strict=True)):
        turn = turns[place]
        closed = turn.ids[-1] == stream.eos
        answer, used = read_answer(tokenizer, turn.ids[:-1] if closed else turn.ids)
        ended = used + 1 if closed and used == len(turn.ids) - 1 else used  # the end-of-text token was generated too
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
