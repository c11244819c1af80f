"""PPO and GRPO killed at any moment and run again: the same bits in policy, critic, optimizer and curve as never killed."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from r3flow.training.checkpoints import last_whole, save_policy
from r3flow.training.run import resume_and_train, summary
from tests import toy


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it, nothing is tidied up."""


def finished(trainer, out: Path) -> dict[str, bytes | str]:
    """Everything that must be the same."""
    save_policy(trainer.model, trainer.processing_class, out, trainer.critic)
    last, _ = last_whole(trainer.folder)
    optimizer = torch.load(last / "optimizer.pt", weights_only=True)
    scheduler = torch.load(last / "scheduler.pt", weights_only=True)
    files = {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
    state = {f"{key}/{name}": value.numpy().tobytes() for key, entry in optimizer["state"].items() for name, value in entry.items()}
    return {**files, **state, "scheduler": repr(scheduler), "csv": trainer.curve.csv(), "metrics": json.dumps(summary(trainer))}


def train(folder: Path, chosen, kill: str | None = None, at: int = 0) -> dict[str, bytes | str]:
    """Run to the end; with `kill`, first a run that dies at the `at`-th call of that method of the trainer."""
    if kill is not None:
        trainer = toy.trainer(folder, chosen)
        owner = (
            trainer if hasattr(trainer, kill) else next(c for c in trainer.callback_handler.callbacks if type(c).__name__ == "_Iterations")
        )
        inner, count = getattr(owner, kill), 0

        def dying(*arguments, **named):
            nonlocal count
            count += 1
            if count == at:
                raise Killed
            return inner(*arguments, **named)

        setattr(owner, kill, dying)
        with pytest.raises(Killed):
            resume_and_train(trainer)
    trainer = toy.trainer(folder, chosen)
    resume_and_train(trainer)
    return finished(trainer, folder / "out")


@pytest.fixture(scope="module", params=["ppo", "model", "grpo"])
def undisturbed(request, tmp_path_factory):
    """The settings, and what a run that was not killed leaves."""
    chosen = {
        "ppo": toy.settings(save_every=1),
        "model": toy.settings(critic="model", kl="loss", save_every=2),
        "grpo": toy.settings(algorithm="grpo", group=4, prompts=8, save_every=3),
    }[request.param]
    return chosen, train(tmp_path_factory.mktemp("whole"), chosen)


# 4 iterations of 4 updates: in the first iteration, at a boundary, inside an update, while a checkpoint is written, at the very end
@pytest.mark.parametrize(
    ("kill", "at"),
    [
        ("training_step", 2),
        ("training_step", 9),
        ("_compute_loss", 11),
        ("assign_credit", 3),
        ("finish_iteration", 4),
        ("on_save", 1),
        ("evaluate_dev", 2),
    ],
)
def test_killed_and_run_again_is_the_same_to_the_bit(undisturbed, tmp_path, kill, at):
    chosen, wanted = undisturbed
    found = train(tmp_path, chosen, kill, at)
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if found[name] != wanted[name]] == []


def test_run_again_after_the_end_writes_the_same(undisturbed, tmp_path):
    chosen, wanted = undisturbed
    train(tmp_path, chosen)
    trainer = toy.trainer(tmp_path, chosen)
    resume_and_train(trainer)
    found = finished(trainer, tmp_path / "again")
    assert [name for name in wanted if found[name] != wanted[name]] == []


def test_a_checkpoint_that_is_not_whole_is_not_used(tmp_path):
    trainer = toy.trainer(tmp_path, toy.settings(iterations=2))
    trainer.train()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-4", "checkpoint-8"]
    (tmp_path / "checkpoint-8" / "complete.json").unlink()
    found = last_whole(tmp_path)
    assert found[0].name == "checkpoint-4"
    assert [row["step"] for row in found[1]["rows"]] == [0, 1]
    assert not (tmp_path / "checkpoint-8").exists()


def test_the_policy_is_a_standard_folder_and_the_critic_stands_beside_it(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trainer = toy.trainer(tmp_path / "work", toy.settings(iterations=1))
    trainer.train()
    save_policy(trainer.model, trainer.processing_class, tmp_path / "out", trainer.critic)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = torch.tensor([[4, 2, 4]])
    with torch.no_grad():
        assert torch.equal(again(input_ids=ids).logits, trainer.model.eval()(input_ids=ids).logits)
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("cat")["input_ids"] == [4]
    names = set(load_file(tmp_path / "out" / "model.safetensors"))
    assert not any("critic" in name or "head.weight" in name.replace("lm_head", "") for name in names)
    assert set(load_file(tmp_path / "out" / "critic" / "critic.safetensors")) == {"head.weight", "head.bias"}
