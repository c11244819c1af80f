"""PPO (Schulman et al. 2017) with R3-RAG's credit: per-step rewards, a critic, masked GAE."""

from __future__ import annotations

import torch

from r3flow.training import losses
from r3flow.training.batch import Batch, Chunk
from r3flow.training.gae import gae, whiten
from r3flow.training.trainer import SearchRolloutTrainer


class PPOTrainer(SearchRolloutTrainer):
    """`credit: trajectory` lets GAE run from step to step; `credit: step` cuts it there, which is R3-RAG's credit in one sequence."""

    def assign_credit(self, batch: Batch) -> dict[str, float]:
        settings = self.settings
        rewards = batch.rewards
        if settings.kl == "reward":
            rewards = rewards - settings.kl_coefficient * self.kl_estimate(batch.old, batch.reference)
        cut = batch.step_end if settings.credit == "step" else torch.zeros_like(batch.step_end)
        mask = batch.padded(torch.ones_like(batch.step_end))
        advantages, returns = gae(
            batch.padded(rewards), batch.padded(batch.values), mask, batch.padded(cut), settings.gamma, settings.lam
        )  # fmt: skip
        batch.advantages, batch.returns = whiten(advantages[mask]), returns[mask]
        variance = batch.returns.var(correction=0)
        explained = 1 - (batch.returns - batch.values).var(correction=0) / variance if variance > 0 else torch.zeros(())
        return {"explained_variance": float(explained), "value": float(batch.values.mean()), "return": float(batch.returns.mean())}

    def value_loss(self, batch: Batch, chunk: Chunk, hidden: torch.Tensor) -> torch.Tensor:
        assert self.critic is not None
        if self.iteration <= self.settings.critic_warmup_iterations:
            # a head that knows nothing yet must not pull at the policy's trunk
            hidden = hidden.detach()
        values = self.critic.values(chunk, hidden)
        old, returns = self._of(batch.values, chunk, values), self._of(batch.returns, chunk, values)
        return losses.value_loss(values, old, returns, self.settings.value_clip).sum()
