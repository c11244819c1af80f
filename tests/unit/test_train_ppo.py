"""The stage's work from a cold start's folder to the policy's, with real rollouts over a retriever and a judge that are not real."""

import csv
import io
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from r3flow.environment import Environment
from r3flow.errors import ConfigError, DataError
from r3flow.params import load
from r3flow.progress import Silent
from r3flow.protocol import PROTOCOLS
from r3flow.tokens import TokenStream
from r3flow.training.run import train_ppo
from r3flow.trajectory import Hit, Passage, Question, Step, Trajectory

ROOT = Path(__file__).parents[2]
BASE = load(ROOT / "params.yaml")
PARAMS = BASE.model_copy(
    update={
        "ppo": BASE.ppo.model_copy(update={"iterations": 2, "prompts": 8, "minibatch": 4, "eval_questions": 3, "eval_every": 1}),
        "protocol": BASE.protocol.model_copy(update={"max_steps": 2, "max_turn_tokens": 24}),
    }
)
PAGE = Passage("p1", "Red Rose", "Red Rose is a film. Step 2:\nThe final answer: 1950")
QUESTIONS = [Question(f"q{number}", f"When was Red Rose {number} released?", ("1950",)) for number in range(5)]
STEPS = (Step(1, "I need it.", query="Red Rose", hits=(Hit(PAGE, 1.0),)), Step(2, "I know it.", answer="1950"))


class Shelf:
    def search(self, queries, k):
        return [[Hit(PAGE, 1.0)] for _ in queries]


class Judge:
    def __init__(self):
        self.asked = 0

    def relevance(self, items):
        self.asked += len(items)
        return [0.5] * len(items)

    def verdict(self, items):
        return [False] * len(items)


@pytest.fixture(scope="module")
def cold_start(tmp_path_factory):
    """A small policy that has learned one trajectory by heart, so that its rollouts search and answer."""
    folder = tmp_path_factory.mktemp("cold")
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "models/tiny-base")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        tie_word_embeddings=True, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    stream = TokenStream(tokenizer, PROTOCOLS["r3rag"])
    encoded = [stream.encode(Trajectory(question, STEPS, "answered")) for question in QUESTIONS]
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(60):
        item = encoded[step % 5]
        ids = torch.tensor([item.prompt_ids + item.completion_ids])
        labels = torch.tensor(
            [[-100] * len(item.prompt_ids) + [t if m else -100 for t, m in zip(item.completion_ids, item.mask, strict=True)]]
        )
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run(cold_start, folder, params=PARAMS, judge=None, questions=QUESTIONS):
    environment = Environment(Shelf(), PROTOCOLS["r3rag"], params)
    return train_ppo(params, questions, QUESTIONS, environment, judge or Judge(), folder / "out", folder / "work", Silent(), cold_start)


def test_from_the_cold_start_to_a_policy(cold_start, tmp_path):
    judge = Judge()
    metrics, curve = run(cold_start, tmp_path, judge=judge)
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics
    assert (metrics["iterations"], metrics["updates"], metrics["trajectories"], metrics["unknown"]) == (2, 8, 16, 0)
    assert metrics["em"] > 0.5
    assert metrics["searches"] == pytest.approx(1, abs=0.3)
    assert judge.asked == pytest.approx(16, abs=4)
    assert not [name for name in metrics if "second" in name or "call" in name]
    rows = list(csv.DictReader(io.StringIO(curve)))
    assert [row["step"] for row in rows] == ["0", "1", "2"]
    assert float(rows[2]["dev_em"]) == pytest.approx(metrics["dev_em"], abs=1e-6)
    # what control gets: every token of every trajectory, once an epoch
    tokens = sum(float(row["tokens"]) + float(row["retrieved_tokens"]) for row in rows[1:]) * 8 * 2
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    stream = TokenStream(tokenizer, PROTOCOLS["r3rag"])
    prompts = [len(stream.prompt_ids(question.question)) for question in QUESTIONS]
    assert 16 * 2 * min(prompts) <= metrics["train_tokens"] - tokens <= 16 * 2 * max(prompts)
    trained, start = (AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (tmp_path / "out", cold_start))
    assert any(not torch.equal(trained[name], start[name]) for name in start)
    assert (tmp_path / "out" / "critic" / "critic.safetensors").is_file()


def test_the_same_twice_and_from_its_own_checkpoints(cold_start, tmp_path):
    first = run(cold_start, tmp_path / "a")
    assert run(cold_start, tmp_path / "b") == first
    assert run(cold_start, tmp_path / "a") == first  # every iteration is already there
    one, other = (sorted(path.read_bytes() for path in (tmp_path / name / "out").rglob("*") if path.is_file()) for name in "ab")
    assert one == other


def test_another_seed_is_another_run(cold_start, tmp_path):
    assert run(cold_start, tmp_path / "a")[1] != run(cold_start, tmp_path / "b", PARAMS.model_copy(update={"seed": 77}))[1]


def test_bad_input_is_named(cold_start, tmp_path):
    with pytest.raises(DataError, match="no question"):
        run(cold_start, tmp_path, questions=[])
    with pytest.raises(ConfigError, match="nowhere"):
        run(tmp_path / "nowhere", tmp_path)
