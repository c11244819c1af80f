"""`r3flow plan`: counts and memory against numbers worked out by hand, sizes against the real models', and what is missing on a machine."""

import json
import math
import os
import subprocess
import sys
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from r3flow import cli
from r3flow.errors import DataError
from r3flow.params import SecondTeacher, read
from r3flow.planning import machine, memory, shapes, work
from r3flow.planning.machine import GPU, Machine
from r3flow.planning.plan import HASHED_TFIDF, disk, make, render, size
from r3flow.planning.shapes import TABLE, Shape, shape_from
from r3flow.retrieval import encoders
from r3flow.training import batch, losses
from r3flow.training.critic import ModelCritic
from tests.toy_project import ROOT

GIB = 2**30
CPU = Machine((), 16 * GIB, 100 * GIB)
PROFILES = sorted((ROOT / "params").glob("*.yaml"))

TINY = Shape(100, 8, 16, 2, 2, 1, 4, False, False, False, False, 128)
"""Vocabulary 100, width 8, MLP 16, 2 layers, 2 query heads and 1 key head of 4; an output head of its own; no biases."""


@pytest.fixture(autouse=True)
def _no_other_cache(monkeypatch, tmp_path):
    """No model of this machine's hub cache, and no key of its environment, plays a part."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "no-hub"))
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)


def profile(name):
    return read(ROOT / "params" / f"{name}.yaml")


def plan_of(name, here=CPU, **options):
    return make(profile(name), name, ROOT, here=here, **options)


# counts


def test_counts_of_a_profile_are_those_worked_out_by_hand():
    plan = plan_of("paper-llama")
    assert plan["stages"] == ["prepare", "index", "synthesize", "escalate", "filter", "sft", "ppo", "control", "evaluate", "report"]
    assert plan["rollouts"]["trajectories"] == 131_072  # 512 iterations of 64 prompts and 4 chains
    assert plan["rollouts"]["tokens_each"] == 2_560  # 5 steps of 512
    assert plan["rollouts"]["tokens"] == {
        "rollouts": 335_544_320, "dev_evaluation": 0,
        "evaluate": 240_823_296,  # 22,398 questions: four systems of 2,560 and one answer of 512
    }  # fmt: skip
    assert plan["updates"] == {"sft": 24_352, "ppo": 8_192}  # 3 x 64,937 / 8, and 512 x 256 / 16
    [steps] = plan["calls"]["teacher"]["purposes"]
    assert steps["calls"] == 4_545_590  # 64,937 questions, 7 attempts, 5 steps, 2 tries
    judged = {item["purpose"]: item["calls"] for item in plan["calls"]["judge"]["purposes"]}
    assert judged == {
        "filter: verdicts": 454_559,  # 64,937 x 7
        "ppo: relevance": 655_360,  # the query of the fifth step is searched too
        "ppo: verdicts": 131_072,
        "evaluate: verdicts": 111_990,  # 22,398 x 5 systems
    }
    assert plan["calls"]["judge"]["calls"] == 1_352_981 and plan["calls"]["judge"]["usd"] == 0


def test_the_price_of_a_profile_is_that_worked_out_by_hand():
    [steps] = plan_of("paper-llama")["calls"]["teacher"]["purposes"]
    # five passages of 512 characters are 768 tokens; of four earlier steps of 256 + 768 tokens the middle step has seen two
    instructions = len((ROOT / "r3flow/llm/prompts/teacher_r3rag.txt").read_text().strip())
    prompt = math.ceil(0.3 * (instructions + 150)) + 2 * (256 + 768)
    assert (steps["input_tokens_each"], steps["output_tokens_each"]) == (prompt, 256)
    assert steps["usd"] == pytest.approx(4.54559 * (prompt * 0.14 + 256 * 0.28), abs=0.01)


def test_counts_of_the_demo_are_those_worked_out_by_hand():
    plan = make(read(ROOT / "params.yaml"), "params.yaml", ROOT, here=CPU)
    assert plan["rollouts"]["tokens"] == {
        "rollouts": 16 * 128 * 7 * 64, "dev_evaluation": (1 + 4) * 128 * 7 * 64, "evaluate": 600 * (4 * 7 * 64 + 64),
    }  # fmt: skip
    assert plan["updates"] == {"sft": 375, "ppo": 64}
    assert [item["records"] for item in plan["data"]] == [12_000, 6_000, 400, 600]
    relevance = plan["calls"]["judge"]["purposes"][1]
    assert (relevance["purpose"], relevance["calls"]) == ("ppo: relevance", 2_048 * 6)  # the last query is not searched


def test_a_second_teacher_is_planned_as_if_the_first_failed_everywhere():
    params = profile("paper-llama")
    strong = SecondTeacher.model_validate({
        **params.teacher.model_dump(), "model": "deepseek-v4-pro", "max_tokens": 4096, "extra_body": {}, "attempts": 3,
        "api_key_env": "OTHER_KEY", "budget_usd": 1.0, "price_usd_per_million": {"input": 0.435, "output": 0.87},
    })  # fmt: skip
    alone, plan = plan_of("paper-llama"), make(params.model_copy(update={"second_teacher": strong}), "p", ROOT, here=CPU)
    assert "second_teacher" not in alone["calls"] and "second_teacher" not in alone["models"]
    [steps], [first] = plan["calls"]["second_teacher"]["purposes"], plan["calls"]["teacher"]["purposes"]
    assert steps["calls"] == 64_937 * 3 * 5 * 2 and steps["output_tokens_each"] == 4096
    assert steps["input_tokens_each"] == first["input_tokens_each"]  # what it thinks is not sent back
    assert steps["usd"] == pytest.approx(1.94811 * (steps["input_tokens_each"] * 0.435 + 4096 * 0.87), abs=0.01)
    assert plan["calls"]["judge"]["purposes"][0]["calls"] == 64_937 * (7 + 3)
    assert plan["models"]["second_teacher"] == {"name": "deepseek-v4-pro", "at": "https://api.deepseek.com"}
    assert any(line.startswith("second_teacher.api_key_env: the variable OTHER_KEY is not set") for line in plan["missing"])
    assert any(line.startswith("second_teacher.budget_usd: 1 is below") for line in plan["notes"])
    assert "  second_teacher  steps " in render(plan) and "  teacher         steps " in render(plan)


def test_nothing_is_asked_of_a_judge_that_is_not_needed():
    plan = plan_of("search-r1-qwen2.5-3b-base-ppo")
    assert plan["models"]["judge"] is None and plan["calls"]["judge"]["calls"] == 0
    assert plan["calls"]["teacher"]["calls"] == 100 * 1 * 5 * 2


@pytest.mark.parametrize(("every", "wanted"), [(4, 1 + 2 + 1), (5, 1 + 2), (16, 1 + 1)])
def test_dev_evaluations_are_counted_as_the_trainer_makes_them(every, wanted):
    ppo = read(ROOT / "params.yaml").ppo.model_copy(update={"iterations": 10, "eval_every": every})
    assert work.dev_evaluations(read(ROOT / "params.yaml").model_copy(update={"ppo": ppo})) == wanted


def test_fewer_questions_than_asked_for_are_counted_from_the_files(tmp_path):
    params = profile("paper-llama")
    (tmp_path / "data/own").mkdir(parents=True)
    (tmp_path / "dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    (tmp_path / "params.yaml").write_text((ROOT / "params/paper-llama.yaml").read_text())
    for name, count in (("corpus", 3), ("train", 10), ("dev", 1), ("test", 2)):
        (tmp_path / f"data/own/{name}.jsonl").write_text("{}\n" * count + "\n")
    plan = make(params, "params.yaml", tmp_path, here=CPU)
    assert [(item["there"], item["records"]) for item in plan["data"]] == [(True, 3), (True, 10), (True, 1), (True, 2)]
    assert plan["calls"]["teacher"]["calls"] == 10 * 7 * 5 * 2 and plan["updates"]["sft"] == 4
    assert plan["memory"]["index_bytes"] == 3 * 768 * 4
    assert not [line for line in plan["missing"] if line.startswith("prepare.")]


# sizes of models


CONFIGS = [
    (LlamaForCausalLM, LlamaConfig, {}),
    (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True, "head_dim": 24, "num_key_value_heads": 4}),
    (LlamaForCausalLM, LlamaConfig, {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
    (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
    (Qwen2ForCausalLM, Qwen2Config, {"num_key_value_heads": 4, "tie_word_embeddings": False}),
]


def small(build, settings, **changes):
    sizes = {
        "vocab_size": 300, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 256,
    }  # fmt: skip
    torch.manual_seed(0)
    return build(settings(**{**sizes, **changes}))


@pytest.mark.parametrize(("build", "settings", "changes"), CONFIGS)
def test_the_formula_counts_what_transformers_builds(build, settings, changes, tmp_path):
    model = small(build, settings, **changes)
    model.config.save_pretrained(tmp_path)
    shape, source = shapes.shape_of(str(tmp_path))
    assert shape is not None and source.endswith("config.json")
    assert shape.parameters == sum(weight.numel() for weight in model.parameters())
    critic = ModelCritic(model)
    assert memory.Sizes(shape.parameters, shape).critic == sum(weight.numel() for weight in critic.parameters())


def test_the_table_gives_the_published_totals():
    assert {name: shape.parameters for name, shape in TABLE.items()} == {
        "meta-llama/Llama-3.1-8B": 8_030_261_248, "Qwen/Qwen2.5-7B": 7_615_616_512, "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
        "Qwen/Qwen2.5-3B": 3_085_938_688, "Qwen/Qwen2.5-3B-Instruct": 3_085_938_688,
    }  # fmt: skip
    assert set(TABLE) == {profile(path.stem).policy.base for path in PROFILES if path.stem != "test"}


def test_a_config_without_a_size_is_refused_and_another_kind_is_unknown(tmp_path):
    with pytest.raises(DataError, match=r"^x/config.json: hidden_size is None, expected a whole number from 1; get the model's .* again$"):
        shape_from({"model_type": "llama", "num_attention_heads": 2}, "x/config.json")
    assert shape_from({"model_type": "mamba"}, "x") is None


def test_a_model_in_the_hubs_cache_is_read_there(tmp_path, monkeypatch):
    folder = tmp_path / "hub/models--Qwen--Qwen2.5-3B/snapshots/abc"
    small(Qwen2ForCausalLM, Qwen2Config).config.save_pretrained(folder)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    plan = plan_of("search-r1-qwen2.5-3b-base-ppo")
    assert plan["models"]["policy"]["here"] and plan["models"]["policy"]["parameters"] < 1e6
    assert not [line for line in plan["missing"] if line.startswith("policy.base")]


# memory


def test_constants_that_torch_modules_hold_are_the_same_here():
    assert {"cpu": batch.CHUNK_TOKENS["cpu"], "gpu": batch.CHUNK_TOKENS_ACCELERATOR} == memory.CHUNK_TOKENS
    assert encoders.HASHED_TFIDF == HASHED_TFIDF


def test_the_parts_are_those_worked_out_by_hand():
    # a layer: 8 x 8 + 8 x 4 + 8 x 4 + 8 x 8 = 192 of attention, 3 x 8 x 16 = 384 of the MLP, 16 of its norms; the last norm 8
    assert TINY.trunk == 800 + 2 * (192 + 384 + 16) + 8 == 1_992 and TINY.parameters == 2_792
    # a token and layer: 6 x 8 + 2 x 8 + 2 x 4 + 4 x 16 + 2 + 2 = 140 numbers; 17 behind the layers
    assert memory.activations(TINY, 10) == 4 * 10 * (2 * 140 + 17) == 11_880
    # 3 rows of 5 tokens, keys and values of 4 in two layers and one to spare
    assert memory.key_value_cache(TINY, 3, 5) == 4 * 3 * 2 * 4 * 15 == 1_440


def test_the_phases_are_those_worked_out_by_hand():
    params = profile("paper-llama")
    small = params.model_copy(update={
        "protocol": params.protocol.model_copy(update={"max_context_tokens": 64}), "sft": params.sft.model_copy(update={"batch_size": 2}),
        "evaluate": params.evaluate.model_copy(update={"batch_size": 10}),
    })  # fmt: skip
    found = {
        phase.name: {part.name: part.bytes for part in phase.parts} for phase in memory.phases(small, memory.Sizes(2_792, TINY), "cpu", 50)
    }
    weights, critic = 4 * 2_792, 4 * (1_992 + 8 + 1)
    standing = {
        "policy weights": weights, "policy Adam moments": 2 * weights, "reference weights": weights, "critic weights": critic,
        "critic Adam moments": 2 * critic, "encoder weights": 200,
    }  # fmt: skip
    gradients = {"policy gradients": weights, "critic gradients": critic}
    each = 4 * (2 * 140 + 17)  # of a token's activations
    assert found["sft: forward and backward"] == {
        "policy weights": weights, "policy Adam moments": 2 * weights, "policy gradients": weights, "activations": 128 * each,
        "logits": 4 * 128 * 100 * 3,
    }  # fmt: skip
    assert found["ppo: forward and backward"] == {
        **standing, **gradients, "activations": 2_560 * each, "critic activations": 2_560 * each, "logits": 4 * 2_560 * 100 * 5,
    }  # fmt: skip
    assert found["ppo: update"] == {**standing, **gradients, "Adam's scratch": weights}
    # 64 prompts and 4 chains, all in one cache
    assert found["ppo: rollouts"] == {**standing, "key-value cache": 4 * 3 * 8 * 256 * 64, "next-token logits": 3 * 4 * 256 * 100}
    assert found["evaluate"]["key-value cache"] == 4 * 3 * 8 * 10 * 64


def test_group_training_has_no_critic_and_no_kl_has_no_reference():
    params = profile("search-r1-qwen2.5-3b-base-grpo")
    parts = {part.name for phase in memory.phases(params, memory.Sizes(2_792, TINY), "gpu") for part in phase.parts}
    assert "reference weights" in parts and not [name for name in parts if "critic" in name]
    plain = params.model_copy(update={"ppo": params.ppo.model_copy(update={"kl": "none"})})
    assert "reference weights" not in {part.name for phase in memory.phases(plain, memory.Sizes(1, TINY), "gpu") for part in phase.parts}


@pytest.mark.parametrize(("build", "settings", "changes"), CONFIGS)
def test_activations_are_what_autograd_keeps(build, settings, changes):
    model = small(build, settings, **changes).train()
    shape = shape_from(model.config.to_dict(), "config")
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept, tensors = {}, []

    def keep(tensor):
        tensors.append(tensor)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.base_model(input_ids=torch.randint(0, 300, (4, 128)), use_cache=False)
    assert memory.activations(shape, 4 * 128) == pytest.approx(sum(kept.values()), rel=0.01)


class Live(TorchDispatchMode):
    """The most bytes of tensors that lived at one time."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self.seen = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage())._cdata not in self.seen:
                self.seen[storage._cdata] = storage.nbytes()
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self._gone, storage._cdata)
        return result

    def _gone(self, name):
        self.now -= self.seen.pop(name)


