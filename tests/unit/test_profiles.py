"""The papers' profiles: they are what their templates give, and their figures are those of the papers, written out here by hand."""

import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from r3flow.dev import profiles
from r3flow.params import Params, read
from tests.toy_project import ROOT

NAMES = sorted(path.stem for path in (ROOT / "params").glob("*.yaml") if path.stem != "test")
R3RAG = ("paper-llama", "paper-qwen")
SEARCH_R1 = [
    f"search-r1-qwen2.5-{size}-{kind}-{algorithm}"
    for size in ("3b", "7b")
    for kind in ("base", "instruct")
    for algorithm in ("ppo", "grpo")
]
RESEARCH = ("research-qwen2.5-7b", "research-qwen2.5-7b-instruct")


def value(name, key):
    found = read(ROOT / "params" / f"{name}.yaml")
    for part in key.split("."):
        found = getattr(found, part)
    return found


def check(names, figures):
    wrong = {(name, key): value(name, key) for name in names for key, wanted in figures.items() if value(name, key) != wanted}
    assert wrong == {}


def test_the_files_are_what_the_templates_give():
    assert set(NAMES) == set(profiles.PROFILES) == {*R3RAG, *SEARCH_R1, *RESEARCH}
    for name in NAMES:
        assert (ROOT / "params" / f"{name}.yaml").read_text() == profiles.render(name), "run: python -m r3flow.dev.profiles --write"


def test_a_file_that_was_edited_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params").mkdir()
    assert profiles.main(["--write"]) == 0 and profiles.main(["--check"]) == 0
    path = tmp_path / "params/paper-qwen.yaml"
    path.write_text(path.read_text().replace("7.0e-6", "7.0e-5"))
    assert profiles.main([]) == 1
    assert capsys.readouterr().err.startswith("error: params/paper-qwen.yaml: is not what its template gives")
    assert profiles.main(["--sing"]) == 2


def test_r3rag():
    check(R3RAG, {
        "protocol.name": "r3rag", "protocol.max_steps": 5, "protocol.max_turn_tokens": 512, "protocol.max_context_tokens": 4096 + 512,
        "protocol.max_document_characters": 512, "protocol.repeat_passages": False, "protocol.search_at_limit": True,
        "retrieval.top_k": 5, "retrieval.kind": "dense", "index.encoder": "intfloat/e5-base-v2",
        "synthesize.questions": 30_000 + 15_000 + 19_937, "synthesize.attempts": 7, "synthesize.format_tries": 2,
        "synthesize.temperature_first": 0.0, "synthesize.temperature_later": 0.9, "teacher.max_tokens": 256,
        "judge.model": "Qwen/Qwen2.5-14B-Instruct", "judge.max_tokens": 4096, "filter.judge": True,
        "sft.epochs": 3, "sft.warmup_ratio": 0.1, "sft.save_steps": 200, "reward.preset": "paper", "reward.outcome": "match_or_judge",
        "reward.process": "judge", "ppo.algorithm": "ppo", "ppo.prompts": 64, "ppo.group": 4, "ppo.epochs": 1,
        "ppo.learning_rate": 0.0000005, "ppo.critic_learning_rate": 0.000009, "ppo.critic": "model", "ppo.final_lr_factor": 0.1,
        "ppo.clip": 0.2, "ppo.value_clip": 0.2, "ppo.gamma": 1.0, "ppo.lam": 1.0, "ppo.credit": "step", "ppo.kl": "reward",
        "ppo.kl_coefficient": 0.01, "ppo.max_grad_norm": 1.0, "ppo.save_every": 8, "ppo.eval_questions": 0, "ppo.mask_retrieved": True,
        "evaluate.questions": 7_405 + 12_576 + 2_417, "evaluate.judge": True,
    })  # fmt: skip
    check(["paper-llama"], {"policy.base": "meta-llama/Llama-3.1-8B", "sft.learning_rate": 0.00001, "sft.batch_size": 8})
    check(["paper-qwen"], {"policy.base": "Qwen/Qwen2.5-7B", "sft.learning_rate": 0.000007, "sft.batch_size": 16})
    for name in R3RAG:
        # four episodes over the 8,192 HotpotQA questions; 3% warm-up; a minibatch of trajectories for 64 single steps
        assert value(name, "ppo.iterations") * 64 == 8_192 * 4
        assert value(name, "ppo.warmup_iterations") == 15
        assert 64 <= value(name, "ppo.minibatch") * 5 <= 80


