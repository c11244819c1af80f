"""Many token streams behind one causal language model: append a block to each, then let each write a turn, again and again.

A stream is computed as it would be alone, whatever else is in the batch, with sliding windows and learned positions too (see
`ragged_cache`). Rows that still write are kept in front, so that rows which wait for them cost nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import get_layer_types_and_kwargs

from r3flow.drafts import Drafts
from r3flow.errors import ConfigError
from r3flow.ragged_cache import RaggedCache

_SUPPORTED = ("full_attention", "sliding_attention", "chunked_attention")
_BLOCK_TOKENS = {"cpu": 2048}
"""Tokens of one block forward. On a CPU small enough for its caches (measured: 2,048 beats 8,192 by a tenth)."""
_BLOCK_TOKENS_ACCELERATOR = 16_384
_IDLE_PART = 16
"""Rows that ended their turn are moved behind the others when there is more than one in this many: a move has a fixed cost."""
_DRAFT, _DRAFT_PARAMETERS = 1, 10_000_000
"""Tokens guessed ahead, on a CPU and for a model of at most so many parameters: there a pass is bound by reading the cache and by its many
small operations, which a guess shares. Measured with the demo's policy (docs/LOG.md): one saves a fifth, two and three less."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one stream wrote: ids (the end-of-text token last, if it came), and the log-probability of each."""

    ids: list[int]
    logprobs: list[float]
    complete: bool
    """Whether the end-of-text token, or what else ends a turn, came within the limit."""


