"""The losses of PPO and GRPO as pure functions over learned tokens: every argument is (M,), one entry a token, nothing is masked here."""

from __future__ import annotations

import torch


def token_log_probs(logits: torch.Tensor, targets: torch.Tensor, temperature: float) -> torch.Tensor:
    """log pi(target) (M,) at `temperature`, the one that the rollout sampled with. `logits` (M, V) in any precision."""
    return -torch.nn.functional.cross_entropy(logits.float() / temperature, targets, reduction="none")


def token_entropy(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Entropy (M,) in nats of the distribution that is sampled from. `logits` (M, V)."""
    log_probs = torch.log_softmax(logits.float() / temperature, dim=-1)
    return -(log_probs.exp() * log_probs).sum(-1)


def clipped_policy_loss(new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, clip: float) -> torch.Tensor:
    """PPO's clipped surrogate (Schulman et al. 2017, equation 7), negated, (M,). `new` and `old` are log-probabilities."""
    ratio = (new - old).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def value_loss(values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, clip: float | None) -> torch.Tensor:
    """Half the squared error (M,); with `clip`, the worse of the prediction and the prediction kept within `clip` of the old one."""
    loss = (values - returns).square()
    if clip is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        loss = torch.maximum(loss, (near - returns).square())
    return 0.5 * loss


def k1(log_probs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Estimator k1 of KL(policy || reference), (M,): the log ratio. Unbiased; used in the reward, where no gradient passes."""
    return log_probs - reference


def k3(log_probs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Estimator k3 of KL(policy || reference), (M,): never negative, small variance; used in the loss."""
    ratio = reference - log_probs
    return ratio.exp() - ratio - 1
