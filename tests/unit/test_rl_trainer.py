"""What the RL trainers do with masks, unknown rewards, schedules and random generators, on a toy environment."""

import random

import numpy as np
import pytest
import torch

from r3flow.errors import ConfigError, TooManyUnknownError
from r3flow.rewards import RewardBreakdown
from r3flow.training import losses
from r3flow.training.batch import Batch
from r3flow.training.plan import prompt_order, schedule_factor
from tests import toy


class Listener:
    def __init__(self):
        self.rows: dict[int, dict[str, float]] = {}
        self.notes: list[tuple[int, int, str]] = []

    def metrics(self, values, step):
        self.rows[step] = dict(values)

    def progress(self, done, total, note=""):
        self.notes.append((done, total, note))


def ready(folder, **changes):
    """A trainer with a batch of searching rollouts, credit assigned, about to take the gradient of one chunk with all of it."""
    trainer = toy.trainer(folder, toy.settings(**changes))
    rollouts = [item for item in toy.rollouts(trainer.model, toy.questions(64), 1.0, 0) if 0 in item.mask][:12]
    scored = toy.Scores()([item.trajectory for item in rollouts])
    rewards = [[value for value in item.steps if value is not None] for item in scored]
    batch = Batch(rollouts, rewards, [place // 2 for place in range(12)], mask_retrieved=trainer.settings.mask_retrieved)
    with torch.no_grad():  # so that rollout, policy and reference differ
        for model, seed in ((trainer.model, 1), (trainer.reference, 2)):
            for weight in model.parameters():
                weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed)))
    trainer._read_models(batch)
    trainer.assign_credit(batch)
    trainer.batch = batch
    return trainer, batch, rollouts


def gradients(trainer, batch, rows):
    """d loss / d (last hidden states): the loss of each position, before the trunk mixes positions. (B, T) booleans."""
    chunk = batch.chunk(rows)
    kept = {}

    def keep(_module, inputs):
        inputs[0].retain_grad()
        kept["hidden"] = inputs[0]

    # registered in front of the selecting hook, so that it sees all positions
    handle = trainer.model.get_output_embeddings().register_forward_pre_hook(keep, prepend=True)
    trainer._compute_loss(trainer.model, chunk).backward()
    handle.remove()
    return kept["hidden"].grad.abs().sum(-1)


@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "leave_one_out"])
@pytest.mark.parametrize("kl", ["reward", "loss"])
def test_retrieved_tokens_have_exactly_no_gradient_with_the_mask_and_some_without(tmp_path, algorithm, kl):
    """Policy, KL, entropy and value loss alike: the state that predicts a retrieved token gets exactly zero."""
    group = 1 if algorithm == "ppo" else 2
    for masked in (True, False):
        trainer, batch, rollouts = ready(
            tmp_path, algorithm=algorithm, kl=kl, kl_coefficient=0.1, group=group, mask_retrieved=masked, critic_warmup_iterations=0
        )
        rows = list(range(12))
        grad = gradients(trainer, batch, rows)
        for row, rollout in enumerate(rollouts):
            start = len(rollout.prompt_ids)
            for place, own in enumerate(rollout.mask):
                touched = bool(grad[row, start + place - 1] > 0)
                if own or masked:
                    assert touched == bool(own), (row, place, masked)
            if not masked:
                assert any(grad[row, start + place - 1] > 0 for place, own in enumerate(rollout.mask) if not own)


def test_value_loss_sees_policy_tokens_only(tmp_path):
    """The critic's loss alone: with zero advantages and no entropy bonus, gradient is left only where a value was asked for."""
    trainer, batch, rollouts = ready(tmp_path, critic_warmup_iterations=0, entropy_coefficient=0.0)
    with torch.no_grad():
        trainer.critic.head.weight.fill_(0.1)
    batch.advantages = torch.zeros_like(batch.advantages)
    grad = gradients(trainer, batch, list(range(12)))
    for row, rollout in enumerate(rollouts):
        states = {len(rollout.prompt_ids) + place - 1 for place, own in enumerate(rollout.mask) if own}
        assert {place for place in range(grad.shape[1]) if grad[row, place] > 0} == states


def test_critic_warmup_keeps_the_value_loss_off_the_trunk(tmp_path):
    for warmup, touched in ((1, False), (0, True)):
        trainer, batch, _ = ready(tmp_path, critic_warmup_iterations=warmup, entropy_coefficient=0.0)
        with torch.no_grad():
            trainer.critic.head.weight.fill_(0.1)
        batch.advantages = torch.zeros_like(batch.advantages)
        trainer._compute_loss(trainer.model, batch.chunk(range(12))).backward()
        assert any(weight.grad is not None and weight.grad.any() for weight in trainer.model.parameters()) == touched
        assert trainer.critic.head.weight.grad.any()