@pytest.mark.parametrize(("kind", "wanted"), [
    ("plain", memory.LOGIT_COPIES), ("entropy", memory.LOGIT_COPIES_ENTROPY), ("sft", memory.LOGIT_COPIES_SFT),
])  # fmt: skip
def test_copies_of_the_logits_are_those_that_live_at_once(kind, wanted):
    tokens, vocabulary, width = 64, 4_096, 8
    head, hidden = torch.randn(vocabulary, width, requires_grad=True), torch.randn(tokens, width, requires_grad=True)
    head.grad, hidden.grad = torch.zeros_like(head), torch.zeros_like(hidden)
    targets = torch.randint(0, vocabulary, (tokens,))

    def loss():
        """As `trainer._compute_loss` and `sft.PolicyTokenTrainer.compute_loss` use the logits."""
        logits = torch.nn.functional.linear(hidden, head)
        if kind == "sft":
            return torch.nn.functional.cross_entropy(logits.float(), targets, reduction="sum") / tokens
        new = losses.token_log_probs(logits, targets, 0.7)
        total = losses.clipped_policy_loss(new, new.detach(), new.detach(), 0.2).sum()
        if kind == "entropy":
            total = total - 0.1 * losses.token_entropy(logits, 0.7).sum()
        with torch.no_grad():
            losses.token_entropy(logits, 0.7).sum()
        return total

    with Live() as live:
        loss().backward()
    assert live.most / (tokens * vocabulary * 4) == pytest.approx(wanted, abs=0.2)


