"""A stream in a batch of the decoder must be what Hugging Face computes for that stream alone, from nothing, without a cache."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import transformers

from r3flow import decoding
from r3flow.decoding import Decoder, Turn
from r3flow.drafts import Drafts
from r3flow.errors import ConfigError

VOCABULARY, EOS = 61, 1
SIZE = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "initializer_range": 0.4}
SIZE |= {"pad_token_id": 0, "eos_token_id": EOS, "bos_token_id": 2}
MODERN = {**SIZE, "intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 256}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**MODERN, "tie_word_embeddings": True}),
    "llama-eager": ("Llama", {**MODERN, "attn_implementation": "eager"}),
    "qwen2": ("Qwen2", MODERN),
    "qwen3": ("Qwen3", {**MODERN, "head_dim": 8}),
    "smollm3": ("SmolLM3", MODERN),
    "mistral-sliding": ("Mistral", {**MODERN, "sliding_window": 7}),
    "phi3-sliding": ("Phi3", {**MODERN, "sliding_window": 7}),
    "qwen2-mixed": ("Qwen2", {**MODERN, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "gemma2-mixed-eager": ("Gemma2", {**MODERN, "head_dim": 8, "sliding_window": 7, "attn_implementation": "eager"}),
    "gemma3-mixed": (
        "Gemma3",
        {**MODERN, "head_dim": 8, "sliding_window": 7, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]},
    ),
    "gpt2-learned-positions": ("GPT2", {**SIZE, "n_positions": 256}),
    "gpt-neox": ("GPTNeoX", {**SIZE, "intermediate_size": 48, "max_position_embeddings": 256}),
    "opt-learned-positions": ("OPT", {**SIZE, "ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 256, "init_std": 0.4}),
}


def make(family: str, seed: int = 0) -> Any:
    name, options = FAMILIES[family]
    torch.manual_seed(seed)
    options = dict(options)
    attention = options.pop("attn_implementation", None)
    config_name = "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config"
    config = getattr(transformers, config_name)(**options)
    model_name = {"GPT2": "GPT2LMHeadModel"}.get(name, f"{name}ForCausalLM")
    model = getattr(transformers, model_name)._from_config(config, **({"attn_implementation": attention} if attention else {}))
    return model.eval()


def alone(model: Any, stream: list[int], limit: int) -> list[int]:
    """Hugging Face's greedy continuation."""
    ids = torch.tensor([stream])
    out = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=limit, eos_token_id=EOS, pad_token_id=0
    )
    return out[0, len(stream) :].tolist()


def fresh_logprobs(model: Any, stream: list[int], written: list[int], temperature: float) -> torch.Tensor:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([stream + written])).logits[0, len(stream) - 1 : -1].float()
    return torch.log_softmax(logits / temperature, -1).gather(-1, torch.tensor(written)[:, None])[:, 0]


def play(
    model: Any, temperature: float, rows: list[int], seed: int = 0, turns: int = 4, draft: int | None = None
) -> dict[int, list[tuple[list[int], Turn, int]]]:
    """Rounds of blocks and turns; a row drops out now and then. Everything random hangs on the row's number alone.

    Returns for each row its (stream before the turn, turn, limit).
    """
    chance = {row: random.Random(1000 * seed + row) for row in rows}
    streams: dict[int, list[int]] = {row: [] for row in rows}
    history: dict[int, list[tuple[list[int], Turn, int]]] = {row: [] for row in rows}
    decoder = Decoder(model, EOS, temperature=temperature, draft=draft)
    going = list(rows)
    with torch.no_grad():
        for _ in range(turns):
            blocks = {row: [chance[row].randrange(3, VOCABULARY) for _ in range(chance[row].randint(1, 14))] for row in going}
            limits = {row: chance[row].randint(1, 12) for row in going}
            numbers = {row: [chance[row].random() for _ in range(12)] for row in going}
            decoder.extend(blocks, max(limits.values()))
            turned = decoder.turn(limits, numbers)
            assert turned.keys() == blocks.keys()
            for row in going:
                streams[row] += blocks[row]
                history[row].append((list(streams[row]), turned[row], limits[row]))
                streams[row] += turned[row].ids
            going = [row for row in going if chance[row].random() < 0.8]
            if not going:
                break
    return history


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_rows_equal_generate_alone(family: str) -> None:
    model = make(family)
    history = play(model, 0.0, list(range(9)))
    turns = [turn for row in history.values() for turn in row]
    assert len(turns) > 18
    for stream, turn, limit in turns:
        assert turn.ids == alone(model, stream, limit)
        assert turn.complete == (turn.ids[-1] == EOS)
        torch.testing.assert_close(torch.tensor(turn.logprobs), fresh_logprobs(model, stream, turn.ids, 1.0), atol=3e-5, rtol=0)


@pytest.mark.parametrize("family", ["llama", "gemma3-mixed", "gpt2-learned-positions"])
def test_sampled_rows_have_the_logprobs_of_a_fresh_forward(family: str) -> None:
    model = make(family)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(0.2)  # flat enough that end-of-text comes at all lengths
    turns = [turn for row in play(model, 0.7, list(range(40))).values() for turn in row]
    assert {turn.complete for _, turn, _ in turns} == {True, False}
    assert len({len(turn.ids) for _, turn, _ in turns if turn.complete}) > 4
    for stream, turn, limit in turns:
        assert 1 <= len(turn.ids) <= limit and EOS not in turn.ids[:-1]
        assert turn.complete or len(turn.ids) == limit
        torch.testing.assert_close(torch.tensor(turn.logprobs), fresh_logprobs(model, stream, turn.ids, 0.7), atol=3e-5, rtol=0)


