"""A rollout batch as tensors: which tokens are learned, what each of them earned, and how to cut the batch into forward passes.

*Learned* tokens are the ones that the losses see: the policy's own, or with `mask_retrieved: false` the environment's too. Everything a
token has (old log-probability, reward, value, advantage) lies in flat tensors over the learned tokens of all trajectories, in order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from r3flow.rollout import Rollout

CHUNK_TOKENS = {"cpu": 2560}
"""Padded tokens of one forward pass; the gradient does not depend on it, time and memory do (measured on two cores)."""
CHUNK_TOKENS_ACCELERATOR = 16_384


@dataclass(frozen=True, slots=True)
class Chunk:
    """Trajectories of one forward pass, padded on the right. A causal model needs no attention mask for that."""

    ids: torch.Tensor
    """(B, T) token ids, the last token of each trajectory left out: nothing is predicted from it."""
    positions: torch.Tensor
    """(M,) places in the flattened (B*T) of the hidden states that predict the learned tokens."""
    targets: torch.Tensor
    """(M,) the learned tokens themselves."""
    flat: torch.Tensor
    """(M,) their places in the batch's flat tensors."""


class Batch:
    """Trajectories with known rewards. Flat tensors are (M,) over learned tokens; `offsets` (B+1) says where each trajectory's begin."""

    def __init__(
        self, rollouts: Sequence[Rollout], rewards: Sequence[Sequence[float]], groups: Sequence[int], *, mask_retrieved: bool
    ) -> None:
        """`rewards[i]` has one number for each step of `rollouts[i]`. Raises ValueError if masks, step ends and rewards do not fit."""
        self.ids: list[torch.Tensor] = []
        self.learned: list[torch.Tensor] = []
        self.offsets = [0]
        self.groups = torch.tensor(groups)
        old: list[float] = []
        earned: list[float] = []
        ends: list[bool] = []
        own: list[bool] = []
        for rollout, steps in zip(rollouts, rewards, strict=True):
            _check(rollout, steps)
            by_place = dict(zip(rollout.step_ends, steps, strict=True))
            start = len(rollout.prompt_ids)
            places = [place for place, mine in enumerate(rollout.mask) if mine or not mask_retrieved]
            self.ids.append(torch.tensor(rollout.prompt_ids + rollout.completion_ids))
            self.learned.append(torch.tensor(places) + start)
            self.offsets.append(self.offsets[-1] + len(places))
            old += [rollout.logprobs[place] for place in places]
            earned += [by_place.get(place, 0.0) for place in places]
            ends += [place in by_place for place in places]
            own += [bool(rollout.mask[place]) for place in places]
        self.old = torch.tensor(old)
        self.rewards = torch.tensor(earned)
        self.step_end = torch.tensor(ends)
        self.own = torch.tensor(own)
        """Written by the policy: always all true with `mask_retrieved: true`."""
        empty = torch.zeros_like(self.old)
        self.reference, self.values, self.advantages, self.returns = empty, empty, empty, empty

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> int:
        """All tokens of all trajectories: prompts, the policy's and the environment's."""
        return sum(len(ids) for ids in self.ids)

    def padded(self, flat: torch.Tensor) -> torch.Tensor:
        """A flat tensor (M,) as rows (B, N), zeros (False) on the right."""
        return torch.nn.utils.rnn.pad_sequence(list(flat.split(self.counts)), batch_first=True)

    def flattened(self, rows: torch.Tensor) -> torch.Tensor:
        """The inverse of `padded`."""
        return rows[self.padded(torch.ones(self.offsets[-1], dtype=torch.bool))]

    @property
    def counts(self) -> list[int]:
        """Learned tokens of each trajectory."""
        return [end - start for start, end in zip(self.offsets, self.offsets[1:], strict=False)]

    def chunk(self, rows: Sequence[int]) -> Chunk:
        """One forward pass over these trajectories."""
        width = max(len(self.ids[row]) for row in rows) - 1
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        for place, row in enumerate(rows):
            ids[place, : len(self.ids[row]) - 1] = self.ids[row][:-1]
        positions = torch.cat([self.learned[row] - 1 + place * width for place, row in enumerate(rows)])
        targets = torch.cat([self.ids[row][self.learned[row]] for row in rows])
        flat = torch.cat([torch.arange(self.offsets[row], self.offsets[row + 1]) for row in rows])
        return Chunk(ids, positions, targets, flat)

    def chunks(self, rows: Sequence[int], device: str = "cpu") -> Iterator[Chunk]:
        """These trajectories in passes of like length, each of at most a set number of padded tokens (one trajectory at least)."""
        limit = CHUNK_TOKENS.get(device, CHUNK_TOKENS_ACCELERATOR)
        waiting: list[int] = []
        for row in sorted(rows, key=lambda row: (len(self.ids[row]), row)):
            if waiting and (len(waiting) + 1) * len(self.ids[row]) > limit:
                yield self.chunk(waiting)
                waiting = []
            waiting.append(row)
        if waiting:
            yield self.chunk(waiting)

    def minibatches(self, count: int, seed: int) -> list[list[int]]:
        """All trajectories once, shuffled, dealt to `count` optimizer steps whose sizes differ by one at most."""
        rows = list(range(len(self)))
        random.Random(seed).shuffle(rows)
        return [rows[place::count] for place in range(count)]


def _check(rollout: Rollout, steps: Sequence[float]) -> None:
    size = len(rollout.completion_ids)
    name = rollout.trajectory.question.id
    if not rollout.prompt_ids or not (len(rollout.mask) == len(rollout.logprobs) == size):
        raise ValueError(f"rollout of '{name}': {size} tokens, {len(rollout.mask)} mask entries, {len(rollout.logprobs)} log-probabilities")
    if not (len(steps) == len(rollout.step_ends) == len(rollout.trajectory.steps)):
        raise ValueError(f"rollout of '{name}': {len(rollout.trajectory.steps)} steps, {len(rollout.step_ends)} ends, {len(steps)} rewards")
    if any(not 0 <= end < size or not rollout.mask[end] for end in rollout.step_ends):
        raise ValueError(f"rollout of '{name}': a step does not end on a policy token")
    if any(one >= other for one, other in zip(rollout.step_ends, rollout.step_ends[1:], strict=False)):
        raise ValueError(f"rollout of '{name}': step ends are not in order")
    if not rollout.step_ends or any(rollout.mask[rollout.step_ends[-1] + 1 :]):
        raise ValueError(f"rollout of '{name}': policy tokens behind the last step's end")
