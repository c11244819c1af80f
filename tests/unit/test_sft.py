"""The cold start: masks, the order of samples, and a resume that is exact to the bit."""

import random
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from r3flow.errors import DataError
from r3flow.params import load
from r3flow.progress import Silent
from r3flow.protocol import PROTOCOLS
from r3flow.tokens import TokenStream
from r3flow.training.forward import Positions
from r3flow.training.sft import PolicyTokenTrainer, Schedule, encode_all, planned_order, sample_of, train_sft
from r3flow.trajectory import Hit, Passage, Question, Step, Trajectory

ROOT = Path(__file__).parents[2]
PARAMS = load(ROOT / "params.yaml")
BASE = ROOT / "models/tiny-base"
SCHEDULE = Schedule(2, 4, 1e-3, 0.1, 0.1, 0.0, 1.0, 2)


def trajectory(number: int) -> Trajectory:
    rng = random.Random(number)
    page = Passage(f"p{number}", "Red Rose", "Red Rose is a drama film of 1950. " * rng.randint(1, 4))
    steps = (
        Step(1, "I need the director of Red Rose.", query="Red Rose director", hits=(Hit(page, 1.0),)),
        Step(2, "I know.", answer="1950"),
    )
    return Trajectory(Question(f"q{number}", f"When was Red Rose {number} released?", ("1950",)), steps, "answered")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A small random policy with the tiny base's tokenizer."""
    folder = tmp_path_factory.mktemp("base")
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        tie_word_embeddings=True, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_labels_are_the_policys_tokens_and_nothing_else(base):
    tokenizer = AutoTokenizer.from_pretrained(base)
    sample = sample_of(encode_all([trajectory(1)], tokenizer, PARAMS)[0])
    kept = [token for token in sample["labels"] if token != -100]
    protocol = PROTOCOLS["r3rag"]
    expected = [
        token for step in trajectory(1).steps for token in [*tokenizer(protocol.render_step(step))["input_ids"], tokenizer.eos_token_id]
    ]
    assert kept == expected and len(sample["labels"]) == len(sample["input_ids"])
    assert all(label in (-100, token) for label, token in zip(sample["labels"], sample["input_ids"], strict=True))


def test_gradients_do_not_depend_on_what_follows_a_masked_token(base):
    """The gradient of the SFT loss with respect to logits is zero wherever the next token was retrieved or given."""
    sample = sample_of(encode_all([trajectory(1)], AutoTokenizer.from_pretrained(base), PARAMS)[0])
    model = LlamaForCausalLM.from_pretrained(base)
    logits = model(torch.tensor([sample["input_ids"]])).logits.detach().requires_grad_()
    labels = torch.tensor([sample["labels"]])[:, 1:]
    wanted = labels != -100
    torch.nn.functional.cross_entropy(logits[:, :-1][wanted], labels[wanted]).backward()
    assert logits.grad[:, :-1][~wanted].abs().max() == 0 and (logits.grad[:, :-1][wanted].abs().sum(-1) > 0).all()


def test_special_tokens_written_in_a_passage_stay_text(base):
    tokenizer = AutoTokenizer.from_pretrained(base)
    stream = TokenStream(tokenizer, PROTOCOLS["r3rag"])
    ids = stream.environment_ids("a <eos> b <pad>")
    assert tokenizer.eos_token_id not in ids and tokenizer.pad_token_id not in ids and tokenizer.decode(ids) == "a <eos> b <pad>"
    assert tokenizer.eos_token_id not in stream.prompt_ids("Who is <eos>?")


def test_the_loss_without_a_mask_is_the_models_own_loss_with_one(base):
    model, tokenizer = LlamaForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
    samples = [sample_of(item) for item in encode_all([trajectory(number) for number in range(4)], tokenizer, PARAMS)]
    batch = DataCollatorForLanguageModeling(pad_token_id=0)(samples)
    mask = batch["attention_mask"]
    assert not mask.all() and (mask[:, 1:] <= mask[:, :-1]).all()  # padded, and on the right
    trainer = PolicyTokenTrainer.__new__(PolicyTokenTrainer)
    trainer.positions = Positions(model)
    ours = trainer.compute_loss(model, batch)
    trainer.positions.handle.remove()
    torch.testing.assert_close(ours, model(**batch).loss)


@given(st.lists(st.integers(5, 200), min_size=1, max_size=60), st.integers(1, 8), st.integers(1, 3))
def test_every_sample_comes_once_an_epoch(lengths, batch, epochs):
    order = planned_order(lengths, Schedule(epochs, batch, 1e-3, 0.1, 0.1, 0.0, 1.0, 2), 1)
    for epoch in range(epochs):
        assert sorted(order[epoch * len(lengths) : (epoch + 1) * len(lengths)]) == list(range(len(lengths)))


def test_a_token_budget_ends_the_order_within_one_batch():
    lengths = [100] * 40
    order = planned_order(lengths, Schedule(1000, 8, 1e-3, 0.1, 0.1, 0.0, 1.0, 2, tokens=10_000), 1)
    assert 10_000 <= 100 * len(order) < 10_800


def weights(folder):
    return LlamaForCausalLM.from_pretrained(folder).state_dict()


class DiesAt:
    """A reporter that ends the run at a step, as a kill would."""

    def __init__(self, step):
        self.step = step

    def metrics(self, values, step):
        return None

    def progress(self, done, total, note=""):
        if done == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("step", [1, 3, 5])
def test_a_killed_run_resumes_to_the_same_bits(base, tmp_path, step):
    data = [trajectory(number) for number in range(18)]
    whole = train_sft(PARAMS, base, data, SCHEDULE, tmp_path / "a", tmp_path / "work-a", Silent())
    with pytest.raises(KeyboardInterrupt):
        train_sft(PARAMS, base, data, SCHEDULE, tmp_path / "b", tmp_path / "work-b", DiesAt(step))
    assert not (tmp_path / "b").exists()
    torn = tmp_path / "work-b/checkpoints/checkpoint-99"  # a checkpoint cut off while it was written
    torn.mkdir(parents=True)
    (torn / "model.safetensors").write_bytes(b"half")
    resumed = train_sft(PARAMS, base, data, SCHEDULE, tmp_path / "b", tmp_path / "work-b", Silent())
    assert resumed == whole, (resumed, whole)
    one, two = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], value) for name, value in weights(base).items())


class Listener(Silent):
    """Keeps the notes of the progress."""

    def __init__(self):
        self.notes = []

    def progress(self, done, total, note=""):
        self.notes.append(note)


def test_progress_shows_no_loss_before_one_is_known(base, tmp_path):
    listener = Listener()
    train_sft(PARAMS, base, [trajectory(number) for number in range(8)], SCHEDULE, tmp_path / "out", tmp_path / "work", listener)
    assert listener.notes[0] == "" and len(listener.notes) == 4
    assert all(re.fullmatch(r"loss \d+\.\d{3}", note) for note in listener.notes[1:])


def test_a_context_too_small_for_every_trajectory_is_refused(base):
    small = PARAMS.model_copy(update={"protocol": PARAMS.protocol.model_copy(update={"max_context_tokens": 16})})
    with pytest.raises(DataError, match="max_context_tokens"):
        encode_all([trajectory(1)], AutoTokenizer.from_pretrained(base), small)
