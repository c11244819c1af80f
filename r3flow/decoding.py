"""Many token streams behind one causal language model: append a block to each, then let each write a turn, again and again.

A stream is computed as it would be alone, whatever else is in the batch, with sliding windows and learned positions too (see
`ragged_cache`). Rows that still write are kept in front, so that rows which wait for them cost nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import get_layer_types_and_kwargs

from r3flow.errors import ConfigError
from r3flow.ragged_cache import RaggedCache

_SUPPORTED = ("full_attention", "sliding_attention", "chunked_attention")
_BLOCK_TOKENS = {"cpu": 2048}
"""Tokens of one block forward. On a CPU small enough for its caches (measured: 2,048 beats 8,192 by a tenth)."""
_BLOCK_TOKENS_ACCELERATOR = 16_384
_IDLE_PART = 16
"""Rows that ended their turn are moved behind the others when there is more than one in this many: a move has a fixed cost."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one stream wrote: ids (the end-of-text token last, if it came), and the log-probability of each."""

    ids: list[int]
    logprobs: list[float]
    complete: bool
    """Whether the end-of-text token, or what else ends a turn, came within the limit."""


class Decoder:
    """Streams are named by whole numbers. `extend` appends ids to them, `turn` lets them write. Greedy at temperature 0.

    `ended` tells from a turn's ids so far whether something else than end-of-text has ended it. Log-probabilities are those of the
    distribution that was sampled from, at `temperature`; greedy ones are at temperature 1. Raises ConfigError for a model whose attention
    cannot be laid out this way.
    """

    def __init__(self, model: Any, eos: int, *, temperature: float, ended: Callable[[Sequence[int]], bool] | None = None) -> None:
        if temperature < 0:
            raise ConfigError(f"temperature must be 0 or more, got {temperature}")
        self.model, self.eos, self.temperature = model, eos, temperature
        self._ended = ended
        accepted = inspect.signature(model.forward).parameters
        kinds = _attention_kinds(model, accepted)
        self._kinds = set(kinds)
        self._options: dict[str, Any] = {"use_cache": True, "return_dict": True}
        if "logits_to_keep" in accepted:
            self._options["logits_to_keep"] = 1
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        self._cache = RaggedCache(len(kinds))
        self._order: list[int] = []  # the stream in each row
        self._lengths: dict[int, int] = {}  # tokens in the cache
        self._pending: dict[int, list[int]] = {}  # chosen, not yet in the cache
        self._logits: torch.Tensor | None = None  # (rows, vocabulary), of the next token
        self._room = 0

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
            logits.append(self._forward_block(first, [whole[stream] for stream in chunk], [start[stream] for stream in chunk]))
            first += len(chunk)
        self._logits = torch.cat(logits)
        self._lengths = {stream: start[stream] + len(whole[stream]) for stream in order}
        self._pending, self._room = {}, room

    def turn(self, limits: Mapping[int, int], uniforms: Mapping[int, Sequence[float] | np.ndarray] | None = None) -> dict[int, Turn]:
        """Every stream writes until its end-of-text token or until it has `limits[stream]` (at least 1) tokens.

        `uniforms[stream]` holds a number in [0, 1) for each token that it may write (unused when greedy): the token is the inverse of
        the cumulative distribution there, so a stream's text depends on its own numbers alone.
        """
        if self._logits is None or max(limits.values()) > self._room:
            raise RuntimeError("a turn follows an extend that leaves enough room")
        device, rows, logits = self._logits.device, len(self._order), self._logits
        written: dict[int, tuple[list[int], list[float]]] = {stream: ([], []) for stream in self._order}
        writing, whole = [True] * rows, set[int]()
        ends = torch.tensor([self._lengths[stream] for stream in self._order], device=device)  # the slot of the token chosen next
        draws = None
        if self.temperature > 0:
            assert uniforms is not None
            table = np.zeros((rows, max(limits.values())), dtype=np.float32)
            for row, stream in enumerate(self._order):
                table[row, : limits[stream]] = uniforms[stream][: limits[stream]]
            draws = torch.from_numpy(table).to(device)
        for place in range(max(limits.values())):
            chosen, logprobs = _choose(logits, self.temperature, None if draws is None else draws[:rows, place])
            for row, (token, logprob) in enumerate(zip(chosen.tolist(), logprobs.tolist(), strict=True)):
                if writing[row]:
                    ids, values = written[self._order[row]]
                    ids.append(token)
                    values.append(logprob)
                    if token == self.eos or (self._ended is not None and self._ended(ids)):
                        whole.add(self._order[row])
                        writing[row] = False
                    elif len(ids) == limits[self._order[row]]:
                        writing[row] = False
            count = sum(writing)
            if not count:
                break
            chosen = chosen[:, None]
            if rows - count > rows // _IDLE_PART:
                chosen, ends, draws = self._to_front(writing, chosen, ends, draws)
                rows, writing = count, writing[:count]
                chosen = chosen[:rows]
            # a row that has ended goes on writing into the slot of its last token, which the next block writes anew
            logits = self._forward(0, chosen, ends[:rows, None], int(ends[:rows].max()) + 1)
            ends[:rows] += torch.tensor(writing, device=device, dtype=torch.long)
        self._logits = None
        for stream, (ids, _) in written.items():
            self._lengths[stream] += len(ids) - 1
            self._pending[stream] = ids[-1:]
        return {stream: Turn(ids, values, stream in whole) for stream, (ids, values) in written.items()}

    def _to_front(
        self, writing: list[bool], chosen: torch.Tensor, ends: torch.Tensor, draws: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Exchange rows so that those that are writing come first; returns the tensors by row in the new order."""
        count = sum(writing)
        idle = [row for row in range(count) if not writing[row]]
        late = [row for row in range(count, len(writing)) if writing[row]]
        order = list(range(len(self._order)))
        for one, other in zip(idle, late, strict=True):
            order[one], order[other] = other, one
        if idle:
            left, right = torch.tensor(idle, device=ends.device), torch.tensor(late, device=ends.device)
            self._cache.swap(left, right, int(ends.max()))
        self._order = [self._order[row] for row in order]
        writing[:] = [writing[row] for row in order[: len(writing)]]
        index = torch.tensor(order, device=ends.device)
        return chosen[index[: len(chosen)]], ends[index], None if draws is None else draws[index]

    def _resize(self, order: list[int], width: int, capacity: int) -> None:
        """Lay the streams out in this order, of `width` tokens at most now, each with room for `capacity`."""
        place = {stream: row for row, stream in enumerate(self._order)}
        rows = torch.tensor([place[stream] for stream in order], device=self.model.device) if place else None
        self._cache.resize(rows, len(order), capacity, width)
        self._order = order

    def _forward_block(self, first: int, blocks: list[list[int]], starts: list[int]) -> torch.Tensor:
        """Write `blocks[i]` behind the `starts[i]` tokens of row `first + i`; (rows, vocabulary) logits of what follows."""
        device, longest = self.model.device, max(map(len, blocks))
        # padding stands in front, so that the last column is every row's last token; it repeats the block's first token at that token's
        # own position, and so writes what is written there anyway
        ids = torch.tensor([block[:1] * (longest - len(block)) + block for block in blocks], device=device)
        padding = torch.tensor([longest - len(block) for block in blocks], device=device)[:, None]
        positions = torch.tensor(starts, device=device)[:, None] + (torch.arange(longest, device=device) - padding).clamp(min=0)
        return self._forward(first, ids, positions, max(start + len(block) for start, block in zip(starts, blocks, strict=True)))

    def _forward(self, first: int, ids: torch.Tensor, positions: torch.Tensor, width: int) -> torch.Tensor:
        """One pass over `ids` (rows, T) of the rows from `first`; (rows, vocabulary) logits after the last column, in float32."""
        self._cache.window.set(first, positions, width)
        masks = {kind: _bias(positions, width, kind, span, self.model.dtype) for kind, span in self._kinds}
        # models that mix kinds of attention take a mask for each by name, the others take the one
        mask = masks if len(masks) > 1 else next(iter(masks.values()))
        arguments = {"input_ids": ids, "position_ids": positions, "attention_mask": mask, self._cache_name: self._cache}
        return self.model(**arguments, **self._options).logits[:, -1].float()


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


def _choose(logits: torch.Tensor, temperature: float, uniform: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows,) ids and log-probabilities from (rows, vocabulary) logits; greedy at temperature 0."""
    if temperature == 0:
        best, ids = logits.max(-1)
        return ids, best - logits.logsumexp(-1)
    assert uniform is not None
    probabilities = torch.softmax(logits / temperature, -1)
    cumulative = probabilities.cumsum(-1)
    # kept under the total, so that the first place above it exists and has a probability of its own
    target = uniform.clamp(max=1 - 1e-6)[:, None] * cumulative[:, -1:]
    ids = (cumulative <= target).sum(-1)
    return ids, probabilities.gather(-1, ids[:, None])[:, 0].log()