def test_search_r1():
    check(SEARCH_R1, {
        "protocol.name": "search_r1", "protocol.max_steps": 4 + 1, "protocol.max_turn_tokens": 500, "protocol.max_documents_tokens": 500,
        "protocol.max_context_tokens": 2048 + 4096, "protocol.on_invalid": "feedback", "protocol.search_at_limit": False,
        "retrieval.top_k": 3, "retrieval.kind": "dense", "index.encoder": "intfloat/e5-base-v2", "reward.preset": "search_r1",
        "reward.outcome": "match", "reward.process": "none", "ppo.iterations": 500, "ppo.prompts": 512, "ppo.minibatch": 256,
        "ppo.epochs": 1, "ppo.learning_rate": 0.000001, "ppo.critic_learning_rate": 0.00001, "ppo.warmup_iterations": 142,
        "ppo.final_lr_factor": 1.0, "ppo.clip": 0.2, "ppo.value_clip": 0.5, "ppo.gamma": 1.0, "ppo.lam": 1.0,
        "ppo.credit": "trajectory", "ppo.kl_coefficient": 0.001, "ppo.entropy_coefficient": 0.001, "ppo.temperature": 1.0,
        "ppo.max_grad_norm": 1.0, "ppo.mask_retrieved": True, "ppo.save_every": 100, "evaluate.judge": False,
    })  # fmt: skip
    for name in SEARCH_R1:
        size, kind, algorithm = name.removeprefix("search-r1-qwen2.5-").split("-")
        assert value(name, "policy.base") == {
            ("3b", "base"): "Qwen/Qwen2.5-3B", ("3b", "instruct"): "Qwen/Qwen2.5-3B-Instruct", ("7b", "base"): "Qwen/Qwen2.5-7B",
            ("7b", "instruct"): "Qwen/Qwen2.5-7B-Instruct",
        }[size, kind]  # fmt: skip
        assert value(name, "protocol.prompt") == ("chat" if kind == "instruct" else "plain")
        assert (value(name, "ppo.algorithm"), value(name, "ppo.group"), value(name, "ppo.kl")) == (
            ("ppo", 1, "reward") if algorithm == "ppo" else ("grpo", 5, "loss")
        )
        assert algorithm == "grpo" or value(name, "ppo.critic") == "model"
        assert not read(ROOT / "params" / f"{name}.yaml").judge_needed


def test_research():
    check(RESEARCH, {
        "protocol.name": "research", "protocol.max_context_tokens": 512 + 8192, "retrieval.top_k": 5, "reward.preset": "research",
        "reward.outcome": "f1", "ppo.algorithm": "grpo", "ppo.group": 5, "ppo.prompts": 256, "ppo.minibatch": 256 * 5,
        "ppo.learning_rate": 0.000001, "ppo.kl": "loss", "ppo.kl_coefficient": 0.001, "ppo.clip": 0.2, "ppo.entropy_coefficient": 0.001,
        "ppo.temperature": 1.0, "ppo.eval_questions": 100, "ppo.eval_every": 10, "evaluate.judge": True, "ppo.mask_retrieved": True,
    })  # fmt: skip
    check(["research-qwen2.5-7b"], {"policy.base": "Qwen/Qwen2.5-7B", "protocol.prompt": "plain"})
    check(["research-qwen2.5-7b-instruct"], {"policy.base": "Qwen/Qwen2.5-7B-Instruct", "protocol.prompt": "chat"})
    for name in RESEARCH:
        # whole batches within two epochs of MuSiQue's train split
        assert 0 <= 2 * 19_938 - value(name, "ppo.iterations") * 256 < 256


def test_the_teacher_is_deepseek_of_today_with_thinking_off():
    check(NAMES, {
        "prepare.source": "files", "teacher.endpoint": "openai", "teacher.base_url": "https://api.deepseek.com",
        "teacher.model": "deepseek-v4-flash", "teacher.extra_body": {"thinking": {"type": "disabled"}},
        "teacher.price_usd_per_million.cached_input": 0.0028, "teacher.price_usd_per_million.input": 0.14,
        "teacher.price_usd_per_million.output": 0.28,
    })  # fmt: skip
    assert all("mid-2026" in (ROOT / "params" / f"{name}.yaml").read_text() for name in NAMES)


def knows(key):
    """Whether today's schema has a key."""
    model = Params
    for part in key.split("."):
        section = next((kind for kind in (model, *get_args(model)) if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if section is None or part not in section.model_fields:
            return False
        model = section.model_fields[part].annotation
    return True


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_said_yet_names_a_key_that_does_not_exist(name):
    """So that whoever adds the key is told to write the figure."""
    text = (ROOT / "params" / f"{name}.yaml").read_text()
    found = re.findall(r"^ *# not yet: ([a-z_.]+)( as a section)?: (\S+)", text, re.MULTILINE)
    assert len(found) == text.count("not yet:") > 3
    for key, as_section, wanted in found:
        assert not knows(key) or as_section or (key, wanted) == ("protocol.max_steps", "null;")


def test_lines_fit_the_page():
    assert [name for name in NAMES if max(map(len, profiles.render(name).splitlines())) > 140] == []
    assert Path(profiles.TEMPLATES).is_dir()