@pytest.mark.parametrize("estimator", [None, "k2"])
def test_loss_is_the_reference_and_chunks_do_not_change_it(tmp_path, monkeypatch, estimator):
    """The whole PPO loss of a minibatch, against a plain forward pass over one sequence after another."""
    trainer, batch, rollouts = ready(
        tmp_path, kl="loss", kl_estimator=estimator, kl_coefficient=0.3, temperature=0.7, value_clip=0.2, value_coefficient=0.5
    )
    batch.values = batch.values + 0.2 * torch.randn(batch.values.shape, generator=torch.Generator().manual_seed(3))
    wanted, settings = 0.0, trainer.settings
    for row, rollout in enumerate(rollouts):
        ids = torch.tensor([rollout.prompt_ids + rollout.completion_ids])
        output = trainer.model(input_ids=ids, output_hidden_states=True)
        log_probs, values = torch.log_softmax(output.logits[0] / 0.7, -1), trainer.critic.head(output.hidden_states[-1][0])[:, 0].detach()
        frozen = torch.log_softmax(trainer.reference(input_ids=ids).logits[0] / 0.7, -1)
        flat = batch.offsets[row]
        for place, own in enumerate(rollout.mask):
            if not own:
                continue
            state, token = len(rollout.prompt_ids) + place - 1, rollout.completion_ids[place]
            new, reference = log_probs[state, token], frozen[state, token]
            advantage, old = batch.advantages[flat], torch.tensor(rollout.logprobs[place])
            ratio = (new - old).exp()
            wanted -= float(torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).detach())
            apart = reference - new
            wanted += 0.3 * float((apart.exp() - apart - 1 if estimator is None else apart**2 / 2).detach())
            wanted += 0.01 * float((log_probs[state].exp() * log_probs[state]).sum().detach())
            wanted += 0.5 * float(losses.value_loss(values[state], batch.values[flat], batch.returns[flat], 0.2))
            flat += 1
    assert settings.clip == 0.2
    rows = list(range(12))
    assert float(trainer._compute_loss(trainer.model, batch.chunk(rows)).detach()) == pytest.approx(wanted, rel=1e-4)
    monkeypatch.setattr("r3flow.training.batch.CHUNK_TOKENS", {"cpu": 20})
    chunks = list(batch.chunks(rows))
    assert len(chunks) > 3
    assert sum(float(trainer._compute_loss(trainer.model, chunk).detach()) for chunk in chunks) == pytest.approx(wanted, rel=1e-4)


def test_rollout_log_probs_are_those_of_a_fresh_forward(tmp_path):
    """`mask_retrieved: false` computes the environment's old log-probabilities itself and keeps the policy's from the rollout."""
    trainer = toy.trainer(tmp_path, toy.settings(mask_retrieved=False))
    rollouts = toy.rollouts(trainer.model, toy.questions(32), 1.0, 0)
    batch = Batch(rollouts, [[0.0] * len(item.step_ends) for item in rollouts], [0] * 32, mask_retrieved=False)
    before = batch.old.clone()
    trainer._read_models(batch)
    assert torch.equal(batch.old[batch.own], before[batch.own])
    assert (batch.old[~batch.own] < 0).all()
    assert torch.allclose(batch.old, batch.reference, atol=1e-5)  # the reference is the policy still


def test_unknown_rewards_leave_the_update_as_if_they_had_not_been_there(tmp_path):
    """Dropped rows change neither whitening nor the loss: a batch of 32 with 8 unknown has the credit of the 24."""
    lost = set(range(0, 32, 4))
    listener = Listener()
    trainer = toy.trainer(tmp_path / "a", toy.settings(iterations=1, max_unknown=0.3), scores=toy.Scores({1: lost}), reporter=listener)
    seen = []
    credit = trainer.assign_credit
    trainer.assign_credit = lambda batch: (seen.append(batch), credit(batch))[1]
    trainer.train()
    rollouts = toy.rollouts(
        toy.cold_start(), [trainer.questions[place] for place in trainer.train_dataset["place"]], 1.0, seed_of_first(trainer)
    )
    known = [place for place in range(32) if place not in lost]
    assert [ids.tolist() for ids in seen[0].ids] == [rollouts[place].prompt_ids + rollouts[place].completion_ids for place in known]
    assert float(seen[0].advantages.mean()) == pytest.approx(0, abs=1e-6)
    assert listener.rows[1]["unknown"] == 8
    assert trainer.curve.counts["unknown"] == 8
    scored = toy.Scores()([rollouts[place].trajectory for place in known])
    assert listener.rows[1]["reward"] == pytest.approx(sum(item.total for item in scored) / len(known))


