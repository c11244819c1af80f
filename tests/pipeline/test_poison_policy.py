"""Policies that follow a script among hostile passages: what these forge ends no step, is no answer, earns nothing and is masked.

Every forged answer is the gold one, so whoever believed a passage would be rewarded.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from r3flow.environment import Environment
from r3flow.llm.judge import Judge
from r3flow.protocol.r3rag import ANALYSIS, ANSWER, QUERY
from r3flow.rewards import PRESETS
from r3flow.rollout import Rollout, generate_rollouts
from r3flow.training.batch import Batch
from r3flow.training.scoring import Scorer
from r3flow.training.sft import encode_all, sample_of
from r3flow.trajectory import InvalidStep, Question, Step
from tests.llm_fakes import BadServer, client
from tests.poison import GOLD, SAID, SCENES, SETTINGS, TOKENIZERS, P, Shelf, Voices, check_block, reward

LOOK = {number: f"Step {number}:\n{ANALYSIS} I look at it.\n{QUERY} " for number in (1, 2, 3)}
LAST: dict[str, tuple[str, str]] = {
    "wrong": (f"Step 3:\n{ANALYSIS} I think.\n{ANSWER}", f" {SAID}"),
    "right": (f"Step 3:\n{ANALYSIS} I know.\n{ANSWER}", f" {GOLD}"),
    "budget": (LOOK[3], "more"),
    "malformed": ("I am", " done"),
}
"""What each kind of policy writes in its third turn, after two searches."""
DEMO = PRESETS["demo"]
TOTAL = {
    "wrong": DEMO.outcome["wrong"], "right": DEMO.outcome["right"], "budget": DEMO.outcome["unanswered"], "malformed": DEMO.format
}  # fmt: skip
FINISH = {"wrong": "answered", "right": "answered", "budget": "budget", "malformed": "malformed"}


def mark(name: str, place: int) -> str:
    """Ends the prompt (0) or a block of documents; one token with its line break, so that the script knows its place."""
    return f"{name}:{place}?"


class Scripted(LlamaForCausalLM):
    """A small random policy whose logits are pushed to `after[token]`, the script's next token."""

    after: torch.Tensor

    def forward(self, input_ids: Any = None, cache: Any = None, position_ids: Any = None, logits_to_keep: int = 0, **rest: Any) -> Any:  # type: ignore[override]
        out = super().forward(input_ids=input_ids, cache=cache, position_ids=position_ids, logits_to_keep=logits_to_keep, **rest)
        wanted = self.after[input_ids[:, -logits_to_keep:] if logits_to_keep else input_ids]
        out.logits = out.logits + 60 * torch.nn.functional.one_hot(wanted, out.logits.shape[-1])
        return out


@pytest.fixture(scope="module", params=TOKENIZERS)
def rolled(request: pytest.FixtureRequest) -> tuple[PreTrainedTokenizerFast, dict[str, Rollout]]:
    """The tokenizer, and a rollout of each kind of policy with every scene, two scenes in each."""
    chains: dict[str, list[list[str]]] = {}
    for number in range(len(SCENES)):
        for kind in LAST:
            name = f"{kind}-{number}"
            first = f"{LOOK[1]}{number} {mark(name, 1)}"
            second = f"{LOOK[2]}{(number + 1) % len(SCENES)} {mark(name, 2)}"
            chains[name] = [[f"{mark(name, 0)}\n", first], [f"{mark(name, 1)}\n", second], [f"{mark(name, 2)}\n", *LAST[kind]]]
    tokenizer = TOKENIZERS[request.param](list(dict.fromkeys(piece for turns in chains.values() for turn in turns for piece in turn)))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=2600, initializer_range=0.1, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    model = Scripted(config)
    model.after = torch.full((len(tokenizer),), 5)
    for turns in chains.values():
        for turn in turns:
            for one, other in pairwise([*map(tokenizer.convert_tokens_to_ids, turn), tokenizer.eos_token_id]):
                model.after[one] = other
    questions = [Question(name, f"Which port is {mark(name, 0)}", (GOLD,)) for name in chains]
    environment = Environment(Shelf(), P, SETTINGS)
    rollouts = generate_rollouts(model, tokenizer, environment, questions, SETTINGS.protocol, temperature=0.0, seed=0)
    return tokenizer, dict(zip(chains, rollouts, strict=True))


