"""The page escapes what it shows, loads nothing, and says what was simulated; the curves and the table say what the files say."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from r3flow.errors import DataError
from r3flow.evaluation.browse import breakdown, cards, pick
from r3flow.evaluation.curves import curve, nice, read_columns
from r3flow.evaluation.metrics import compare, summarise
from r3flow.evaluation.report import Inputs, build
from r3flow.evaluation.results import Result
from r3flow.evaluation.table import main, render, signed
from r3flow.files import write_json
from r3flow.params import load
from r3flow.trajectory import Hit, InvalidStep, Passage, Question, Step, Trajectory
from tests.unit.evaluated import GOLD, OTHER, result

EVIL = "<script>alert('evil')</script><img src=x onerror=alert(1)>\"'&{{ 7*7 }}\ud800"


def acceptance(accepted: int, questions: int) -> dict[str, Any]:
    return {"questions": questions, "accepted": accepted, "acceptance": accepted / questions}


FILTERED = {
    **acceptance(6, 10), "accepted_by": {"match": 5, "judge": 1}, "fell": {"wrong": 3, "unclear": 0, "no_answer": 1, "malformed": 0},
    "by_type": {"compositional": acceptance(6, 10)}, "by_hops": {"2": acceptance(6, 10)}, "useless": {"share": 0.25},
}  # fmt: skip


def inputs(results: dict[str, list[Result]] | None = None, **changes: Any) -> Inputs:
    results = results or {"cold_start": [result(1, "x"), result(2)], "ppo": [result(1), result(2)]}
    metrics = {name: summarise(items, resamples=200, seed=1, judged=True, max_steps=3) for name, items in results.items()}
    if "cold_start" in results and "ppo" in results:
        metrics["ppo"]["versus"] = {"cold_start": compare(results["ppo"], results["cold_start"], resamples=200, seed=1)}
    given: dict[str, Any] = {
        "params": load(),
        "metrics": metrics,
        "results": results,
        "curves": {
            "sft": {"step": [5.0, 10.0, 15.0], "loss": [2.0, 1.0, 0.5]},
            "ppo": {"step": [0.0, 1.0, 2.0], "dev_em": [0.5, None, 0.7]},
        },
        "prepared": {"passages": 12},
        "synthesized": {"questions": 10, "attempts": 14},
        "filtered": FILTERED,
    }
    return Inputs(**{**given, **changes})


class Page(HTMLParser):
    """Tags with their attributes, and the text outside style and script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._raw = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._raw = tag if tag in ("script", "style") else self._raw

    def handle_endtag(self, tag: str) -> None:
        self._raw = "" if tag == self._raw else self._raw

    def handle_data(self, data: str) -> None:
        if self._raw == "script":
            self.scripts.append(data)
        elif not self._raw:
            self.text += data


def evil_result() -> Result:
    asked = Question("q1", EVIL, (EVIL,), (EVIL,), EVIL, 2)
    search = Step(1, EVIL, query=EVIL, hits=(Hit(Passage(EVIL, EVIL, EVIL), 1.0),))
    return Result(Trajectory(asked, (search, InvalidStep(2, EVIL, EVIL)), "malformed"), 3)


def test_text_of_corpora_and_models_is_escaped_everywhere() -> None:
    answered = replace(evil_result(), trajectory=replace(evil_result().trajectory, steps=(Step(1, EVIL, answer=EVIL),), finish="answered"))
    html = build(inputs({"cold_start": [answered], "ppo": [evil_result()]}, curves={"ppo": {"step": [1.0, 2.0], EVIL: [1.0, 2.0]}}))
    page = Page(html)
    assert "alert('evil')" in page.text, "the passage is not on the page at all"
    assert "<script>alert" not in html
    assert page.text.count("{{ 7*7 }}") > 5 and "\ud800" not in html
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not any(tag == "img" for tag, _ in page.tags)
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


