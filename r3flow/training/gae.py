"""Credit: from rewards on single tokens to an advantage for each token the policy wrote.

Everything here is laid out over *learned* tokens alone, rows of them in order, padded on the right: environment tokens are not skipped
by the recursion, they are not there at all.
"""

from __future__ import annotations

import torch


def gae(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, cut: torch.Tensor, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, equation 16); returns (advantages, returns), both (B, N), 0 on padding.

    `rewards`, `values` (B, N); `mask` (B, N) is True on tokens, all on the left; `cut` (B, N) is True on a token that no credit crosses:
    the last of each step with `credit: step`. The end of a row always cuts. Nothing is bootstrapped across a cut.
    """
    follows = torch.zeros_like(mask)
    follows[:, :-1] = mask[:, 1:] & ~cut[:, :-1]
    carry = follows.to(rewards.dtype)
    next_values = torch.zeros_like(values)
    next_values[:, :-1] = values[:, 1:]
    delta = (rewards + gamma * carry * next_values - values) * mask
    advantages = torch.zeros_like(delta)
    running = torch.zeros_like(delta[:, 0])
    for place in range(delta.shape[1] - 1, -1, -1):
        running = delta[:, place] + gamma * lam * carry[:, place] * running
        advantages[:, place] = running
    return advantages, (advantages + values) * mask


def whiten(values: torch.Tensor, epsilon: float = 1e-8) -> torch.Tensor:
    """Mean 0 and deviation 1 over all entries of `values` (M,): the learned tokens of a whole rollout batch and nothing else."""
    return (values - values.mean()) / (values.std(correction=0) + epsilon)


def group_advantages(
    returns: torch.Tensor, groups: torch.Tensor, *, leave_one_out: bool = False, scale: bool = True, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each trajectory's return against its group's: the mean, divided by the deviation (GRPO, Shao et al. 2024, section 4.1.2); without
    `scale` the mean alone (Liu et al. 2025); with `leave_one_out` the mean of the others alone (RLOO, Ahmadian et al. 2024, equation 8).

    `returns`, `groups` (B,); a group is named by any whole number. Returns (advantages (B,), whether the group has another member (B,)):
    a trajectory that is alone has nothing to be compared with and must not be learned from.
    """
    # in double precision: in single, a group of equal returns has a rounding error that the small epsilon makes an advantage of
    given, returns = returns.dtype, returns.double()
    names, inverse, counts = torch.unique(groups, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(names), dtype=returns.dtype).index_add_(0, inverse, returns)
    centred = returns - (sums / counts)[inverse]
    compared = (counts > 1)[inverse]
    if leave_one_out:
        # a return less the mean of the others is its distance from the whole group's mean, times n / (n - 1)
        return (centred * (counts / (counts - 1).clamp(min=1))[inverse]).to(given), compared
    if not scale:
        return centred.to(given), compared
    squares = torch.zeros(len(names), dtype=returns.dtype).index_add_(0, inverse, centred.square())
    # as TRL and the paper's code have it: the deviation of a sample
    deviation = (squares / (counts - 1).clamp(min=1)).sqrt()
    return (centred / (deviation[inverse] + epsilon)).to(given), compared
