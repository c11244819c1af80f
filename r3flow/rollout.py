"""A policy and a retriever make trajectories: many questions at once, one key-value cache, one token stream a trajectory.

All questions that are not finished go in step: each writes one turn, the turns are parsed, the queries are searched as one batch, the
documents are appended as ids. What a policy wrote is decoded to be read by the parser, never to be encoded again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from r3flow.decoding import Decoder, Turn
from r3flow.environment import Environment
from r3flow.errors import ConfigError, EndpointError, EndpointRefusedError
from r3flow.params import ProtocolParams
from r3flow.progress import Reporter, Silent
from r3flow.protocol import PROTOCOLS
from r3flow.tokens import Stops, TokenStream
from r3flow.trajectory import FinishReason, Hit, InvalidStep, Question, Step, Trajectory


@dataclass(frozen=True, slots=True)
class Rollout:
    """A trajectory and its token stream. `mask`, `logprobs` and `completion_ids` have one length, at least 1."""

    trajectory: Trajectory
    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[int]
    """1 where the policy wrote the token, 0 where the environment did."""
    logprobs: list[float]
    """Natural logarithms at the sampling temperature (greedy: at 1); 0.0 where the mask is 0."""
    step_ends: list[int]
    """For each step, the place in `completion_ids` of its last policy token: the one that ended the turn, or the last before a cut."""


@dataclass
class _Stream:
    """A rollout under way."""

    question: Question
    prompt_ids: list[int]
    uniforms: np.random.Generator
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    step_ends: list[int] = field(default_factory=list)
    steps: list[Step | InvalidStep] = field(default_factory=list)
    finish: FinishReason | None = None

    @property
    def size(self) -> int:
        return len(self.prompt_ids) + len(self.ids)

    @property
    def query(self) -> str:
        """The last step's query; AssertionError if it has none."""
        step = self.steps[-1]
        assert isinstance(step, Step) and step.query is not None
        return step.query

    def append(self, ids: Sequence[int], logprobs: Sequence[float], mask: int) -> None:
        self.ids += ids
        self.logprobs += logprobs
        self.mask += [mask] * len(ids)

    def found(self, hits: tuple[Hit, ...]) -> None:
        """What the environment brought for the last step's query."""
        step = self.steps[-1]
        assert isinstance(step, Step)
        self.steps[-1] = replace(step, hits=hits)

    def tell(self, ids: list[int]) -> None:
        """The environment speaks."""
        self.append(ids, [0.0] * len(ids), 0)

    def rollout(self) -> Rollout:
        assert self.finish is not None
        trajectory = Trajectory(self.question, tuple(self.steps), self.finish)
        return Rollout(trajectory, self.prompt_ids, self.ids, self.mask, self.logprobs, self.step_ends)


def generate_rollouts(
    model: Any,
    tokenizer: Any,
    environment: Environment,
    questions: Sequence[Question],
    params: ProtocolParams,
    *,
    temperature: float,
    seed: int,
    reporter: Reporter | None = None,
    on_step: Callable[[int, Step | InvalidStep], None] | None = None,
) -> list[Rollout]:
    """One rollout for each question, in their order; a question that stands there twice gets two.

    A rollout depends on `seed` and on its place in `questions`, not on the other questions. It ends with the first of: an answer
    (`answered`), a turn that is no step (`malformed`; with `on_invalid: feedback` the policy is told so and goes on), the turn number
    `max_steps` without an answer (`budget`; its query is kept, and with `search_at_limit` searched, but nobody reads what it brings), no
    room for another token in `max_context_tokens` (`length`), a retriever that failed after its retries (`failed`). Steps are numbered
    without the invalid ones. `on_step` is told of each step as soon as its documents are there, with its question's place. `reporter`
    hears of finished rollouts.

    Raises ConfigError for a tokenizer without end-of-text, a model or a context limit that cannot work, or a prompt that leaves no room;
    EndpointRefusedError if the retriever refuses for good.
    """
    protocol, reporter = PROTOCOLS[params.name], reporter or Silent()
    text = TokenStream(tokenizer, protocol, params)
    streams = [
        _Stream(question, text.prompt_ids(question.question), np.random.default_rng([seed, place]))
        for place, question in enumerate(questions)
    ]
    _check_sizes(model, streams, params)
    ended = Stops(tokenizer, protocol.stops).ended if protocol.stops else None
    decoder = Decoder(model, text.eos, temperature=temperature, ended=ended)
    blocks = {place: stream.prompt_ids for place, stream in enumerate(streams)}
    searches = 0
    with _inference(model):
        while blocks:
            limits = {place: min(params.max_turn_tokens, params.max_context_tokens - streams[place].size) for place in blocks}
            decoder.extend(blocks, max(limits.values()))
            uniforms = {place: streams[place].uniforms.random(params.max_turn_tokens) for place in blocks} if temperature > 0 else None
            _read(decoder.turn(limits, uniforms), streams, text, params)
            asking = [place for place in blocks if _searches(streams[place], params)]
            note = _search(environment, text, [streams[place] for place in asking], params.max_context_tokens)
            if on_step:
                for place in blocks:
                    on_step(place, streams[place].steps[-1])
            # what was shown last is what the cache lacks
            blocks = {place: _shown(streams[place]) for place in blocks if streams[place].finish is None}
            searches += len(asking)
            reporter.progress(len(streams) - len(blocks), len(streams), note or f"{searches} searches")
    return [stream.rollout() for stream in streams]


