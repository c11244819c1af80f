"""GRPO (Shao et al. 2024) and leave-one-out (Ahmadian et al. 2024): no critic, a trajectory's return against those of the same
question's other rollouts.
"""

from __future__ import annotations

import torch

from r3flow.training.batch import Batch
from r3flow.training.gae import group_advantages
from r3flow.training.trainer import SearchRolloutTrainer


class GroupTrainer(SearchRolloutTrainer):
    """Every learned token of a trajectory has its advantage; `credit`, `gamma` and `lam` have no part. The loss is a mean over tokens.

    A trajectory whose group has no other known member gets advantage 0.
    """

    def assign_credit(self, batch: Batch) -> dict[str, float]:
        rewards = batch.rewards
        if self.settings.kl == "reward":
            rewards = rewards - self.settings.kl_coefficient * self.kl_estimate(batch.old, batch.reference)
        returns = torch.stack([part.sum() for part in rewards.split(batch.counts)])
        advantages, compared = group_advantages(
            returns, batch.groups, leave_one_out=self.settings.algorithm == "leave_one_out", scale=self.settings.group_scale
        )
        batch.advantages = (advantages * compared).repeat_interleave(torch.tensor(batch.counts))
        return {"groups_without_signal": float((advantages == 0).float().mean())}
