"""A process reward of the user's own: it is loaded from the project's folder, and what is wrong with it is one line that says where."""

import sys
from pathlib import Path

import pytest

from r3flow.errors import ConfigError, EndpointError
from r3flow.files import file_digest
from r3flow.params import Reward
from r3flow.training.plugin import ProcessPlugin
from r3flow.training.scoring import Scorer
from r3flow.trajectory import Hit, InvalidStep, Passage, Question, Step, Trajectory
from tests.toy_project import ROOT

QUESTION = Question("q7", "Who directed Red Harbor?", ("Ann Lee",), gold_ids=("g1", "g2"))


def search(number, *ids):
    return Step(number, "why", query="query", hits=tuple(Hit(Passage(name, name, "text"), 1.0) for name in ids))


ANSWERED = Trajectory(QUESTION, (search(1, "x", "g1"), search(2, "g1", "x", "g2"), Step(3, "so", answer="Ann Lee")), "answered")


@pytest.fixture(autouse=True)
def _forget():
    """Each test's folder of plugins is read anew."""
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "plugins"]:
        del sys.modules[name]


def plugin(folder: Path, body: str, name: str = "plugins.clicks:score") -> ProcessPlugin:
    (folder / "plugins").mkdir(exist_ok=True)
    (folder / "plugins" / "clicks.py").write_text(body)
    return ProcessPlugin(name, folder)


def reward(name: str) -> Reward:
    return Reward(preset="paper", outcome="match", process=name)


def test_the_worked_example_pays_the_reciprocal_rank_of_the_first_new_gold_passage():
    scorer = Scorer(reward("plugins.ranking:score"), None, root=ROOT)
    malformed = Trajectory(QUESTION, (search(1, "g2"), InvalidStep(2, "eh", "no step")), "malformed")
    failed = Trajectory(QUESTION, (search(1, "g2"), Step(2, "why", query="q")), "failed")
    scored = scorer([ANSWERED, malformed, failed])
    # g1 stands second, then g2 third; g1 is no news in step 2
    assert scored[0].steps == pytest.approx((1.6 / 2, 1.6 / 3, 1.0))
    assert scored[1].steps == pytest.approx((1.0, -1.0))
    assert not scored[2].known
    nobody_knows = Question("q", "Who?", ("Ann Lee",))
    assert not scorer([Trajectory(nobody_knows, ANSWERED.steps, "answered")])[0].known
    assert scorer([Trajectory(nobody_knows, ANSWERED.steps[2:], "answered")])[0].steps == (1.0,)