@pytest.mark.parametrize("idle_part", [1, 3, 1000])
def test_a_stream_does_not_depend_on_its_batch(monkeypatch: pytest.MonkeyPatch, idle_part: int) -> None:
    monkeypatch.setattr(decoding, "_IDLE_PART", idle_part)
    monkeypatch.setitem(decoding._BLOCK_TOKENS, "cpu", 37)
    model = make("llama")
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(0.2)
    together = play(model, 0.9, list(range(20)))
    for row in range(20):
        assert [turn.ids for _, turn, _ in play(model, 0.9, [row])[row]] == [turn.ids for _, turn, _ in together[row]]


@pytest.mark.parametrize("draft", [1, 2, 5])
@pytest.mark.parametrize("luck", ["looked up", "right", "half right", "wrong"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("family", ["llama", "gemma3-mixed", "gpt2-learned-positions"])
def test_drafts_change_nothing_but_the_passes(
    monkeypatch: pytest.MonkeyPatch, family: str, temperature: float, luck: str, draft: int
) -> None:
    model = make(family)
    if temperature:
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(0.2)
    passes, forward = [0], Decoder._forward

    def counted(self: Decoder, *arguments: Any) -> torch.Tensor:
        passes[0] += 1
        return forward(self, *arguments)

    monkeypatch.setattr(Decoder, "_forward", counted)
    plain = play(model, temperature, list(range(9)), draft=0)
    without = passes[0]
    written = {row: [token for _, turn, _ in turns for token in turn.ids] for row, turns in plain.items()}
    done = dict.fromkeys(written, 0)

    def wrote(self: Drafts, stream: int, token: int) -> None:
        done[stream] += 1

    def oracle(self: Drafts, stream: int, most: int) -> list[int]:
        coming = written[stream][done[stream] : done[stream] + most]
        sure = {"right": len(coming), "half right": len(coming) // 2, "wrong": 0}[luck]
        return coming[:sure] + [(token + 1) % VOCABULARY for token in coming[sure:]]

    if luck != "looked up":
        monkeypatch.setattr(Drafts, "wrote", wrote)
        monkeypatch.setattr(Drafts, "propose", oracle)
    passes[0] = 0
    drafted = play(model, temperature, list(range(9)), draft=draft)
    assert passes[0] <= without
    if luck == "right":
        assert passes[0] < without * (0.8 if draft == 1 else 0.6)
    for row, turns in plain.items():
        for (stream, turn, _), (same, other, _) in zip(turns, drafted[row], strict=True):
            assert (stream, turn.ids, turn.complete) == (same, other.ids, other.complete)
            torch.testing.assert_close(torch.tensor(turn.logprobs), torch.tensor(other.logprobs), atol=3e-5, rtol=0)


def test_a_draft_is_what_followed_the_longest_known_end() -> None:
    drafts = Drafts()
    drafts.read(0, [10, 11, 12, 20, 21, 11, 12, 30, 10, 11, 12])
    assert drafts.propose(0, 3) == [20, 21, 11], "three tokens decide, not the last two, which were followed by 30 at last"
    drafts.read(1, [40, 50])
    assert drafts.propose(1, 2) == [], "what another stream read is its own"
    drafts.read(2, [40])
    for token in (50, 60, 70):
        drafts.wrote(2, token)
    assert drafts.propose(1, 5) == [60, 70], "what another stream wrote is everybody's"
    drafts.read(1, [50, 51, 40, 50])
    assert drafts.propose(1, 1) == [50], "its own comes before the others'"


def test_choose_is_the_inverse_of_the_cumulative_distribution() -> None:
    logits = torch.log(torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]])).expand(7, -1)
    numbers = torch.tensor([0.0, 0.2499, 0.2501, 0.7499, 0.7501, 0.99999, 1.0])
    ids, logprobs = decoding._choose(logits, 1.0, numbers)
    assert ids.tolist() == [1, 1, 3, 3, 4, 4, 4]
    torch.testing.assert_close(logprobs.exp(), torch.tensor([0.25, 0.25, 0.5, 0.5, 0.25, 0.25, 0.25]))


def test_choose_draws_from_the_tempered_distribution() -> None:
    torch.manual_seed(0)
    logits = torch.randn(8) * 2
    ids, _ = decoding._choose(logits.expand(40_000, -1), 0.6, torch.rand(40_000))
    wanted = torch.softmax(logits / 0.6, -1)
    torch.testing.assert_close(torch.bincount(ids, minlength=8) / 40_000, wanted, atol=0.01, rtol=0)


def test_what_does_not_fit_is_refused_by_name() -> None:
    bloom = transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=8, hidden_size=8, n_layer=1, n_head=2))
    with pytest.raises(ConfigError, match="BloomForCausalLM takes no position ids"):
        Decoder(bloom, EOS, temperature=0.0)
    llama = make("llama")
    llama.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ConfigError, match="flash_attention_2"):
        Decoder(llama, EOS, temperature=0.0)
    mixed = make("qwen2-mixed")
    mixed.config.layer_types = ["full_attention", "linear_attention", "full_attention"]
    with pytest.raises(ConfigError, match="linear_attention"):
        Decoder(mixed, EOS, temperature=0.0)
    with pytest.raises(ConfigError, match="temperature"):
        Decoder(make("llama"), EOS, temperature=-0.1)


def test_a_turn_beyond_its_room_is_refused() -> None:
    decoder = Decoder(make("llama"), EOS, temperature=0.0)
    with pytest.raises(RuntimeError, match="room"):
        decoder.turn({0: 4})
    decoder.extend({0: [3, 4]}, 3)
    with pytest.raises(RuntimeError, match="room"):
        decoder.turn({0: 4})
