"""Advantages and losses against references in plain Python loops, written from the papers' equations."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from r3flow.training import losses
from r3flow.training.gae import gae, group_advantages, whiten

NUMBER = st.floats(-3, 3, allow_nan=False, width=32)


def reference_gae(rewards: list[float], values: list[float], cuts: list[bool], gamma: float, lam: float) -> list[float]:
    """The sum of equation 16 as it is written: sum over l of (gamma lam)^l delta_(t+l), up to the next cut."""
    size = len(rewards)

    def delta(t: int) -> float:
        bootstrap = 0.0 if cuts[t] or t + 1 == size else gamma * values[t + 1]
        return rewards[t] + bootstrap - values[t]

    result = []
    for t in range(size):
        total, weight, at = 0.0, 1.0, t
        while True:
            total += weight * delta(at)
            if cuts[at] or at + 1 == size:
                break
            weight, at = weight * gamma * lam, at + 1
        result.append(total)
    return result


@st.composite
def rows(draw):
    return [
        draw(st.lists(st.tuples(NUMBER, NUMBER, st.booleans()), min_size=1, max_size=9)) for _ in range(draw(st.integers(1, 4)))
    ]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(rows(), st.sampled_from([0.0, 0.9, 1.0]), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_gae_against_the_equation(batch, gamma, lam):
    width = max(len(row) for row in batch)
    rewards, values = torch.zeros(len(batch), width), torch.full((len(batch), width), 7.0)  # padding must not leak in
    mask, cut = torch.zeros(len(batch), width, dtype=torch.bool), torch.zeros(len(batch), width, dtype=torch.bool)
    for place, row in enumerate(batch):
        for at, (reward, value, end) in enumerate(row):
            rewards[place, at], values[place, at], mask[place, at], cut[place, at] = reward, value, True, end
    advantages, returns = gae(rewards, values, mask, cut, gamma, lam)
    for place, row in enumerate(batch):
        wanted = reference_gae([item[0] for item in row], [item[1] for item in row], [item[2] for item in row], gamma, lam)
        assert advantages[place, : len(row)].tolist() == pytest.approx(wanted, abs=1e-4)
        assert returns[place, : len(row)].tolist() == pytest.approx([a + item[1] for a, item in zip(wanted, row, strict=True)], abs=1e-4)
        assert not advantages[place, len(row) :].any()
        assert not returns[place, len(row) :].any()


def test_credit_of_a_step_is_that_of_the_step_alone():
    """Cut at step ends, a sequence gives what its steps give as samples of their own (R3-RAG's credit)."""
    torch.manual_seed(0)
    rewards, values = torch.randn(1, 7), torch.randn(1, 7)
    cut = torch.tensor([[False, False, True, False, True, False, True]])
    whole, _ = gae(rewards, values, torch.ones_like(cut), cut, 0.9, 0.8)
    parts = []
    for start, end in ((0, 3), (3, 5), (5, 7)):
        one = torch.ones(1, end - start, dtype=torch.bool)
        parts.append(gae(rewards[:, start:end], values[:, start:end], one, torch.zeros_like(one), 0.9, 0.8)[0])
    assert torch.allclose(whole, torch.cat(parts, 1))


def test_with_gamma_and_lambda_one_the_advantage_is_what_is_still_to_come():
    rewards = torch.tensor([[0.0, 1.0, 0.0, 2.0]])
    values = torch.tensor([[0.5, 0.25, 0.0, 1.0]])
    advantages, returns = gae(rewards, values, torch.ones(1, 4, dtype=torch.bool), torch.zeros(1, 4, dtype=torch.bool), 1.0, 1.0)
    assert returns[0].tolist() == pytest.approx([3.0, 3.0, 2.0, 2.0])
    assert advantages[0].tolist() == pytest.approx([2.5, 2.75, 2.0, 1.0])


def test_whitening():
    values = torch.tensor([1.0, 2.0, 3.0, 6.0])
    white = whiten(values)
    assert float(white.mean()) == pytest.approx(0, abs=1e-6)
    assert float(white.std(correction=0)) == pytest.approx(1, abs=1e-5)
    assert torch.equal(whiten(torch.full((3,), 2.0)), torch.zeros(3))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(NUMBER, st.integers(0, 3)), min_size=1, max_size=12))
def test_group_advantages_against_a_loop(items):
    advantages, compared = group_advantages(torch.tensor([item[0] for item in items]), torch.tensor([item[1] for item in items]))
    for place, (value, group) in enumerate(items):
        members = [other for other, name in items if name == group]
        mean = sum(members) / len(members)
        deviation = math.sqrt(sum((other - mean) ** 2 for other in members) / max(1, len(members) - 1))
        assert float(advantages[place]) == pytest.approx((value - mean) / (deviation + 1e-6), rel=1e-2, abs=1e-2)
        assert bool(compared[place]) == (len(members) > 1)


