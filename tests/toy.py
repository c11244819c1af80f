"""A toy environment for the RL trainers: the question names an animal, a search for it returns a sound, the answer must repeat the sound.

The sound differs from question to question, so that without a search no more than one in three is right. The policy's cold start knows
the form, asks for the right animal and repeats what came back in three of five cases each, as its teacher did; the rest it must learn by
rewards. Words are single tokens, so that it takes seconds.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from r3flow.params import PPO, Params, load
from r3flow.progress import Silent
from r3flow.rewards import RewardBreakdown, relevance_by_gold, score
from r3flow.rollout import Rollout
from r3flow.training.critic import build_critic
from r3flow.training.grpo import GroupTrainer
from r3flow.training.ppo import PPOTrainer
from r3flow.training.trainer import SearchRolloutTrainer
from r3flow.trajectory import Hit, InvalidStep, Passage, Question, Step, Trajectory

PARAMS: Params = load(Path(__file__).parents[1] / "params.yaml")
ANIMALS = ["cat", "dog", "cow"]
SOUNDS = ["meow", "woof", "moo"]
WORDS = ["<pad>", "<eos>", "ask", "say", *ANIMALS, *SOUNDS]
IDS = {word: place for place, word in enumerate(WORDS)}


def tokenizer() -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.WordLevel(IDS, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", pad_token="<pad>")


def policy(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(WORDS), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=64, tie_word_embeddings=True, initializer_range=0.08, pad_token_id=0, eos_token_id=1, bos_token_id=None,
        )
    )  # fmt: skip


@functools.cache
def _cold_start() -> dict[str, torch.Tensor]:
    model, rng = policy(), random.Random(0)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(100):
        rows = []
        for _ in range(64):
            name, shown = rng.choice(ANIMALS), rng.choice([*SOUNDS, "ask"])
            asked = name if rng.random() < 0.4 else rng.choice(ANIMALS)
            said = shown if rng.random() < 0.4 and shown != "ask" else rng.choice(SOUNDS)
            rows.append([name, "ask", asked, shown, "say", said])
        ids = torch.tensor([[IDS[word] for word in row] for row in rows])
        labels = ids.clone()
        labels[:, [0, 3]] = -100
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def cold_start() -> LlamaForCausalLM:
    """The policy that RL starts from."""
    model = policy()
    model.load_state_dict(_cold_start())
    return model


def questions(count: int = 64) -> list[Question]:
    return [Question(f"q{place}", ANIMALS[place % 3], (SOUNDS[place // 3 % 3],), gold_ids=(ANIMALS[place % 3],)) for place in range(count)]


def _step(words: list[str], number: int, question: Question) -> Step | InvalidStep:
    if words[0] == "ask":
        sound = question.answers[0] if words[1] == question.question else "ask"
        return Step(number, "-", query=words[1], hits=(Hit(Passage(words[1], words[1], sound), 1.0),))
    if words[0] == "say":
        return Step(number, "-", answer=words[1])
    return InvalidStep(number, " ".join(words), "no such step")


@torch.no_grad()
def rollouts(model: Any, asked: Sequence[Question], temperature: float, seed: int) -> list[Rollout]:
    """At most two turns of two words; all rows have one length. Behind a finished row the batch goes on, and is cut off."""
    model.eval()
    draw = torch.Generator().manual_seed(seed)
    ids = torch.tensor([[IDS[question.question]] for question in asked])
    mask: list[list[int]] = [[] for _ in asked]
    logprobs: list[list[float]] = [[] for _ in asked]
    ends: list[list[int]] = [[] for _ in asked]
    steps: list[list[Step | InvalidStep]] = [[] for _ in asked]
    finish: list[Any] = [None] * len(asked)
    for number in (1, 2):
        for _ in range(2):
            log_probs = torch.log_softmax(model(input_ids=ids).logits[:, -1] / (temperature or 1.0), -1)
            chosen = torch.multinomial(log_probs.exp(), 1, generator=draw) if temperature else log_probs.argmax(-1, keepdim=True)
            ids = torch.cat([ids, chosen], 1)
            picked = log_probs.gather(1, chosen)[:, 0].tolist()
            for row in range(len(asked)):
                if finish[row] is None:
                    mask[row].append(1)
                    logprobs[row].append(picked[row])
        block = torch.zeros(len(asked), 1, dtype=torch.long)
        for row in range(len(asked)):
            if finish[row] is not None:
                continue
            step = _step([WORDS[token] for token in ids[row, -2:].tolist()], number, asked[row])
            steps[row].append(step)
            ends[row].append(len(mask[row]) - 1)
            if isinstance(step, InvalidStep):
                finish[row] = "malformed"
            elif step.answer is not None:
                finish[row] = "answered"
            elif number == 2:
                finish[row] = "budget"
            else:
                block[row] = IDS[step.hits[0].passage.text]
                mask[row].append(0)
                logprobs[row].append(0.0)
        ids = torch.cat([ids, block], 1)
    return [
        Rollout(Trajectory(question, tuple(steps[row]), finish[row]), ids[row, :1].tolist(), ids[row, 1 : 1 + len(mask[row])].tolist(),
                mask[row], logprobs[row], ends[row])
        for row, question in enumerate(asked)
    ]  # fmt: skip


class Scores:
    """The demo preset with the gold rule; `unknown` names calls and places whose reward cannot be told."""

    def __init__(self, unknown: dict[int, set[int]] | None = None) -> None:
        self.unknown, self.number, self.calls = unknown or {}, 0, 0

    def __call__(self, trajectories: Sequence[Trajectory]) -> list[RewardBreakdown]:
        self.number += 1
        lost = self.unknown.get(self.number, set())
        return [
            score(item, relevance=list(relevance_by_gold(item)), preset="demo", outcome="match")
            if place not in lost
            else RewardBreakdown.unknown((None,) * len(item.steps))
            for place, item in enumerate(trajectories)
        ]


def settings(**changes: Any) -> PPO:
    base = {
        "iterations": 4, "prompts": 32, "group": 1, "minibatch": 16, "epochs": 2, "learning_rate": 3e-3, "warmup_iterations": 1,
        "critic_learning_rate": 1e-2, "critic_warmup_iterations": 1, "temperature": 1.0, "eval_questions": 8, "eval_every": 2,
        "kl_coefficient": 0.0, "entropy_coefficient": 0.01, "final_lr_factor": 0.2, "value_clip": None,
    }  # fmt: skip
    return PARAMS.ppo.model_copy(update={**base, **changes})


def trainer(
    folder: Path, chosen: PPO, *, seed: int = 0, scores: Any = None, reporter: Any = None, model: Any = None, make: Any = None
) -> SearchRolloutTrainer:
    model = model or cold_start()
    kind: type[SearchRolloutTrainer] = PPOTrainer if chosen.algorithm == "ppo" else GroupTrainer
    shuffled = questions()
    random.Random(seed).shuffle(shuffled)
    return kind(
        model, tokenizer(), chosen, seed=seed, questions=shuffled, dev_questions=questions(chosen.eval_questions),
        rollouts=make or (lambda asked, temperature, draw: rollouts(model, asked, temperature, draw)), scores=scores or Scores(),
        folder=folder, reporter=reporter or Silent(), critic=build_critic(chosen.critic, model) if chosen.algorithm == "ppo" else None,
    )  # fmt: skip