def seed_of_first(trainer):
    from r3flow.training.plan import seed_of

    return seed_of(trainer.run_seed, "rollouts", 1)


@pytest.mark.parametrize(("lost", "limit"), [(8, 0.2), (31, 1.0)])
def test_too_many_unknown_rewards_stop_the_stage(tmp_path, lost, limit):
    trainer = toy.trainer(tmp_path, toy.settings(max_unknown=limit), scores=toy.Scores({2: set(range(lost))}))
    with pytest.raises(TooManyUnknownError, match=f"{lost} of 32 rewards are unknown in iteration 2"):
        trainer.train()
    assert (tmp_path / "checkpoint-4" / "complete.json").exists()  # iteration 1 is kept


@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "leave_one_out"])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_chosen_estimator_of_the_divergence_is_what_the_reward_pays(tmp_path, algorithm, estimator):
    changes = {"algorithm": algorithm, "group": 1 if algorithm == "ppo" else 2, "kl": "reward", "kl_estimator": estimator}
    trainer, batch, _ = ready(tmp_path, kl_coefficient=0.5, gamma=1.0, lam=1.0, **changes)
    ratio = batch.old - batch.reference
    wanted = {"k1": ratio, "k2": ratio**2 / 2, "k3": (-ratio).exp() + ratio - 1}[estimator]
    paid = torch.stack([part.sum() for part in (batch.rewards - 0.5 * wanted).split(batch.counts)])
    if algorithm == "ppo":
        starts = [sum(batch.counts[:row]) for row in range(len(batch.counts))]
        assert torch.allclose(batch.returns[starts], paid, atol=1e-4)
        return
    for row, start in enumerate(sum(batch.counts[:row]) for row in range(len(batch.counts))):
        mates = [other for other in range(len(batch.counts)) if batch.groups[other] == batch.groups[row] and other != row]
        left = float(paid[row] - paid[mates].mean())
        if algorithm == "grpo":
            left = left / 2 / (float(paid[[row, *mates]].std()) + 1e-6)
        assert float(batch.advantages[start]) == pytest.approx(left, abs=1e-3)


def test_a_group_left_alone_by_unknown_rewards_is_not_learned_from(tmp_path):
    trainer = toy.trainer(tmp_path, toy.settings(algorithm="grpo", group=2, prompts=16, kl="none"))
    rollouts = toy.rollouts(trainer.model, toy.questions(6), 1.0, 0)
    rewards = [[float(place)] * len(item.step_ends) for place, item in enumerate(rollouts)]
    batch = Batch(rollouts[:5], rewards[:5], [0, 0, 1, 1, 2], mask_retrieved=True)
    trainer.assign_credit(batch)
    per_row = [set(part.tolist()) for part in batch.advantages.split(batch.counts)]
    assert all(len(values) == 1 for values in per_row)
    assert per_row[4] == {0.0}
    assert per_row[0] != {0.0}


def test_kl_in_the_reward_is_taken_from_each_token(tmp_path):
    trainer, batch, _ = ready(tmp_path, kl="reward", kl_coefficient=0.5, gamma=1.0, lam=1.0)
    with_kl = batch.returns.clone()
    trainer.settings = trainer.settings.model_copy(update={"kl": "none"})
    trainer.assign_credit(batch)
    offset = batch.offsets[1] - 1  # the last token of the first trajectory: nothing follows it
    assert float(with_kl[offset]) == pytest.approx(float(batch.returns[offset] - 0.5 * (batch.old - batch.reference)[offset]), abs=1e-6)
    assert (batch.old - batch.reference)[offset].abs() > 1e-6


