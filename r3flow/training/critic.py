"""The critic: a value for each learned token, by a head on the policy's trunk or by a model of its own.

A critic stands outside the policy's module, so that it is in none of the policy's files; its parameters are a group of their own in the
optimizer, and `trainer` clips, zeroes, saves and loads them.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from r3flow.errors import DataError
from r3flow.training.batch import Chunk

WEIGHTS = "critic.safetensors"


def _linear(width: int) -> torch.nn.Linear:
    """A head that says 0 everywhere until it is trained: then the first advantages are the rewards, not noise."""
    head = torch.nn.Linear(width, 1)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head


class Critic(torch.nn.Module):
    """Values (M,) of the states before a chunk's learned tokens."""

    on_trunk = False
    """Whether it reads the policy's hidden states."""

    def values(self, chunk: Chunk, hidden: torch.Tensor | None) -> torch.Tensor:
        raise NotImplementedError

    def save(self, folder: str | Path) -> None:
        """Write `critic.safetensors` into `folder`."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        save_file({name: value.detach().contiguous() for name, value in self.state_dict().items()}, Path(folder) / WEIGHTS)

    def load(self, folder: str | Path) -> None:
        """Read what `save` wrote. Raises DataError if it is not there or is another critic's."""
        path = Path(folder) / WEIGHTS
        if not path.is_file():
            raise DataError(f"{path}: no such file; remove the checkpoint {Path(folder).parent} and run again")
        try:
            self.load_state_dict(load_file(path))
        except RuntimeError as error:
            raise DataError(f"{path}: does not fit ppo.critic: {str(error).splitlines()[0]}") from None


class HeadCritic(Critic):
    """One linear layer on the policy's last hidden states (`critic: head`)."""

    on_trunk = True

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.head = _linear(policy.get_output_embeddings().weight.shape[1])

    def values(self, chunk: Chunk, hidden: torch.Tensor | None) -> torch.Tensor:
        assert hidden is not None
        result: torch.Tensor = self.head(hidden.float()).squeeze(-1)
        return result


class ModelCritic(Critic):
    """A copy of the policy's trunk with a head of its own, trained at its own rate (R3-RAG, Search-R1: `critic: model`)."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.trunk = copy.deepcopy(policy.base_model)
        self.head = _linear(policy.get_output_embeddings().weight.shape[1])

    def values(self, chunk: Chunk, hidden: torch.Tensor | None) -> torch.Tensor:
        device = self.head.weight.device
        states = self.trunk(input_ids=chunk.ids.to(device), use_cache=False).last_hidden_state
        flat = states.reshape(-1, states.shape[-1]).index_select(0, chunk.positions.to(device))
        result: torch.Tensor = self.head(flat.float()).squeeze(-1)
        return result


def build_critic(kind: str, policy: Any) -> Critic:
    """`head` or `model`. Build it before a trainer patches the policy's forward."""
    critic = HeadCritic(policy) if kind == "head" else ModelCritic(policy)
    return critic.to(next(policy.parameters()).device)