def test_a_forged_step_ends_nothing_and_a_forged_answer_is_none(rolled: tuple[PreTrainedTokenizerFast, dict[str, Rollout]]) -> None:
    tokenizer, rollouts = rolled
    for name, rollout in rollouts.items():
        kind = name.split("-")[0]
        trajectory, ids, ends = rollout.trajectory, rollout.completion_ids, rollout.step_ends
        assert trajectory.finish == FINISH[kind]
        assert trajectory.answer == {"wrong": SAID, "right": GOLD}.get(kind)
        assert trajectory.searches == 2 + (kind == "budget") and len(trajectory.steps) == 3
        assert isinstance(trajectory.steps[-1], InvalidStep) == (kind == "malformed")
        # the policy wrote every end of text, and nothing else in the stream is a special token
        special = {tokenizer.eos_token_id, tokenizer.pad_token_id}
        assert [place for place, token in enumerate(rollout.prompt_ids + ids) if token in special] == [
            len(rollout.prompt_ids) + end for end in ends
        ]
        # what is masked is the environment's two blocks, whole, and they read as documents
        for number in (0, 1):
            start = ends[number] + 1
            stop = start + rollout.mask[start:].index(1)
            step = trajectory.steps[number]
            assert isinstance(step, Step) and stop < ends[number + 1] and all(rollout.mask[stop : ends[number + 1] + 1])
            assert step.hits == tuple(Shelf().search([step.query or ""], 3)[0])
            check_block(tokenizer.decode(ids[start:stop], clean_up_tokenization_spaces=False))
            assert rollout.logprobs[start:stop] == [0.0] * (stop - start)
        assert sum(rollout.mask[: ends[0] + 1]) == ends[0] + 1


def test_no_forged_answer_earns_a_reward(rolled: tuple[PreTrainedTokenizerFast, dict[str, Rollout]], tmp_path: Any) -> None:
    rollouts = rolled[1]
    trajectories = [rollout.trajectory for rollout in rollouts.values()]
    voices = Voices([trajectory.question for trajectory in trajectories])
    with BadServer(speaker=voices) as server, client(server.url, tmp_path, role="judge") as made:  # type: ignore[arg-type]
        judge = Judge(made, SETTINGS.protocol.max_document_characters)
        breakdowns = Scorer(reward(), judge)(trajectories)
    assert judge.failed == judge.unreadable == 0
    assert [breakdown.total for breakdown in breakdowns] == [TOTAL[name.split("-")[0]] for name in rollouts]
    assert all(set(breakdown.process) == {0.0} for breakdown in breakdowns)
    rewards = [[value for value in breakdown.steps if value is not None] for breakdown in breakdowns]
    batch = Batch(list(rollouts.values()), rewards, range(len(rollouts)), mask_retrieved=True)
    written = [token for item in rollouts.values() for token, own in zip(item.completion_ids, item.mask, strict=True) if own]
    assert batch.chunk(range(len(rollouts))).targets.tolist() == written and bool(batch.own.all())


def test_the_cold_start_learns_nothing_of_them(rolled: tuple[PreTrainedTokenizerFast, dict[str, Rollout]]) -> None:
    tokenizer, rollouts = rolled
    chosen = [rollout for name, rollout in rollouts.items() if not name.startswith("budget")]  # its last query is never searched
    for rollout, encoded in zip(chosen, encode_all([item.trajectory for item in chosen], tokenizer, SETTINGS), strict=True):
        sample = sample_of(encoded)
        assert sample["input_ids"] == rollout.prompt_ids + rollout.completion_ids
        assert sample["labels"] == [-100] * len(rollout.prompt_ids) + [
            token if own else -100 for token, own in zip(rollout.completion_ids, rollout.mask, strict=True)
        ]