def test_a_group_of_equal_returns_has_nothing_to_learn():
    advantages, _ = group_advantages(torch.full((3,), 2.763701915740967), torch.zeros(3, dtype=torch.long))
    assert advantages.abs().max() < 1e-6


TOKEN = st.tuples(NUMBER, NUMBER, NUMBER)


@settings(max_examples=100, deadline=None)
@given(st.lists(TOKEN, min_size=1, max_size=10), st.sampled_from([0.1, 0.2]))
def test_clipped_loss_against_a_loop(tokens, clip):
    new, old, advantages = (torch.tensor([token[place] for token in tokens]) for place in range(3))
    wanted = []
    for one, other, advantage in zip(new.tolist(), old.tolist(), advantages.tolist(), strict=True):
        ratio = math.exp(one - other)
        kept = min(max(ratio, 1 - clip), 1 + clip)
        wanted.append(-min(ratio * advantage, kept * advantage))
    assert losses.clipped_policy_loss(new, old, advantages, clip).tolist() == pytest.approx(wanted, rel=1e-4, abs=1e-4)


@settings(max_examples=100, deadline=None)
@given(st.lists(TOKEN, min_size=1, max_size=10), st.sampled_from([None, 0.2]))
def test_value_loss_against_a_loop(tokens, clip):
    values, old, returns = (torch.tensor([token[place] for token in tokens]) for place in range(3))
    wanted = []
    for value, before, target in zip(values.tolist(), old.tolist(), returns.tolist(), strict=True):
        near = value if clip is None else before + min(max(value - before, -clip), clip)
        wanted.append(0.5 * max((value - target) ** 2, (near - target) ** 2))
    assert losses.value_loss(values, old, returns, clip).tolist() == pytest.approx(wanted, rel=1e-4, abs=1e-4)


def test_no_gradient_where_the_ratio_is_clipped():
    new = torch.tensor([0.5, 0.5, -0.5, -0.5], requires_grad=True)
    losses.clipped_policy_loss(new, torch.zeros(4), torch.tensor([1.0, -1.0, 1.0, -1.0]), 0.2).sum().backward()
    assert [value != 0 for value in new.grad.tolist()] == [False, True, True, False]


def test_log_probs_and_entropy_are_those_of_the_sampling_temperature():
    torch.manual_seed(1)
    logits, targets = torch.randn(5, 7), torch.tensor([0, 3, 6, 2, 2])
    probabilities = torch.softmax(logits / 0.6, -1)
    assert torch.allclose(losses.token_log_probs(logits, targets, 0.6), probabilities[range(5), targets].log(), atol=1e-6)
    assert torch.allclose(losses.token_entropy(logits, 0.6), -(probabilities * probabilities.log()).sum(-1), atol=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 3)), min_size=1, max_size=12))
def test_leave_one_out_and_unscaled_groups_against_a_loop(items):
    returns, groups = torch.tensor([item[0] for item in items]), torch.tensor([item[1] for item in items])
    left_out, compared = group_advantages(returns, groups, leave_one_out=True)
    centred, same = group_advantages(returns, groups, scale=False)
    assert compared.tolist() == same.tolist()
    for place, (value, group) in enumerate(items):
        others = [other for at, (other, name) in enumerate(items) if name == group and at != place]
        assert bool(compared[place]) == bool(others)
        if others:
            assert float(left_out[place]) == pytest.approx(value - sum(others) / len(others), abs=1e-4)
            assert float(centred[place]) == pytest.approx(value - (sum(others) + value) / (len(others) + 1), abs=1e-4)


def test_in_the_loss_k2_has_the_gradient_of_the_divergence_and_k1_none():
    """The mean over samples of an estimator's gradient, here the exact expectation, against the gradient of the divergence itself."""
    torch.manual_seed(4)
    logits, reference = torch.randn(6, requires_grad=True), torch.log_softmax(torch.randn(6), -1)
    policy = torch.log_softmax(logits, -1)
    (exact,) = torch.autograd.grad((policy.exp() * (policy - reference)).sum(), logits, retain_graph=True)
    found = {}
    for name, estimate in losses.ESTIMATORS.items():
        (found[name],) = torch.autograd.grad((policy.detach().exp() * estimate(policy, reference)).sum(), logits, retain_graph=True)
    assert torch.allclose(found["k2"], exact, atol=1e-5)
    assert torch.allclose(found["k1"], torch.zeros(6), atol=1e-5)
    assert not torch.allclose(found["k3"], exact, atol=1e-2)


def test_k1_and_k3_estimate_the_same_divergence():
    torch.manual_seed(2)
    policy, reference = (torch.log_softmax(torch.randn(6), -1) for _ in range(2))
    exact = float((policy.exp() * (policy - reference)).sum())
    for estimate in (losses.k1, losses.k3):
        assert float((policy.exp() * estimate(policy, reference)).sum()) == pytest.approx(exact, abs=1e-5)
    assert (losses.k3(policy, reference) >= 0).all()