@dataclass(slots=True)
class _Row:
    """A stream while it writes a turn."""

    stream: int
    limit: int
    slot: int
    """Where in the cache the token chosen next will lie."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    draft: list[int] = field(default_factory=list)
    """What was guessed behind `ids`, and is in the cache behind it."""
    uniforms: np.ndarray | None = None
    open: bool = True
    complete: bool = False


class Decoder:
    """Streams are named by whole numbers. `extend` appends ids to them, `turn` lets them write. Greedy at temperature 0.

    `ended` tells from a turn's ids so far whether something else than end-of-text has ended it. Log-probabilities are those of the
    distribution that was sampled from, at `temperature`; greedy ones are at temperature 1. `draft` tokens are guessed ahead in each pass
    (`drafts`), None for what suits the model; it changes the speed alone. Raises ConfigError for a model whose attention
    cannot be laid out this way.
    """

    def __init__(
        self, model: Any, eos: int, *, temperature: float, ended: Callable[[Sequence[int]], bool] | None = None, draft: int | None = None
    ) -> None:
        if temperature < 0:
            raise ConfigError(f"temperature must be 0 or more, got {temperature}")
        self.model, self.eos, self.temperature = model, eos, temperature
        self._ended = ended
        accepted = inspect.signature(model.forward).parameters
        kinds = _attention_kinds(model, accepted)
        self._kinds = set(kinds)
        self._options: dict[str, Any] = {"use_cache": True, "return_dict": True}
        self._keeps = "logits_to_keep" in accepted
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        self._cache = RaggedCache(len(kinds))
        self._order: list[int] = []  # the stream in each row
        self._lengths: dict[int, int] = {}  # tokens in the cache
        self._pending: dict[int, list[int]] = {}  # chosen, not yet in the cache
        self._logits: torch.Tensor | None = None  # (rows, vocabulary), of the next token
        self._room = 0
        self._drafts = Drafts()
        self._draft = _draft_tokens(model) if draft is None else draft

    def extend(self, blocks: Mapping[int, Sequence[int]], room: int) -> None:
        """Append `blocks[stream]` (not empty) to each stream; a stream that is not named is dropped, a new one begins.

        New ones may only begin in the first call. `room` is how many tokens the next turn may write.
        """
        whole = {stream: [*self._pending.get(stream, ()), *ids] for stream, ids in blocks.items()}
        # rows of like length lie side by side, so that little of a chunk is padding
        order = sorted(whole, key=lambda stream: (-len(whole[stream]), stream))
        start = {stream: self._lengths.get(stream, 0) for stream in order}
        self._resize(order, max(start.values()), max(start[stream] + len(whole[stream]) for stream in order) + room)
        budget = _BLOCK_TOKENS.get(self.model.device.type, _BLOCK_TOKENS_ACCELERATOR)
        logits, first = [], 0
        while first < len(order):
            longest = len(whole[order[first]])
            chunk = order[first : first + max(1, budget // longest)]
            logits.append(self._forward_block(first, [whole[stream] for stream in chunk], [start[stream] for stream in chunk])[:, 0])
            first += len(chunk)
        self._logits = torch.cat(logits)
        if self._draft:
            for stream, ids in blocks.items():
                self._drafts.read(stream, ids)
        self._lengths = {stream: start[stream] + len(whole[stream]) for stream in order}
        self._pending, self._room = {}, room

    def turn(self, limits: Mapping[int, int], uniforms: Mapping[int, Sequence[float] | np.ndarray] | None = None) -> dict[int, Turn]:
        """Every stream writes until its end-of-text token or until it has `limits[stream]` (at least 1) tokens.

        `uniforms[stream]` holds a number in [0, 1) for each token that it may write (unused when greedy): the token is the inverse of
        the cumulative distribution there, so a stream's text depends on its own numbers alone.
        """
        if self._logits is None or max(limits.values()) > self._room:
            raise RuntimeError("a turn follows an extend that leaves enough room")
        logits = self._logits[:, None]
        rows = [_Row(stream, limits[stream], self._lengths[stream]) for stream in self._order]
        if self.temperature > 0:
            assert uniforms is not None
            for row in rows:
                row.uniforms = np.asarray(uniforms[row.stream][: row.limit], dtype=np.float32)
        running = len(rows)
        while True:
            chosen, logprobs = _choose(logits, self.temperature, _uniforms(rows[:running], logits.shape[1]))
            for row, tokens, values in zip(rows[:running], chosen.tolist(), logprobs.tolist(), strict=True):
                if row.open:
                    self._take(row, tokens, values)
            count = sum(row.open for row in rows[:running])
            if not count:
                break
            if running - count > running // _IDLE_PART:
                self._to_front(rows, count, running)
                running = count
            for row in rows[:running]:
                # no further than the limit: a draft behind it would need positions that the model may not have
                most = min(self._draft, row.limit - len(row.ids) - 1) if row.open else 0
                row.draft = self._drafts.propose(row.stream, most) if most else []
            # a row that has ended goes on writing into the slot of its last token, which the next block writes anew
            blocks = [[row.ids[-1], *row.draft] for row in rows[:running]]
            logits = self._forward_block(0, blocks, [row.slot - 1 for row in rows[:running]], max(map(len, blocks)))
        self._logits = None
        for row in rows:
            self._lengths[row.stream] += len(row.ids) - 1
            self._pending[row.stream] = row.ids[-1:]
        return {row.stream: Turn(row.ids, row.logprobs, row.complete) for row in rows}

    def _take(self, row: _Row, tokens: Sequence[int], values: Sequence[float]) -> None:
        """What the model chose behind the row's last token and behind each token of its draft: one more than it confirms of the draft."""
        first = len(tokens) - 1 - len(row.draft)
        for ahead, guess in enumerate([*row.draft, None]):
            token = tokens[first + ahead]
            row.ids.append(token)
            row.logprobs.append(values[first + ahead])
            row.slot += 1
            if self._draft:
                self._drafts.wrote(row.stream, token)
            row.complete = token == self.eos or (self._ended is not None and self._ended(row.ids))
            row.open = not row.complete and len(row.ids) < row.limit
            if not row.open or token != guess:
                break

    def _to_front(self, rows: list[_Row], count: int, running: int) -> None:
        """Exchange rows so that the `count` that are open come first of those that are running."""
        idle = [place for place in range(count) if not rows[place].open]
        late = [place for place in range(count, running) if rows[place].open]
        pairs = list(zip(idle, late, strict=True))
        for one, other in pairs:
            rows[one], rows[other] = rows[other], rows[one]
        self._cache.swap(pairs, max(row.slot for row in rows))
        self._order = [row.stream for row in rows]

    def _resize(self, order: list[int], width: int, capacity: int) -> None:
        """Lay the streams out in this order, of `width` tokens at most now, each with room for `capacity`."""
        place = {stream: row for row, stream in enumerate(self._order)}
        rows = torch.tensor([place[stream] for stream in order], device=self.model.device) if place else None
        self._cache.resize(rows, len(order), capacity, width)
        self._order = order

    def _forward_block(self, first: int, blocks: list[list[int]], starts: list[int], keep: int = 1) -> torch.Tensor:
        """Write `blocks[i]` behind the `starts[i]` tokens of row `first + i`; (rows, keep, vocabulary) logits behind the last tokens."""
        device, longest = self.model.device, max(map(len, blocks))
        # padding stands in front, so that the last column is every row's last token; it repeats the block's first token at that token's
        # own position, and so writes what is written there anyway
        ids = torch.tensor([block[:1] * (longest - len(block)) + block for block in blocks], device=device)
        padding = torch.tensor([longest - len(block) for block in blocks], device=device)[:, None]
        positions = torch.tensor(starts, device=device)[:, None] + (torch.arange(longest, device=device) - padding).clamp(min=0)
        return self._forward(first, ids, positions, max(start + len(block) for start, block in zip(starts, blocks, strict=True)), keep)

    def _forward(self, first: int, ids: torch.Tensor, positions: torch.Tensor, width: int, keep: int) -> torch.Tensor:
        """One pass over `ids` (rows, T) of the rows from `first`; (rows, keep, vocabulary) logits of the last columns, in float32."""
        self._cache.window.set(first, positions, width)
        masks = {kind: _bias(positions, width, kind, span, self.model.dtype) for kind, span in self._kinds}
        # models that mix kinds of attention take a mask for each by name, the others take the one
        mask = masks if len(masks) > 1 else next(iter(masks.values()))
        arguments: dict[str, Any] = {"input_ids": ids, "position_ids": positions, "attention_mask": mask, self._cache_name: self._cache}
        if self._keeps:
            arguments["logits_to_keep"] = keep
        return self.model(**arguments, **self._options).logits[:, -keep:].float()