def test_nothing_is_loaded_and_only_this_script_may_run() -> None:
    html = build(inputs())
    page = Page(html)
    assert not any(attributes.get("src") for _, attributes in page.tags)
    for tag, attributes in page.tags:
        assert (attributes.get("href") or "#").startswith(("#", "data:")), tag
    assert "@import" not in html and "url(" not in html
    policy = next(attributes["content"] for _, attributes in page.tags if attributes.get("http-equiv") == "Content-Security-Policy")
    [script] = page.scripts
    assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in (policy or "")
    assert (policy or "").startswith("default-src 'none'")


def test_equal_inputs_give_equal_bytes() -> None:
    assert build(inputs()) == build(inputs())


def test_simulated_roles_are_named_and_real_ones_are_not() -> None:
    assert "Simulated teacher and judge." in Page(build(inputs())).text
    real = {"endpoint": "openai", "base_url": "https://api.deepseek.com", "model": "deepseek-v4-flash"}
    params = load()
    params = params.model_copy(update={"teacher": params.teacher.model_copy(update=real)})
    assert "Simulated judge." in Page(build(inputs(params=params))).text
    params = params.model_copy(update={"judge": params.judge.model_copy(update=real)})
    assert "Simulated" not in Page(build(inputs(params=params))).text


def test_headline_claims_a_difference_only_where_the_interval_leaves_out_zero() -> None:
    clear = {"cold_start": [result(number, "x") for number in range(20)], "ppo": [result(number) for number in range(20)]}
    assert "100.0 points more than the cold start" in Page(build(inputs(clear))).text
    assert "100.0 points fewer than the cold start" in Page(build(inputs({"cold_start": clear["ppo"], "ppo": clear["cold_start"]}))).text
    close = {"cold_start": [result(1), result(2, "x"), result(3)], "ppo": [result(1, "x"), result(2), result(3)]}
    assert "That is no clear difference from the cold start on these questions (" in Page(build(inputs(close))).text


def test_sample_holds_rare_kinds_right_and_wrong() -> None:
    many = [result(number) for number in range(100)]
    rare = [result(200, "x"), result(201, kind="comparison"), result(202, "x", kind="comparison")]
    chosen = pick(many + rare, 4)
    assert set(chosen) >= {"q200", "q201", "q202"} and len(chosen) == 4
    assert pick([*rare, *many], 4) == chosen
    assert len(pick(many, 1000)) == 100 and pick(many, 0) == []
    assert build(inputs(params=load().model_copy(update={"report": load().report.model_copy(update={"trajectories": 0})})))


def test_rewards_on_the_page_are_those_of_the_reward_function() -> None:
    [card] = cards({"ppo": [result(1, passages=(GOLD,))]}, 5, "demo")
    view = card["views"][0]
    assert [step["reward"]["value"] for step in view["steps"]] == pytest.approx([1.2, 2.0])
    assert view["total"] == pytest.approx(3.2)
    assert view["steps"][0]["documents"][0]["gold"] is True
    [card] = cards({"ppo": [result(1, passages=(OTHER,))]}, 5, "demo")
    assert card["views"][0]["steps"][0]["reward"]["value"] == 0.0
    assert breakdown(result(1, gold=None), "demo").total is None
    assert breakdown(result(1, "x", verdict="right"), "demo").case == "right"
    assert breakdown(result(1, "x", verdict="unknown"), "demo").case == "unknown"
    assert breakdown(result(1, "x"), "demo").case == "wrong"
    # the outcome of the training, as far as the evaluation's judge can tell it
    assert breakdown(result(1, "x", verdict="right"), "demo", "match").case == "wrong"
    assert breakdown(result(1, "x", verdict="right"), "demo", "judge").case == "right"
    assert breakdown(result(1), "research", "f1").total == 1.0
    assert breakdown(result(1, gold=None), "search_r1", "match").total == 1.0
    [card] = cards({"ppo": [result(1, passages=(GOLD,))]}, 5, "code_outcome", "match")
    assert [step["reward"] for step in card["views"][0]["steps"]] == [{"value": 2.0, "parts": {"outcome": 2.0}}] * 2
    [card] = cards({"rag": [result(1)]}, 5, "demo")
    assert card["views"][0]["rewards"] is False