def test_each_group_of_the_optimizer_has_its_rate_and_the_schedule_its_real_length(tmp_path):
    listener = Listener()
    chosen = toy.settings(iterations=4, warmup_iterations=1, eval_questions=0)
    trainer = toy.trainer(tmp_path, chosen, reporter=listener)
    rates = []
    step = trainer.training_step

    def spy(*arguments, **named):
        rates.append([group["lr"] for group in trainer.optimizer.param_groups])
        return step(*arguments, **named)

    trainer.training_step = spy
    trainer.train()
    assert len(rates) == 16  # 4 iterations of 2 epochs of 2 minibatches
    factors = [schedule_factor(update, total=16, warmup=4, final=0.2) for update in range(16)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factors[-1] == pytest.approx(0.2)
    assert rates == [pytest.approx([3e-3 * factor, 1e-2 * factor]) for factor in factors]
    trainable = {id(weight) for weight in trainer.model.parameters()}
    groups = trainer.optimizer.param_groups
    assert {id(weight) for weight in groups[0]["params"]} == trainable
    assert {id(weight) for weight in groups[1]["params"]} == {id(weight) for weight in trainer.critic.parameters()}
    assert "dev_em" not in listener.rows[4]


def test_the_critics_gradients_are_clipped_and_zeroed(tmp_path):
    trainer = toy.trainer(tmp_path, toy.settings(iterations=1, max_grad_norm=1e-3))
    norms = []

    def spy(step):
        def inner(*arguments, **named):
            norms.append(float(torch.stack([weight.grad.norm() for weight in trainer.critic.parameters()]).norm()))
            return step(*arguments, **named)

        return inner

    create = trainer.create_scheduler

    def build(*arguments, **named):
        scheduler = create(*arguments, **named)
        trainer.optimizer.step = spy(trainer.optimizer.step)
        return scheduler

    trainer.create_scheduler = build
    trainer.train()
    assert norms
    assert max(norms) <= 1.001e-3
    assert all(weight.grad is None for weight in trainer.critic.parameters())


def test_dev_evaluation_and_rollouts_draw_from_no_shared_generator(tmp_path):
    trainer = toy.trainer(tmp_path, toy.settings())
    before = (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate())
    trainer.evaluate_dev()
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()
    assert before[2] == random.getstate()


def test_how_often_dev_is_evaluated_changes_nothing_else(tmp_path):
    weights = []
    for every, count in ((1, 8), (100, 0)):
        trainer = toy.trainer(tmp_path / str(every), toy.settings(eval_every=every, eval_questions=count, iterations=3))
        trainer.train()
        weights.append(torch.cat([weight.flatten() for weight in trainer.model.parameters()]))
    assert torch.equal(*weights)


def test_a_loss_that_is_not_finite_stops_with_advice(tmp_path):
    trainer = toy.trainer(tmp_path, toy.settings(learning_rate=1e30))
    with pytest.raises(ConfigError, match=r"not finite in iteration \d; lower ppo.learning_rate"):
        trainer.train()


def test_prompt_order_is_permutations_end_to_end():
    order = prompt_order(5, 13, 3)
    assert len(order) == 13
    assert sorted(order[:5]) == sorted(order[5:10]) == list(range(5))
    assert order == prompt_order(5, 13, 3)
    assert order != prompt_order(5, 13, 4)


def test_the_curve_and_the_reporter_tell_of_every_iteration(tmp_path):
    listener = Listener()
    trainer = toy.trainer(tmp_path, toy.settings(), reporter=listener)
    trainer.train()
    assert sorted(listener.rows) == [0, 1, 2, 3, 4]
    assert set(listener.rows[0]) == {"dev_em"}  # the live curve starts where training starts
    wanted = {"approx_kl", "clip_fraction", "explained_variance", "entropy", "kl", "searches", "answer_rate", "em", "tokens", "unknown"}
    wanted |= {"reward", "reward_outcome", "reward_process", "reward_format", "judge_calls", "seconds/rollouts", "seconds/update"}
    assert wanted <= set(listener.rows[1])
    assert [step for step, row in listener.rows.items() if "dev_em" in row] == [0, 2, 4]
    text = trainer.curve.csv()
    assert "seconds" not in text
    assert "judge_calls" not in text
    lines = text.splitlines()
    assert [line.split(",")[0] for line in lines] == ["step", "0", "1", "2", "3", "4"]
    assert {line.count(",") for line in lines} == {lines[0].count(",")}
    assert listener.notes[-1][:2] == (4, 4)


def test_a_trajectory_without_any_known_step_counts_as_unknown():
    assert not RewardBreakdown.unknown(()).known


@pytest.mark.parametrize(
    "changes",
    [
        {"prompts": 64, "minibatch": 32},
        {"prompts": 64, "minibatch": 32, "critic": "model", "credit": "step", "kl": "loss"},
        {"prompts": 16, "group": 8, "minibatch": 64, "algorithm": "grpo", "kl": "none"},
    ],
)
def test_it_learns_to_search_and_to_copy(tmp_path, changes):
    """Sampled answers, from under half to nearly always right, in seconds (without learning they stay between .33 and .62)."""
    trainer = toy.trainer(tmp_path, toy.settings(iterations=30, eval_every=30, save_every=30, **changes))
    trainer.train()
    rows = trainer.curve.rows
    assert rows[1]["em"] < 0.6
    assert sum(row["em"] for row in rows[-3:]) / 3 >= 0.95
    assert sum(row["searches"] for row in rows[-3:]) / 3 == pytest.approx(1.0, abs=0.05)
    assert rows[-1]["dev_em"] == 1.0
