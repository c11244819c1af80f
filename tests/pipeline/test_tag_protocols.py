"""The pipeline from the world to PPO in the protocols of Search-R1 and ReSearch, with their rewards, on the smallest profile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.small_project import dvc, make_small

CHANGES = {
    "max_turn_tokens: 64 ": "max_turn_tokens: 160 ",
    "max_context_tokens: 640": "max_context_tokens: 1600",
    "outcome: match_or_judge": "outcome: {outcome}",
    "process: judge": "process: none",
    "  epochs: 1": "  epochs: 3",  # of SFT: tags are spelled letter by letter by this tokenizer, seven updates hardly reach them
    "preset: demo": "preset: {preset}",
    "name: r3rag": "name: {name}",
    "max_steps: 6 ": "on_invalid: {invalid}\n  max_steps: 3 ",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "preset", "outcome", "invalid"),
    [("search_r1", "search_r1_format", "match", "feedback"), ("research", "research", "f1", "stop")],
)
def test_from_the_world_to_a_policy(tmp_path: Path, name: str, preset: str, outcome: str, invalid: str) -> None:
    folder = make_small(tmp_path)
    text = (folder / "params.yaml").read_text(encoding="utf-8")
    for old, new in CHANGES.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new.format(name=name, preset=preset, outcome=outcome, invalid=invalid))
    (folder / "params.yaml").write_text(text, encoding="utf-8")
    done = dvc(folder, "repro", "ppo")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    sft, ppo = (json.loads((folder / f"metrics/{stage}.json").read_text()) for stage in ("sft", "ppo"))
    assert sft["left_out_too_long"] == 0 and sft["loss"] < 0.6 * sft["loss_first"]
    assert ppo["unknown"] == 0 and ppo["updates"] > 0 and ppo["reward_process"] == 0.0
    # a policy of twenty updates has hardly learned the form: told what was wrong it goes on, else its first turn is its last
    assert (ppo["malformed_rate"] == 0.0) == (invalid == "feedback")
    assert (ppo.get("invalid_turns", 0.0) > 0.0) == (invalid == "feedback") and "untidy_turns" in ppo
