"""params.yaml: the shipped files validate, and a bad one is refused in one line that names line, key and remedy."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from r3flow.errors import ConfigError
from r3flow.params import Reward, load, parse, read

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "params.yaml").read_text()


@pytest.mark.parametrize(
    ("kl", "estimator", "fine"), [("loss", "k1", False), ("loss", "k2", True), ("reward", "k1", True), ("none", "k3", False)]
)
def test_an_estimator_of_the_divergence_that_cannot_work_is_refused(kl, estimator, fine):
    text = Path("params.yaml").read_text().replace("kl: reward ", f"kl: {kl} ").replace("kl_estimator: null", f"kl_estimator: {estimator}")
    if fine:
        assert parse(text).ppo.estimator == estimator
    else:
        with pytest.raises(ConfigError, match=f"ppo: kl_estimator: {estimator} .*kl: {kl}"):
            parse(text)


@pytest.mark.parametrize("path", [ROOT / "params.yaml", *sorted((ROOT / "params").glob("*.yaml"))], ids=lambda path: path.name)
def test_every_shipped_profile_validates(path):
    if read(path).prepare.source == "files":
        with pytest.raises(ConfigError, match=r"prepare.files.corpus: 'data/own/corpus.jsonl' is no file$"):
            load(path)  # the papers' corpora are not shipped
    else:
        load(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  top_k: 1", "  topk: 1", r"unknown key 'retrieval.topk'; did you mean 'top_k'\?"),
        ("report:", "reprot:", r"unknown key 'reprot'; did you mean 'report'\?"),
        ("  lam: 0.95", "  lam: 1.5", r"ppo.lam: .*less than or equal to 1"),
        ("\nseed: ", "\nseed: text # ", r"seed: .*integer"),
        ("    corpus: data/example/corpus.jsonl", "", r"key 'prepare.files.corpus' is missing"),
        ("  minibatch: 64", "  minibatch: 50", r"must divide"),
        ("  algorithm: ppo", "  algorithm: grpo", r"group must be 2 or more"),
        ("  algorithm: ppo", "  algorithm: leave_one_out", r"group must be 2 or more"),
        ("  group_scale: true", "  group_scale: false", r"group_scale is of algorithm: grpo alone"),
        ("  kl_estimator: null", "  kl_estimator: k4", r"ppo.kl_estimator"),
        ("  kind: bm25", "  kind: remote", r"retrieval.url is needed"),
        ("  endpoint: simulated", "  endpoint: openai", r"base_url is needed .*deepseek"),
        ("  bootstrap: 2000", "", r"key 'evaluate.bootstrap' is missing"),
        ("  judge: true", "  judge: [", r"not valid YAML"),
        ("  top_k: 1", "  top_k: 1\n  top_k: 3", r"key 'top_k' stands in line \d+ already"),
        ("  learning_rate: 3.0e-3", "  learning_rate: 3e-3", r"'3e-3' is text .*write 0.003$"),
        ("  learning_rate: 3.0e-3", "  learning_rate: 3e-5", r"'3e-5' is text .*write 3.0e-05$"),
        ("  top_k: 1", "  top_k: 010", r"'010' is read as another number by some .*plain digits"),
        ("  top_k: 1", "  top_k: 1:30", r"'1:30' is read as another number"),
        ("  top_k: 1", "  top_k: 1_0", r"'1_0' is read as another number"),
        ("  top_k: 1", "  top_k: 0x10", r"'0x10' is read as another number"),
        ("  extra_body: {}", "  extra_body: {model: other}", r"teacher: extra_body.model: cannot be set here"),
        ("  extra_body: {}", "  extra_body: {x: 2026-01-01}", r"teacher: extra_body: holds what JSON cannot"),
        ("  extra_body: {}", "  extra_body: {x: .nan}", r"teacher: extra_body: holds what JSON cannot"),
        ("  base: models/tiny-base", "  base: ''", r"policy.base: .*at least 1 character"),
        ("  learning_rate: 3.0e-3", "  learning_rate: .inf", r"sft.learning_rate: .*finite"),
        ("  entropy_coefficient: 0.0", "  entropy_coefficient: .nan", r"ppo.entropy_coefficient: .*finite"),
        ("  preset: demo", "  preset: search_r2", r"reward.preset: .*'search_r1'"),
        ("  preset: demo", "  preset: research", r"preset: research pays by F1, not by outcome: match_or_judge; set outcome: f1"),
        ("  outcome: match_or_judge", "  outcome: f1", r"outcome: f1 is a grade, but preset: demo needs right or wrong"),
        ("  preset: demo", "  preset: empirical", r"preset: empirical has no process reward, so process: judge cannot be"),
        ("  preset: demo", "  preset: code_outcome", r"preset: code_outcome has no process reward, so process: judge cannot be"),
        ("  process: judge", "  process: jugde", r"reward.process: 'jugde' is neither judge, gold, score, none nor a function"),
        ("  process: judge", "  process: os:system", r"reward.process: 'os:system' is neither"),
        ("  process: judge", "  process: plugins..ranking:score", r"reward.process: 'plugins..ranking:score' is neither"),
        ("  process: judge", "  process: 'plugins.ranking:score\n'", r"reward.process: .* is neither"),
        ("  max_turn_tokens: 64", "  max_turn_tokens: 640", r"max_turn_tokens \(640\) must be less than max_context_tokens"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(old, new, message):
    assert old in TEXT
    with pytest.raises(ConfigError) as error:
        parse(TEXT.replace(old, new, 1))
    text = str(error.value)
    assert re.search(message, text) and "\n" not in text and re.match(r"params\.yaml:\d+: ", text)


def test_own_files_with_the_simulated_teacher_say_how_to_set_a_real_one():
    text = TEXT.replace("source: world", "source: files")
    with pytest.raises(ConfigError, match=r"teacher.endpoint: openai.*api.deepseek.com.*DEEPSEEK_API_KEY"):
        parse(text)


def test_a_line_number_is_the_keys_own():
    text = re.sub(r"  value_clip: .*", "  value_clip: -1", TEXT)
    with pytest.raises(ConfigError, match=f"^params.yaml:{text.splitlines().index('  value_clip: -1') + 1}: ppo.value_clip"):
        parse(text)


def test_a_key_in_place_of_its_variables_name_is_refused_and_not_shown():
    with pytest.raises(ConfigError, match="name of an environment variable") as error:
        parse(TEXT.replace("api_key_env: DEEPSEEK_API_KEY", "api_key_env: sk-4711", 1))
    assert "4711" not in str(error.value)


@pytest.mark.parametrize("value", ["&a {x: *a}", "{x: " + "[" * 3000 + "]" * 3000 + "}"])
def test_a_value_without_an_end_is_refused(value):
    with pytest.raises(ConfigError, match=r"params.yaml: a value holds itself .* or is nested too deeply"):
        parse(TEXT.replace("  extra_body: {}", f"  extra_body: {value}", 1))


def test_a_server_without_keys_needs_no_variable():
    assert parse(TEXT.replace("api_key_env: DEEPSEEK_API_KEY", "api_key_env: ''", 1)).teacher.api_key_env == ""


def test_a_date_that_is_none_and_a_folder_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"^params.yaml: not valid YAML: month"):
        parse(TEXT.replace("  top_k: 1", "  top_k: 2026-13-45", 1))
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)


def test_missing_and_non_utf8_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_bytes(b"seed: \xff")
    with pytest.raises(ConfigError, match="not valid UTF-8"):
        load(tmp_path / "bad.yaml")


def test_a_base_that_is_a_folder_is_the_one_that_dvc_watches(tmp_path):
    file = tmp_path / "params.yaml"
    file.write_text(TEXT.replace("  base: models/tiny-base ", "  base: my-model "))
    assert load(file).policy.base == "my-model"  # a name on the hub, as far as one can see
    (tmp_path / "my-model").mkdir()
    with pytest.raises(ConfigError, match=r"params.yaml:\d+: policy.watch: is 'models/tiny-base', but .*'my-model'; write the same"):
        load(file)
    file.write_text(file.read_text().replace("  watch: models/tiny-base ", "  watch: my-model "))
    assert load(file).policy.watch == "my-model"
    file.write_text(TEXT.replace("  base: models/tiny-base ", "  base: ~/my-model "))
    with pytest.raises(ConfigError, match=r"policy\.base: '~/my-model' is no folder"):
        load(file)


def test_a_file_of_ones_own_that_is_not_there_is_named_with_its_key(tmp_path):
    file = tmp_path / "params.yaml"
    server = TEXT.replace("endpoint: simulated", "endpoint: openai").replace("base_url: null", "base_url: http://127.0.0.1:1/v1")
    file.write_text(server.replace("source: world", "source: files").replace("data/example/dev.jsonl", "~/dev.jsonl"))
    for split in ("corpus", "train", "test"):
        (tmp_path / "data/example").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"data/example/{split}.jsonl").touch()
    with pytest.raises(ConfigError, match=r"params.yaml:\d+: prepare.files.dev: '~/dev.jsonl' is no file; write the path without '~'"):
        load(file)
    (tmp_path / "data/example/corpus.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"prepare.files.corpus: 'data/example/corpus.jsonl' is no file$"):
        load(file)


def test_the_check_imports_no_torch():
    code = "import sys, r3flow.params as p; p.load(); assert 'torch' not in sys.modules and 'mlflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


STEPWISE, AT_END, GRADED = (
    {"demo", "paper", "code", "code_outcome", "code_process"},
    {"search_r1", "search_r1_format", "empirical"},
    {"research", "research_paper"},
)


@pytest.mark.parametrize("preset", sorted(STEPWISE | AT_END | GRADED))
@pytest.mark.parametrize("outcome", ["match", "f1", "cover", "judge", "match_or_judge"])
@pytest.mark.parametrize("process", ["judge", "gold", "score", "none", "plugins.ranking:score", "plugins.my.clicks_2:_f"])
def test_a_preset_takes_the_outcomes_and_process_rewards_that_it_has(preset, outcome, process):
    none = process == "none"
    fits = none == (preset not in {"demo", "paper", "code", "code_process"}) or (none and preset in {"demo", "paper", "code"})
    if (outcome == "f1") == (preset in GRADED) and fits:
        reward = Reward(preset=preset, outcome=outcome, process=process)
        assert reward.judge_needed == (process == "judge" or ("judge" in outcome and preset != "code_process"))
        assert reward.plugin == (process if process.startswith("plugins.") else None)
        return
    with pytest.raises(
        ValidationError, match=f"preset: {preset}.*(outcome|process): (f1|{outcome}|{process})|outcome: f1.*preset: {preset}"
    ):
        Reward(preset=preset, outcome=outcome, process=process)


@pytest.mark.parametrize(
    ("preset", "outcome", "process", "fits"),
    [
        ("demo", "match", "judge", True), ("paper", "match", "gold", True), ("code_process", "match", "score", True),
        ("demo", "match", "none", False), ("code_outcome", "match", "none", False), ("search_r1", "match", "none", False),
        ("research", "f1", "none", False),
    ],
)  # fmt: skip
def test_a_search_at_the_limit_is_refused_where_nothing_pays_for_it(preset, outcome, process, fits):
    text = TEXT
    for key, value in (("preset", preset), ("outcome", outcome), ("process", process)):
        text, count = re.subn(rf"(?m)^  {key}: \S+", f"  {key}: {value}", text)
        assert count == 1
    assert not parse(text).protocol.search_at_limit
    searching = text.replace("search_at_limit: false", "search_at_limit: true")
    if fits:
        assert parse(searching).protocol.search_at_limit
        return
    with pytest.raises(ConfigError, match=rf"search_at_limit: true .*preset: {preset} with reward.process: none pays none; set .* false$"):
        parse(searching)


def test_a_plugin_without_its_file_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "plugins" / "deep").mkdir(parents=True)
    path = tmp_path / "params.yaml"
    path.write_text(re.sub(r"(?m)^  process: .*", "  process: plugins.clicks:score", TEXT))
    with pytest.raises(ConfigError, match=r"params.yaml:\d+: reward.process: 'plugins.clicks:score' is a function of plugins/clicks.py"):
        load(path)
    (tmp_path / "plugins" / "clicks.py").write_text("")
    load(path)
    path.write_text(re.sub(r"(?m)^  process: .*", "  process: plugins.deep:score", TEXT))
    (tmp_path / "plugins" / "deep" / "__init__.py").write_text("")
    load(path)


RATES = "{partial_query: 0.0, vague_query: 0.0, needless_search: 0.0, early_answer: 0.0, fails_four_hops: 0.0}"
SECOND = """second_teacher:
  endpoint: openai
  base_url: https://api.deepseek.com
  api_key_env: DEEPSEEK_API_KEY
  model: deepseek-v4-pro
  max_tokens: 4096
  extra_body: {thinking: {type: enabled}}
  concurrency: 64
  timeout_s: 600
  max_retries: 6
  budget_usd: 50.0
  price_usd_per_million: {cached_input: 0.003625, input: 0.435, output: 0.87}
  attempts: 2