def test_curves_are_read_strictly_and_drawn_to_scale(tmp_path: Path) -> None:
    path = tmp_path / "ppo.csv"
    path.write_text("step,em,kl\n0,0.5,\n1,,nan\n2,0.7,0.1\n")
    columns = read_columns(path)
    assert columns == {"step": [0.0, 1.0, 2.0], "em": [0.5, None, 0.7], "kl": [None, None, 0.1]}
    drawn = curve("EM", "iteration", columns["step"], columns["em"])
    assert drawn is not None and drawn.points == ((0.0, 0.5), (2.0, 0.7))
    (left, low), (right, high) = drawn.places
    assert left < right and low > high  # SVG counts downwards
    assert curve("KL", "iteration", columns["step"], columns["kl"]) is None
    flat = curve("flat", "step", [1.0, 2.0], [0.0, 0.0])
    assert flat is not None and [tick.label for tick in flat.x_ticks] == ["1", "2"]  # whole steps have no tick in between
    path.write_text("step,em\n1,0.5\n2,much\n")
    with pytest.raises(DataError, match=r"ppo\.csv:3: column 'em' holds 'much'"):
        read_columns(path)
    with pytest.raises(DataError, match="no such file"):
        read_columns(tmp_path / "none.csv")


def test_page_shows_each_system_at_each_step_budget() -> None:
    cells = re.sub(r"\s+", " ", Page(build(inputs())).text.partition("Step budget")[2])
    wanted = "Steps123 Cold start 0.00.0–84.250.00.0–100.050.00.0–100.0 PPO 0.00.0–84.2100.015.8–100.0100.015.8–100.0"
    assert wanted in cells, cells[:400]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.2, 17.0), (1e-9, 2e-9), (5.0, 5.0), (0.0, 0.0), (-1e6, 1e6)])
def test_grid_encloses_the_values(low: float, high: float) -> None:
    grid = nice(low, high, 3)
    assert grid[0] <= low and grid[-1] >= high and 2 <= len(grid) <= 8
    assert grid == sorted(set(grid))


def test_table_tells_every_system_type_and_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "evaluate.json"
    write_json(path, inputs().metrics)
    assert main([str(path)]) == 0
    text = capsys.readouterr().out
    # the first line of that name: the table of all figures
    rows = {line.split("  ")[1]: line for line in reversed(text.splitlines()) if line.startswith("  ")}
    at = text.splitlines().index("Exact match by step budget, %: with at most so many steps, the answering one included")
    budgets = {line.split("  ")[1]: line.split()[-3:] for line in text.splitlines()[at + 4 : at + 6]}
    assert budgets == {"Cold start": ["0.0", "50.0", "50.0"], "PPO": ["0.0", "100.0", "100.0"]}
    assert re.search(r"50\.0 +\S+ - \S+ +50\.0", rows["Cold start"])
    assert "100.0" in rows["PPO"] and "compositional" in text and "+50.0" in rows["PPO − Cold start"]
    blocks = text.split("\n\n")
    assert all(len({len(line.rstrip()) for line in block.splitlines()}) <= 2 for block in blocks if "─" in block), "columns do not line up"
    assert max(map(len, text.splitlines())) <= 140


def test_table_without_a_usable_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, reason in (("{}", "holds no system"), ('{"ppo": 3}', "not a results file"), ("{", "not valid JSON")):
        path = tmp_path / "evaluate.json"
        path.write_text(text)
        assert main([str(path)]) == 1
        error = capsys.readouterr().err
        assert error.startswith("error: ") and reason in error and error.count("\n") == 1


def test_unknown_verdicts_are_told() -> None:
    metrics = inputs({"ppo": [result(1, "x", verdict="unknown"), result(2)]}).metrics
    assert "left out of 'judge': PPO 1" in render(metrics)


def test_no_negative_zero() -> None:
    assert signed(-0.0001) == "+0.0" and signed(-0.012) == "-1.2"
