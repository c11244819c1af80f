"""A key-value cache in which every stream lies packed from slot 0 in a row of its own, so that a slot is a position.

No padding ever comes between two tokens of a stream: a mask of one comparison (slot <= position) is causality and the row's end at
once, and what an idle row writes behind its end stays hidden until a real token overwrites it. Written in place: a step copies nothing,
where the library's growing cache copies everything (at 128 rows and 250 tokens, 0.8 of 2.0 ms a layer).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

_HEADROOM = {"cpu": 2}
"""A store is made this many times as large as it has to be, for the next turns' tokens: on a CPU fresh memory is dear, not scarce."""


@dataclass
class Window:
    """Which part of the cache the running forward pass reads and writes; shared by all layers."""

    rows: slice = field(default_factory=lambda: slice(0, 0))
    positions: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    """(rows, T): where each new token goes. A place that is named twice is written twice, with the same."""
    width: int = 0
    """Slots 0 to width - 1 are read."""
    allocated: int = 0
    capacity: int = 0
    spare: torch.Tensor | None = None
    """A store that a layer has given up. Its memory is used again: fresh pages cost more than the copy."""
    _places: dict[int, torch.Tensor] = field(default_factory=dict)

    def set(self, first: int, positions: torch.Tensor, width: int) -> None:
        self.rows, self.positions, self.width = slice(first, first + len(positions)), positions, width
        self._places.clear()

    def store(self, size: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """A store of `like`'s type and device. It holds zeros or old entries: a masked slot must not hold a NaN, which would survive a
        weight of zero.
        """
        needed, spare, self.spare = math.prod(size), self.spare, None
        alike = spare is not None and (spare.dtype, spare.device) == (like.dtype, like.device)
        if spare is not None and alike and spare.untyped_storage().nbytes() >= needed * spare.itemsize:
            return spare.as_strided((needed,), (1,), 0).view(size)
        return like.new_zeros(needed * _HEADROOM.get(like.device.type, 1))[:needed].view(size)

    def places(self, heads: int) -> torch.Tensor:
        """(rows * heads * T,): the flat places of the new tokens in a store of shape (allocated, heads, capacity, ...)."""
        if heads not in self._places:
            row = torch.arange(self.rows.start, self.rows.stop, device=self.positions.device)[:, None, None]
            head = torch.arange(heads, device=self.positions.device)[None, :, None]
            self._places[heads] = ((row * heads + head) * self.capacity + self.positions[:, None, :]).flatten()
        return self._places[heads]


class RaggedLayer(CacheLayerMixin):
    """Keys and values of one layer, each (allocated, heads, capacity, head dimension), written in place."""

    is_sliding = False

    def __init__(self, window: Window) -> None:
        super().__init__()
        self.window = window

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        size = (self.window.allocated, key_states.shape[1], self.window.capacity)
        self.keys = self.window.store((*size, key_states.shape[-1]), key_states)
        self.values = self.window.store((*size, value_states.shape[-1]), value_states)
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        places = self.window.places(key_states.shape[1])
        seen = []
        for store, new in ((self.keys, key_states), (self.values, value_states)):
            assert store is not None
            store.view(-1, store.shape[-1]).index_copy_(0, places, new.reshape(-1, new.shape[-1]))
            seen.append(store[self.window.rows, :, : self.window.width])
        return seen[0], seen[1]

    def keep(self, rows: torch.Tensor, width: int) -> None:
        """Only `rows` remain, in that order, with `width` slots each; the stores get the window's new size."""
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = self.window.store((self.window.allocated, old.shape[1], self.window.capacity, old.shape[3]), old)
            torch.index_select(old[:, :, :width], 0, rows, out=new[:, :, :width])
            self.window.spare = old
            setattr(self, name, new)

    def swap(self, pairs: Sequence[tuple[int, int]], width: int) -> None:
        for store in (self.keys, self.values):
            assert store is not None
            for left, right in pairs:  # whole rows, one by one: a third of what indexing with two tensors takes
                one, other = store[left, :, :width], store[right, :, :width]
                kept = one.clone()
                one.copy_(other)
                other.copy_(kept)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.window.width, 0

    def get_seq_length(self) -> int:
        return max(0, self.window.width - self.window.positions.shape[-1])

    def get_max_length(self) -> int:
        return -1


class RaggedCache(Cache):
    """One `RaggedLayer` a layer of the model, all behind one window."""

    def __init__(self, layers: int) -> None:
        self.window = Window()
        self.ragged = [RaggedLayer(self.window) for _ in range(layers)]
        super().__init__(layers=list(self.ragged))

    def resize(self, rows: torch.Tensor | None, allocated: int, capacity: int, width: int) -> None:
        """Keep only `rows` (long tensor; None before the first pass), in that order, with their first `width` slots."""
        self.window.allocated, self.window.capacity = allocated, capacity
        if rows is not None:
            for layer in self.ragged:
                layer.keep(rows, width)

    def swap(self, pairs: Sequence[tuple[int, int]], width: int) -> None:
        """Exchange the first `width` slots of the two rows of each pair."""
        for layer in self.ragged:
            layer.swap(pairs, width)