"""


def with_second(text=SECOND):
    whole, changed = re.subn(r"^second_teacher: null.*\n", text, TEXT, flags=re.MULTILINE)
    assert changed == 1
    return whole


def test_a_second_teacher_is_an_endpoint_with_attempts_and_nobody_by_default():
    assert parse(TEXT).second_teacher is None and parse(TEXT).asked == ["teacher", "judge"]
    params = parse(with_second())
    assert params.asked == ["teacher", "second_teacher", "judge"]
    assert params.second_teacher.attempts == 2 and params.second_teacher.extra_body == {"thinking": {"type": "enabled"}}
    older = re.sub(r"^second_teacher: null.*\n", "", TEXT, flags=re.MULTILINE)
    assert parse(older) == parse(TEXT)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  attempts: 2\n", "", r"key 'second_teacher.attempts' is missing"),
        ("  attempts: 2", "  attempts: 65", r"second_teacher.attempts: .*less than or equal to 64"),
        ("  attempts: 2", "  attempt: 2", r"unknown key 'second_teacher.attempt'; did you mean 'attempts'\?"),
        ("endpoint: openai", "endpoint: simulated", r"second_teacher: simulated is needed with endpoint: simulated"),
        (
            "  attempts: 2",
            "  attempts: 2\n  simulated: {vague: 1.0}",
            r"unknown key 'second_teacher.simulated.vague'; did you mean 'vague_query'\?",
        ),
        (
            "  attempts: 2",
            f"  attempts: 2\n  simulated: {RATES}",
            r"second_teacher: simulated holds the error rates of a stand-in",
        ),
    ],
)
def test_a_bad_second_teacher_is_refused_in_one_line(old, new, message):
    assert SECOND.count(old) == 1
    with pytest.raises(ConfigError) as error:
        parse(with_second(SECOND.replace(old, new)))
    assert re.search(message, str(error.value)) and "\n" not in str(error.value) and re.match(r"params\.yaml:\d+: ", str(error.value))


def test_a_second_teacher_that_is_the_first_again_is_refused():
    first = (
        with_second()
        .replace("  endpoint: simulated", "  endpoint: openai", 1)
        .replace("  base_url: null", "  base_url: https://api.deepseek.com", 1)
        .replace("  model: simulated-teacher", "  model: deepseek-v4-pro")
    )
    assert parse(first).teacher.model == "deepseek-v4-pro"  # the same model, which does not think
    with pytest.raises(ConfigError, match="second_teacher is the same as teacher"):
        parse(first.replace("  extra_body: {}", "  extra_body: {thinking: {type: enabled}}", 1))


def test_own_files_take_no_simulated_second_teacher():
    text = with_second().replace("source: world", "source: files")
    for section in ("teacher", "judge"):
        text = text.replace(f"{section}:\n  endpoint: simulated", f"{section}:\n  endpoint: openai")
    text = text.replace("base_url: null", "base_url: http://127.0.0.1:1/v1")
    assert parse(text).prepare.source == "files"
    with pytest.raises(ConfigError, match=r"second_teacher.endpoint: simulated knows only the generated world"):
        parse(text.replace("second_teacher:\n  endpoint: openai", f"second_teacher:\n  simulated: {RATES}\n  endpoint: simulated"))


def test_the_second_teacher_of_the_documentation_is_a_valid_section():
    (block,) = re.findall(r"```yaml\n(second_teacher:.*?)```", (ROOT / "docs/PROFILES.md").read_text(), re.DOTALL)
    second = parse(with_second(block)).second_teacher
    assert (second.model, second.extra_body) == ("deepseek-v4-pro", {"thinking": {"type": "enabled"}}) and second.max_tokens >= 3000
    price = second.price_usd_per_million
    assert (price.cached_input, price.input, price.output) == (0.003625, 0.435, 0.87)
