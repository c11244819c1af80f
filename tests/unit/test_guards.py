"""What ends training before its last iteration, and which policy is kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from r3flow.errors import ConfigError
from r3flow.params import PPO, Guards, load, parse
from r3flow.training.guards import best_row, reason_to_stop
from r3flow.training.run import resume_and_train, summary, write_policy
from tests import toy

FINE = {"kl": 0.1, "entropy": 0.5, "answer_rate": 0.9, "tokens": 40.0}


def rows(*values: dict[str, float]) -> list[dict[str, float]]:
    """A curve: the row before training, which has the dev score alone, and an iteration for each of `values`."""
    return [{"step": 0, "dev_em": 0.2}, *({"step": place, **FINE, **value} for place, value in enumerate(values, 1))]


@pytest.mark.parametrize(
    ("limits", "bad", "line"),
    [
        ({"max_kl": 0.3}, {"kl": 0.31}, "ppo.guards.max_kl: kl is 0.31 in iteration 3, above 0.3 for 2 iterations"),
        ({"min_entropy": 0.1}, {"entropy": 0.05}, "ppo.guards.min_entropy: entropy is 0.05 in iteration 3, below 0.1 for 2 iterations"),
        ({"min_answer_rate": 0.5}, {"answer_rate": 0.0}, "ppo.guards.min_answer_rate: answer_rate is 0 in iteration 3, below 0.5"),
        ({"max_tokens": 60.0}, {"tokens": 99.5}, "ppo.guards.max_tokens: tokens is 99.5 in iteration 3, above 60 for 2 iterations"),
    ],
)
def test_a_guard_needs_its_column_beyond_the_limit_for_all_of_its_patience(
    limits: dict[str, float], bad: dict[str, float], line: str
) -> None:
    """Searching for ever, falling silent, running away and talking more and more, each seen by its guard and by no other."""
    chosen = toy.settings(guards=Guards(**limits, patience=2))
    assert reason_to_stop(chosen, rows({}, bad, bad))[: len(line)] == line  # type: ignore[index]
    assert reason_to_stop(chosen, rows({}, {}, bad)) is None, "once is not twice"
    assert reason_to_stop(chosen, rows(bad, {}, bad)) is None, "not one after the other"
    assert reason_to_stop(chosen, rows(bad, bad, {})) is None, "it is over"
    assert reason_to_stop(chosen, rows(bad)) is None
    assert reason_to_stop(chosen, rows({}, FINE, FINE)) is None
    assert reason_to_stop(toy.settings(guards=Guards(patience=1)), rows(bad, bad, bad)) is None, "off unless it has a limit"


def test_early_stop_counts_the_evaluations_since_the_first_best() -> None:
    chosen = toy.settings(early_stop=2)
    better, equal, nothing = {"dev_em": 0.5}, {"dev_em": 0.5}, dict[str, float]()
    assert reason_to_stop(chosen, rows(better, nothing, equal)) is None
    line = reason_to_stop(chosen, rows(better, nothing, equal, nothing, {"dev_em": 0.4}))
    assert line == "ppo.early_stop: the dev score has not been above 0.500 (iteration 1) in the 2 evaluations since"
    assert reason_to_stop(chosen, rows(better, equal, {"dev_em": 0.6})) is None
    assert reason_to_stop(chosen, rows({"dev_em": 0.1}, {"dev_em": 0.2})) is not None, "the score before training counts"
    assert best_row(rows(better, equal)) == {"step": 1, **FINE, "dev_em": 0.5}
    assert best_row([{"step": 1.0}]) is None


class Falling:
    """Rollouts of the toy that answer less and less: from iteration 3 on nobody answers."""

    def __init__(self, model: Any) -> None:
        self.model, self.calls = model, 0

    def __call__(self, asked: Any, temperature: float, draw: int) -> Any:
        found = toy.rollouts(self.model, asked, temperature, draw)
        if temperature == 0.0:
            return found
        self.calls += 1
        if self.calls < 3:
            return found
        return [replace(rollout, trajectory=replace(rollout.trajectory, finish="budget")) for rollout in found]


def test_a_policy_that_stops_answering_is_stopped(tmp_path: Path) -> None:
    chosen = toy.settings(iterations=8, guards=Guards(min_answer_rate=0.05, patience=2), save_every=100)
    model = toy.cold_start()
    trainer = toy.trainer(tmp_path / "work", chosen, model=model, make=Falling(model))
    resume_and_train(trainer)
    assert [row["step"] for row in trainer.curve.rows] == [0, 1, 2, 3, 4]
    figures = summary(trainer)
    assert figures["stopped"].startswith("ppo.guards.min_answer_rate: answer_rate is 0 in iteration 4, below 0.05 for 2 iterations")
    assert (figures["iterations"], figures["updates"], figures["trajectories"]) == (4, 16, 128)
    # run again, as after a kill between the stop and the end: no update more, and the same policy
    again = toy.trainer(tmp_path / "work", chosen)
    resume_and_train(again)
    assert summary(again) == figures
    for name, weight in trainer.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name]), name


def kept(trainer: Any, out: Path) -> dict[str, bytes]:
    write_policy(trainer, out)
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("scores", [[0.5, 0.75, 0.75, 0.25, 0.5], [0.9, 0.1, 0.2, 0.3, 0.4]])
def test_the_best_policy_on_dev_is_the_one_that_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    chosen = toy.settings(iterations=4, eval_every=1, keep="best", save_every=3)
    best = scores.index(max(scores))

    def scored(trainer: Any) -> Any:
        trainer.evaluate_dev = lambda: scores[0 if trainer.state.global_step == 0 else trainer.iteration - 1]
        return trainer

    trainer = scored(toy.trainer(tmp_path / "whole", chosen))
    resume_and_train(trainer)
    whole = kept(trainer, tmp_path / "out")
    assert summary(trainer)["kept_iteration"] == best
    # the same training, cut at that iteration, ends with that policy
    short = toy.trainer(tmp_path / "short", toy.settings(iterations=4, eval_every=1))
    weights = {name: weight.clone() for name, weight in short.model.state_dict().items()} if best == 0 else None
    if weights is None:

        def remember(*arguments: Any, inner: Any = short.finish_iteration) -> bool:
            nonlocal weights
            if short.iteration - 1 == best:
                weights = {name: weight.clone() for name, weight in short.model.state_dict().items()}
            return bool(inner(*arguments))

        monkeypatch.setattr(short, "finish_iteration", remember)
        resume_and_train(short)
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert weights is not None and all(torch.equal(weight, weights[name]) for name, weight in saved.items())

    # killed behind the best, before the checkpoint that would hold it
    class Killed(BaseException):
        pass

    dying = scored(toy.trainer(tmp_path / "killed", chosen))
    inner, count = dying.training_step, 0

    def step(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if count == 11:
            raise Killed
        return inner(*arguments, **named)

    dying.training_step = step
    with pytest.raises(Killed):
        resume_and_train(dying)
    back = scored(toy.trainer(tmp_path / "killed", chosen))
    resume_and_train(back)
    assert kept(back, tmp_path / "again") == whole
    assert json.dumps(summary(back)) == json.dumps(summary(trainer))


def test_without_guards_the_metrics_have_no_new_key(tmp_path: Path) -> None:
    trainer = toy.trainer(tmp_path, toy.settings(iterations=1))
    resume_and_train(trainer)
    assert {"stopped", "kept_iteration"}.isdisjoint(summary(trainer))
    settings: PPO = load().ppo
    assert (settings.keep, settings.early_stop, settings.guards) == ("last", None, Guards())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_kl: null", "max_k1: 1.0", r"unknown key 'ppo.guards.max_k1'; did you mean 'max_kl'"),
        ("kl: reward ", "kl: none ", r"guards.max_kl has nothing to look at with kl: none"),
        ("eval_questions: 128", "eval_questions: 0", r"keep: best goes by the dev score, and eval_questions: 0 evaluates none"),
        ("patience: 2", "patience: 0", r"ppo.guards.patience"),
    ],
)
def test_guards_that_cannot_work_are_refused(old: str, new: str, message: str) -> None:
    text = Path("params.yaml").read_text(encoding="utf-8")
    if old != "max_kl: null":
        text = text.replace("max_kl: null", "max_kl: 1.0").replace("keep: last", "keep: best")
    assert old in text
    with pytest.raises(ConfigError, match=message):
        parse(text.replace(old, new))