def _read(turns: Mapping[int, Turn], streams: Sequence[_Stream], text: TokenStream, params: ProtocolParams) -> None:
    """Append each turn to its stream, parse it, and say whether it ends the trajectory."""
    protocol, places = text.protocol, list(turns)
    written = [turn.ids[:-1] if turn.ids[-1] == text.eos else turn.ids for turn in turns.values()]
    texts = text.tokenizer.batch_decode(written, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    for place, raw in zip(places, texts, strict=True):
        stream, turn = streams[place], turns[place]
        stream.append(turn.ids, turn.logprobs, 1)
        stream.step_ends.append(len(stream.ids) - 1)
        number = 1 + sum(isinstance(step, Step) for step in stream.steps)
        step = protocol.parse(raw, number, complete=turn.complete)
        stream.steps.append(step)
        if isinstance(step, Step) and step.answer is not None:
            stream.finish = "answered"
        elif not turn.complete and len(turn.ids) < params.max_turn_tokens:
            stream.finish = "length"
        elif isinstance(step, InvalidStep) and params.on_invalid == "stop":
            stream.finish = "malformed"
        elif len(stream.steps) >= params.max_steps:
            stream.finish = "budget"
        elif isinstance(step, InvalidStep):
            _tell(stream, text.environment_ids(protocol.feedback(step), stream.ids[-1]), params.max_context_tokens)


def _tell(stream: _Stream, ids: list[int], max_context_tokens: int) -> bool:
    """Append what the environment says if there is room for it and a token more; else the trajectory ends."""
    if stream.size + len(ids) >= max_context_tokens:
        stream.finish = "length"
        return False
    stream.tell(ids)
    return True


def _searches(stream: _Stream, params: ProtocolParams) -> bool:
    """Whether the stream's last turn is a query that is to be searched."""
    step = stream.steps[-1]
    if not isinstance(step, Step) or step.query is None:
        return False
    return stream.finish is None or (stream.finish == "budget" and params.search_at_limit)


def _search(environment: Environment, text: TokenStream, streams: Sequence[_Stream], max_context_tokens: int) -> str:
    """Search the last queries as one batch and show the documents; returns a note if that failed."""
    if not streams:
        return ""
    try:
        found = environment.search([stream.query for stream in streams])
    except EndpointRefusedError:
        raise
    except EndpointError as error:
        for stream in streams:
            stream.finish = "failed"
        return f"retriever failed: {error}"
    for stream, all_hits in zip(streams, found, strict=True):
        hits = environment.shown(all_hits, stream.steps[:-1])
        block = text.documents_ids([hit.passage for hit in hits], stream.ids[-1])
        if stream.finish is not None or _tell(stream, block, max_context_tokens):
            stream.found(hits)
    return ""


def _shown(stream: _Stream) -> list[int]:
    """The environment's ids behind the last policy token."""
    return stream.ids[stream.step_ends[-1] + 1 :]


def _check_sizes(model: Any, streams: Sequence[_Stream], params: ProtocolParams) -> None:
    positions = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if positions is not None and params.max_context_tokens > positions:
        raise ConfigError(
            f"protocol.max_context_tokens: {params.max_context_tokens} is more than the policy's {positions} positions; lower it"
        )
    for stream in streams:
        if stream.size >= params.max_context_tokens:
            raise ConfigError(
                f"protocol.max_context_tokens: question '{stream.question.id}' alone has {stream.size} tokens, the limit is "
                f"{params.max_context_tokens}; raise it or shorten the question"
            )


@contextmanager
def _inference(model: Any) -> Iterator[None]:
    """Evaluation mode without gradients. Not `torch.inference_mode`: models with scaled positions keep buffers made in here, and
    training cannot use inference tensors; the speed is the same.
    """
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
