"""Logits and hidden states at chosen positions of any Hugging Face causal language model, and nothing computed anywhere else.

The output head is the costly part of a small model and the memory of a large one. A hook hands it only the hidden states that predict
learned tokens; whatever the model does to its logits (scaling, soft caps) still happens, since that is element by element.
"""

from __future__ import annotations

from typing import Any

import torch

from r3flow.training.batch import Chunk


class Positions:
    """Reads a model at a chunk's positions. One object for each model; inactive while nothing is read, so generation is untouched."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._wanted: torch.Tensor | None = None
        self._head = True
        self._hidden: torch.Tensor | None = None
        self.handle = model.get_output_embeddings().register_forward_pre_hook(self._select)

    def _select(self, _: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        if self._wanted is None:
            return None
        flat = inputs[0].reshape(-1, inputs[0].shape[-1])
        self._hidden = flat.index_select(0, self._wanted)
        return (self._hidden if self._head else self._hidden[:0],)

    def read(self, chunk: Chunk, *, logits: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """(logits (M, V), hidden states (M, d)) that predict the chunk's learned tokens; no logits (0, V) if they are not wanted."""
        return self.read_at(chunk.ids, chunk.positions, logits=logits)

    def read_at(self, ids: torch.Tensor, positions: torch.Tensor, *, logits: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """The same for ids (B, T), padded on the right (a causal model needs no mask for that), at places (M,) of the flattened (B*T)."""
        device = next(self.model.parameters()).device
        self._wanted, self._head = positions.to(device), logits
        try:
            output = self.model(input_ids=ids.to(device), use_cache=False)
        finally:
            self._wanted = None
        hidden, self._hidden = self._hidden, None
        assert hidden is not None, "the model did not use its output head"
        return output.logits, hidden
