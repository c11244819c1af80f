"""The losses of PPO and GRPO as pure functions over learned tokens: every argument is (M,), one entry a token, nothing is masked here.

`k1`, `k2` and `k3` are Schulman's estimators ("Approximating KL divergence", 2020), from tokens that the policy sampled.
"""

from __future__ import annotations

from collections.abc import Callable

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
    """Estimator k1 of KL(policy || reference), (M,): the log ratio. Unbiased; for the reward, where no gradient passes: in the
    loss its gradient is zero on average.
    """
    return log_probs - reference


def k2(log_probs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Estimator k2 of KL(policy || reference), (M,): half the square of the log ratio. A little biased; the gradient of its mean is that
    of the divergence itself, which k3's is not.
    """
    return 0.5 * (log_probs - reference).square()


def k3(log_probs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Estimator k3 of KL(policy || reference), (M,): unbiased, never negative, small variance."""
    ratio = reference - log_probs
    return ratio.exp() - ratio - 1


ESTIMATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