def test_a_module_may_use_its_neighbours_and_lie_deeper(tmp_path):
    (tmp_path / "plugins" / "deep").mkdir(parents=True)
    (tmp_path / "plugins" / "half.py").write_text("VALUE = 0.5\n")
    (tmp_path / "plugins" / "deep" / "rule.py").write_text(
        "from plugins.half import VALUE\ndef score(trajectory):\n    return [VALUE, None, 1]\n"
    )
    assert ProcessPlugin("plugins.deep.rule:score", tmp_path)(ANSWERED) == [0.5, None, 1.0]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return [0.5, 0.5]", r"gave 2 values for 3 steps, expected one a step"),
        ("return [0.5, 1.5, 0]", r"gave 1.5 for step 2, expected a number in 0 to 1, or None"),
        ("return [0.5, 0.5, -0.1]", r"gave -0.1 for step 3"),
        ("return [float('nan'), 0, 0]", r"gave nan for step 1"),
        ("return ['0.5', 0, 0]", r"gave '0.5' for step 1"),
        ("return None", r"gave NoneType, expected a list"),
        ("return 'abc'", r"gave str, expected a list"),
        ("return [step.hits[0] for step in trajectory.steps]", r"fails at question 'q7': IndexError: .* \(plugins/clicks.py:2\)"),
        ("raise ValueError('first line\\nsecond line')", r"ValueError: first line second line \(plugins/clicks.py:2\)"),
        ("return [1, 0]", r"question 'q7'"),
    ],
)
def test_what_a_function_does_wrong_is_one_line_that_names_it(tmp_path, body, message):
    made = plugin(tmp_path, f"def score(trajectory):\n    {body}\n")
    with pytest.raises(ConfigError, match=message) as error:
        made(ANSWERED)
    assert str(error.value).startswith("reward.process: plugins.clicks:score ") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("body", "name", "message"),
    [
        ("", "plugins.nowhere:score", r"no module 'plugins.nowhere' in .*; write plugins/nowhere.py or correct reward.process"),
        ("", "plugins.clicks:score", r"plugins.clicks has no function 'score'; define it there"),
        ("score = 3", "plugins.clicks:score", r"plugins.clicks has something, but no function, called 'score'"),
        ("import nowhere_to_be_found", "plugins.clicks:score", r"clicks.py cannot be imported: ModuleNotFoundError: .*clicks.py:1\)"),
        ("import plugins.other", "plugins.clicks:score", r"plugins/clicks.py cannot be imported: .*'plugins.other'"),
        ("def score(:", "plugins.clicks:score", r"plugins/clicks.py cannot be imported: SyntaxError"),
        ("1 / 0", "plugins.clicks:score", r"plugins/clicks.py cannot be imported: ZeroDivisionError: .*\(plugins/clicks.py:1\)"),
    ],
)
def test_a_function_that_cannot_be_had_is_one_line_before_any_rollout(tmp_path, body, name, message):
    plugin(tmp_path, "def score(trajectory): ...", "plugins.clicks:score")
    del sys.modules["plugins.clicks"], sys.modules["plugins"]
    (tmp_path / "plugins" / "clicks.py").write_text(body + "  # longer than what it was compiled from\n")
    with pytest.raises(ConfigError, match=message) as error:
        Scorer(reward(name), None, root=tmp_path)
    assert str(error.value).startswith("reward.process: ") and "\n" not in str(error.value)


def test_of_a_failed_trajectory_the_function_hears_nothing(tmp_path):
    plugin(tmp_path, "def score(trajectory):\n    raise ValueError(trajectory.finish)\n")
    scored = Scorer(reward("plugins.clicks:score"), None, root=tmp_path)([Trajectory(QUESTION, (search(1, "g1"),), "failed")])
    assert not scored[0].known


def test_another_package_of_that_name_is_not_taken_for_it(tmp_path):
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
    plugin(tmp_path / "one", "def score(trajectory): ...")
    with pytest.raises(ConfigError, match=r"another package called plugins was imported, from .*one/plugins; remove or rename"):
        plugin(tmp_path / "two", "def score(trajectory): ...")


def test_an_endpoint_that_is_down_can_be_tried_again(tmp_path):
    made = plugin(tmp_path, "from r3flow.errors import EndpointError\ndef score(trajectory):\n    raise EndpointError('down')\n")
    with pytest.raises(EndpointError, match="down"):
        made(ANSWERED)


def test_using_a_plugin_does_not_make_a_killed_stage_begin_anew(tmp_path):
    """What Python writes beside the module is no part of the folder's digest, by which a stage finds its checkpoints again."""
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "clicks.py").write_text("def score(trajectory):\n    return [0.0] * len(trajectory.steps)\n")
    before = file_digest(tmp_path / "plugins")
    ProcessPlugin("plugins.clicks:score", tmp_path)
    cache = tmp_path / "plugins" / "__pycache__"
    cache.mkdir(exist_ok=True)  # where Python is told not to write any
    (cache / "clicks.pyc").write_bytes(b"compiled")
    assert file_digest(tmp_path / "plugins") == before
    (tmp_path / "plugins" / "clicks.py").write_text("# edited\n")
    assert file_digest(tmp_path / "plugins") != before