def test_disk_holds_outputs_twice_and_checkpoints():
    # two copies of three policies and a critic; three trainings of three checkpoints with weights and two moments
    assert disk(1_000, 100) == 2 * 4 * 3_100 + 3 * 3 * 4 * 3_100


def memory_row(name):
    """A profile's line in docs/PROFILES.md."""
    found = {phase["name"]: phase for phase in plan_of(name)["memory"]["phases"]}
    update = found["ppo: forward and backward"]
    standing = sum(count for part, count in update["parts"].items() if part not in ("activations", "critic activations", "logits"))
    others = [size(found[phase]["bytes"]) for phase in ("ppo: forward and backward", "ppo: rollouts", "sft: forward and backward")]
    return f"| `{name}` | {size(standing)} | {' | '.join(others)} |"


def test_the_table_of_memory_is_what_the_plan_says():
    rows = [line for line in (ROOT / "docs/PROFILES.md").read_text().splitlines() if line.startswith("| `")]
    assert len(rows) == 7 and rows == [memory_row(line.split("`")[1]) for line in rows]


# a machine


def test_the_default_says_that_everything_is_here(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(machine, "look", lambda folder: CPU)
    assert cli.main(["plan"]) == 0
    text = capsys.readouterr().out
    assert "Everything is here." in text and "Missing" not in text and "Memory on the CPU" in text


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_profile_can_be_planned(path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    code = cli.main(["plan", "--params", f"params/{path.name}", "--json"])
    plan = json.loads(capsys.readouterr().out)
    assert code == (3 if plan["missing"] else 0)
    if path.stem != "test":
        missing = "\n".join(plan["missing"])
        for line in (
            "prepare.files.corpus: 'data/own/corpus.jsonl' is no file; see README", "teacher.api_key_env: the variable DEEPSEEK_API_KEY is",
            f"policy.base: '{plan['models']['policy']['name']}' is not on this machine", "index.encoder: 'intfloat/e5-base-v2' needs",
        ):  # fmt: skip
            assert line in missing
        assert all("\n" not in line for line in plan["missing"])
        assert plan["memory"]["device"] == "gpu" and plan["memory"]["peak"]["known"]
    assert render(plan).count("\n") > 40


def test_a_machine_that_is_large_enough_lacks_neither_memory_nor_disk():
    large = plan_of("search-r1-qwen2.5-3b-base-ppo", Machine((GPU("one", 80 * GIB), GPU("huge", 4_000 * GIB)), 100 * GIB, 10_000 * GIB))
    assert not [line for line in large["missing"] if line.startswith(("GPU", "RAM", "disk"))]
    small = plan_of("search-r1-qwen2.5-3b-base-ppo", Machine((GPU("one", 80 * GIB),), 2 * GIB, GIB))
    lines = [line for line in small["missing"] if line.startswith(("GPU", "RAM", "disk"))]
    assert lines[0].startswith("GPU: 80.0 GiB on the largest, wanted up to ") and "not shared out over GPUs" in lines[0]
    assert lines[1].startswith("RAM: 2.0 GiB, wanted up to 11.5 GiB") and lines[2].startswith("disk: 1.0 GiB free, wanted")
    none = plan_of("search-r1-qwen2.5-3b-base-ppo")
    assert [line for line in none["missing"] if line.startswith("GPU: nvidia-smi lists none, wanted up to ")]


def test_a_context_longer_than_the_models_positions_is_said():
    params = profile("search-r1-qwen2.5-3b-base-ppo")
    long = params.model_copy(update={"protocol": params.protocol.model_copy(update={"max_context_tokens": 40_000})})
    plan = make(long, "x", ROOT, here=CPU)
    assert "protocol.max_context_tokens: 40000 is more than the policy's 32768 positions; lower it" in plan["missing"]


def test_a_model_that_is_not_known_wants_its_number_of_parameters():
    params = profile("paper-llama")
    other = params.model_copy(update={"policy": params.policy.model_copy(update={"base": "some/model"})})
    plan = make(other, "x", ROOT, here=CPU)
    assert plan["models"]["policy"]["parameters"] is None and plan["memory"]["peak"] is None
    assert any(
        line.startswith("policy.base: number of parameters unknown") and line.endswith("--parameters 8e9") for line in plan["missing"]
    )
    assert "Memory: unknown" in render(plan)
    told = make(other, "x", ROOT, here=CPU, parameters=8e9)
    assert told["memory"]["phases"][1]["bytes"] == 20 * 8_000_000_000  # weights, gradients, two moments and scratch of four bytes
    assert told["memory"]["peak"]["known"] is False and "activations unknown" in render(told)


def test_keys_are_seen_but_never_shown(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("DEEPSEEK_API_KEY", "sk-4711")
    for flags in ([], ["--json"]):
        cli.main(["plan", "--params", "params/paper-qwen.yaml", *flags])
        out, err = capsys.readouterr()
        assert "4711" not in out + err and "DEEPSEEK_API_KEY is not set" not in out


def test_gpus_are_those_of_nvidia_smi(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for text, wanted in (
        ("echo 'NVIDIA A100, 80GB, 81920'; echo 'NVIDIA T4, 15360'", (GPU("NVIDIA A100, 80GB", 80 * GIB), GPU("NVIDIA T4", 15 * GIB))),
        ("echo 'NVIDIA-SMI has failed'; exit 9", ()), ("echo 'Strange, [N/A]'", ()), ("exec sleep 5", ()),
    ):  # fmt: skip
        tool.write_text(f"#!/bin/sh\n{text}\n")
        tool.chmod(0o755)
        assert machine.gpus() == wanted


def test_bad_flags_and_files_are_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    assert cli.main(["plan", "--params", "none.yaml"]) == 1
    assert capsys.readouterr().err == "error: none.yaml: no such file; run this in the project's folder\n"
    for text in ("many", "0", "nan", "inf"):
        with pytest.raises(SystemExit) as stop:
            cli.main(["plan", "--parameters", text])
        assert stop.value.code == 2 and "such as 8e9" in capsys.readouterr().err
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    assert cli.main(["plan"]) == 1
    assert capsys.readouterr().err == "error: dvc.yaml: no such file; run this in the project's folder\n"


@pytest.mark.parametrize("file", ["params.yaml", "params/paper-llama.yaml"])
def test_a_plan_loads_nothing_heavy_and_opens_no_connection(file):
    code = (
        "import sys, socket\n"
        "def no(*a, **k): raise AssertionError('network')\n"
        "socket.socket.connect = no; socket.getaddrinfo = no\n"
        "from r3flow import cli\n"
        f"assert cli.main(['plan', '--params', {file!r}]) in (0, 3)\n"
        "heavy = {'torch', 'transformers', 'numpy', 'mlflow', 'prefect', 'faiss', 'sentence_transformers'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr


def test_sizes_for_readers():
    assert [size(n) for n in (512, 5 * 2**20, 3 * GIB // 2, 2**41)] == ["0.5 KiB", "5.0 MiB", "1.5 GiB", "2.0 TiB"]