def _draft_tokens(model: Any) -> int:
    small = sum(weight.numel() for weight in model.parameters()) <= _DRAFT_PARAMETERS
    return _DRAFT if small and model.device.type == "cpu" else 0


def _attention_kinds(model: Any, accepted: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The kind of attention of each layer and its span (0: everything before). Raises ConfigError for what cannot be laid out raggedly."""
    name, config = type(model).__name__, model.config.get_text_config(decoder=True)
    if "position_ids" not in accepted or getattr(config, "alibi", False):
        raise ConfigError(f"policy.base: {name} takes no position ids, which batched rollouts need; use another model")
    attention = model.config._attn_implementation
    if attention not in ("sdpa", "eager"):
        raise ConfigError(f"policy.base: attention '{attention}' cannot be used in rollouts; load the model with 'sdpa' or 'eager'")
    kinds = [(kind, options.get("sliding_window", 0)) for kind, options in zip(*get_layer_types_and_kwargs(config), strict=True)]
    unknown = sorted({kind for kind, _ in kinds} - set(_SUPPORTED))
    if unknown:
        raise ConfigError(
            f"policy.base: {name} has layers of kind '{unknown[0]}', which batched rollouts do not support; use another model"
        )
    if len(set(kinds)) > len({kind for kind, _ in kinds}):
        raise ConfigError(
            f"policy.base: {name} has layers of one kind with different spans, which batched rollouts do not support; use another model"
        )
    return kinds


def _bias(positions: torch.Tensor, width: int, kind: str, span: int, dtype: torch.dtype) -> torch.Tensor:
    """(rows, 1, T, width): what is added to attention scores. Slots are positions, so one comparison is causality and padding at once."""
    slots = torch.arange(width, device=positions.device)
    queries = positions[:, None, :, None]
    hidden = slots > queries
    if kind == "sliding_attention":
        hidden |= slots <= queries - span
    elif kind == "chunked_attention":
        hidden |= slots // span != queries // span
    return torch.zeros(hidden.shape, dtype=dtype, device=positions.device).masked_fill_(hidden, torch.finfo(dtype).min)


def _uniforms(rows: Sequence[_Row], columns: int) -> torch.Tensor | None:
    """(rows, columns): each row's own numbers for the tokens that its last columns choose; None when greedy."""
    if rows[0].uniforms is None:
        return None
    table = np.zeros((len(rows), columns), dtype=np.float32)
    for place, row in enumerate(rows):
        if row.open:
            assert row.uniforms is not None
            behind = 1 + len(row.draft)
            table[place, -behind:] = row.uniforms[len(row.ids) : len(row.ids) + behind]
    return torch.from_numpy(table)


def _choose(logits: torch.Tensor, temperature: float, uniform: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and log-probabilities, both of shape (...), from logits (..., vocabulary); greedy at temperature 0."""
    if temperature == 0:
        best, ids = logits.max(-1)
        return ids, best - logits.logsumexp(-1)
    assert uniform is not None
    probabilities = torch.softmax(logits / temperature, -1)
    cumulative = probabilities.cumsum(-1)
    # kept under the total, so that the first place above it exists and has a probability of its own
    target = uniform.to(logits.device).clamp(max=1 - 1e-6)[..., None] * cumulative[..., -1:]
    ids = (cumulative <= target).sum(-1)
    return ids, probabilities.gather(-1, ids[..., None])[..., 0].log()
