"""The private seams of TRL and transformers that the RL trainer stands on. One that breaks here breaks training in silence."""

import inspect

import pytest
import torch
import transformers
import trl
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from r3flow.training.forward import Positions
from r3flow.training.plan import build_config
from tests import toy


def test_the_pinned_versions_are_installed():
    assert (trl.__version__, transformers.__version__) == ("1.16.0", "5.24.0")


def test_telemetry_is_sent_by_the_method_that_is_silenced(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr("trl.trainer.base_trainer.send_telemetry", lambda *a, **k: calls.append(a))
    monkeypatch.delenv("CI", raising=False)
    toy.trainer(tmp_path, toy.settings())
    assert calls == []
    GRPOTrainer(
        model=toy.policy(), reward_funcs=lambda **_: [0.0], processing_class=toy.tokenizer(),
        args=GRPOConfig(output_dir=str(tmp_path), per_device_train_batch_size=2, num_generations=2, report_to=[], use_cpu=True, bf16=False),
        train_dataset=Dataset.from_dict({"prompt": ["cat"]}),
    )  # fmt: skip
    assert len(calls) == 1  # what would have happened


def test_two_generations_are_enforced_only_while_the_config_is_built(tmp_path):
    with pytest.raises(ValueError, match="at least 2 generations"):
        GRPOConfig(output_dir=str(tmp_path), per_device_train_batch_size=2, num_generations=1, bf16=False, use_cpu=True)
    config = build_config(toy.settings(prompts=1, minibatch=1), 0, tmp_path)
    assert (config.num_generations, config.steps_per_generation, config.generation_batch_size) == (1, 1, 1)


@pytest.mark.parametrize("group", [1, 4])
def test_the_loader_gives_each_iteration_its_prompts_in_the_planned_order(tmp_path, group):
    """Every optimizer step of an iteration sees the whole rollout batch: each prompt `group` times, side by side."""
    chosen = toy.settings(prompts=8, group=group, minibatch=4, epochs=2, iterations=3, algorithm="ppo" if group == 1 else "grpo")
    trainer = toy.trainer(tmp_path, chosen)
    batches = [[row["place"] for row in batch] for batch in trainer.get_train_dataloader()]
    assert len(batches) == chosen.iterations * trainer.updates
    order = trainer.train_dataset["place"]
    for number, batch in enumerate(batches):
        first = number // trainer.updates * 8
        assert batch == [place for place in order[first : first + 8] for _ in range(group)]


def test_the_loop_calls_what_is_overridden_in_this_order(tmp_path):
    """training_step, then on_pre_optimizer_step, step, on_optimizer_step, on_step_end, and a save that on_save follows."""
    trainer = toy.trainer(tmp_path, toy.settings(iterations=1, epochs=1, minibatch=32, eval_questions=0))
    calls = []

    def spy(owner, name):
        inner = getattr(owner, name)

        def outer(*arguments, **named):
            calls.append(name)
            return inner(*arguments, **named)

        setattr(owner, name, outer)

    callback = next(item for item in trainer.callback_handler.callbacks if type(item).__name__ == "_Iterations")
    for name in ("on_train_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end", "on_save"):
        spy(callback, name)
    for name in ("create_optimizer", "create_scheduler", "training_step", "_compute_loss", "_save_checkpoint"):
        spy(trainer, name)
    trainer.train()
    merged = [name for place, name in enumerate(calls) if place == 0 or calls[place - 1] != name]
    assert merged == [
        "create_optimizer", "create_scheduler", "on_train_begin", "training_step", "_compute_loss", "on_pre_optimizer_step",
        "on_optimizer_step", "on_step_end", "_save_checkpoint", "on_save",
    ]  # fmt: skip


def test_the_loop_does_not_generate_score_or_buffer_by_itself(tmp_path, monkeypatch):
    def forbidden(*_a, **_k):
        raise AssertionError("TRL's own path was taken")

    for name in (
        "_generate_and_score_completions",
        "_generate",
        "_calculate_rewards",
        "_prepare_inputs",
        "_get_per_token_logps_and_entropies",
    ):
        assert callable(getattr(GRPOTrainer, name))
        monkeypatch.setattr(GRPOTrainer, name, forbidden)
    toy.trainer(tmp_path, toy.settings(iterations=1, eval_questions=0)).train()


def test_trl_makes_no_reference_and_clips_the_policy_alone(tmp_path):
    trainer = toy.trainer(tmp_path, toy.settings())
    assert trainer.ref_model is None
    assert "model.parameters()" in inspect.getsource(transformers.Trainer._clip_grad_norm)
    assert "model.zero_grad()" in inspect.getsource(transformers.Trainer._run_epoch)


def test_the_fused_head_leaves_a_plain_forward_alone(tmp_path):
    """TRL patches the policy's forward; called as we call it, it gives the model's own logits."""
    plain = toy.cold_start()
    trainer = toy.trainer(tmp_path, toy.settings())
    ids = torch.tensor([[4, 2, 4, 7, 3]])
    with torch.no_grad():
        assert torch.equal(plain.eval()(input_ids=ids).logits, trainer.model.eval()(input_ids=ids).logits)


def test_the_output_heads_hook_reads_the_models_own_logits_and_states(tmp_path):
    """The hook gives what a whole forward pass gives at these positions, and is not there when nothing is read."""
    trainer = toy.trainer(tmp_path, toy.settings())
    rollouts = toy.rollouts(trainer.model, toy.questions(16), 1.0, 3)
    from r3flow.training.batch import Batch

    batch = Batch(rollouts, [[0.0] * len(item.step_ends) for item in rollouts], list(range(16)), mask_retrieved=True)
    chunk = batch.chunk(range(16))
    positions = Positions(trainer.model)
    with torch.no_grad():
        logits, hidden = positions.read(chunk)
        none, states = positions.read(chunk, logits=False)
        whole = trainer.model(input_ids=chunk.ids, output_hidden_states=True)
    assert torch.allclose(logits, whole.logits.reshape(-1, logits.shape[-1])[chunk.positions], atol=1e-5)
    assert torch.allclose(hidden, whole.hidden_states[-1].reshape(-1, hidden.shape[-1])[chunk.positions], atol=1e-5)
    assert torch.equal(hidden, states)
    assert none.shape == (0, logits.shape[-1])
    assert whole.logits.shape[:2] == chunk.ids.shape


def test_more_than_one_process_is_refused(tmp_path, monkeypatch):
    from accelerate import Accelerator

    from r3flow.errors import ConfigError

    monkeypatch.setattr(Accelerator, "num_processes", property(lambda self: 2))
    with pytest.raises(ConfigError, match="one process"):
        toy.trainer(tmp_path, toy.settings())
