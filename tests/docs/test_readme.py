"""The README is true: its commands run, its table of figures is the measured one, its paths, keys and links exist.

Every line of its ```sh blocks is either run here or stands in LONG; a line that is neither fails.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from r3flow import params
from r3flow.evaluation.systems import SYSTEMS
from r3flow.workdir import read_stages
from tests.small_project import ROOT, make_small

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
VENV = Path(sys.prefix)

LONG = ("make demo", "make test", "make ui", "make bench", "make seeds")
"""Minutes to hours, or without an end: only what they start is checked to exist."""
RUN = {
    ".venv/bin/python -m flows.pipeline": (0,),
    ". .venv/bin/activate; dvc repro": (0,),
    ".venv/bin/r3flow plan": (0,),
    ".venv/bin/r3flow plan --params params/paper-qwen.yaml": (3,),  # its corpus and questions are the user's to bring
    '.venv/bin/r3flow ask "Where was the director of Red Harbor born?"': (0, 3),  # 3: the policy has no answer; the smallest never has
}
"""Commands that are run as they stand, and the exit codes that are right."""
STARTS = {
    "demo": ["r3flow.params", "r3flow.tracking", "r3flow.evaluation.table"],
    "test": ["pytest"],
    "ui": ["flows.ui"],
    "bench": ["benchmarks"],
    "seeds": ["benchmarks.seeds"],
}
"""The modules that a long command runs, as `make -n` says."""


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(text):
    """The command lines of a page's sh blocks, without comments."""
    lines = [re.sub(r"\s+#.*", "", line).strip() for block in blocks(text, "sh") for line in block.splitlines()]
    return [line for line in lines if line]


def columns(text):
    """The first cells of the rows of a page's tables."""
    return re.findall(r"^\| *(.*?) *\|", text, re.MULTILINE)


def section(title):
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def exists(name):
    """Whether a name in backticks is a file, a folder, a module, a console script or a make target of this repository."""
    if name.startswith("make "):
        return re.search(rf"^{re.escape(name.removeprefix('make '))}:", (ROOT / "Makefile").read_text(), re.MULTILINE) is not None
    return any((base / name).exists() for base in (ROOT, ROOT / "r3flow"))


@pytest.fixture(scope="module")
def project(small_run, tmp_path_factory):
    """A copy of a finished run with this environment as its `.venv`; other tests' runs and rows stay out of it."""
    folder = tmp_path_factory.mktemp("readme") / "project"
    shutil.copytree(small_run, folder, ignore=shutil.ignore_patterns(".work", "mlruns", "__pycache__"))
    (folder / ".venv").symlink_to(VENV, target_is_directory=True)
    return folder


def shell(folder, command):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "MLFLOW", "R3FLOW"))}
    environment = {**kept, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "R3FLOW_TRACKING": "off"}
    quiet = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 1500, "check": False}
    return subprocess.run(["bash", "-c", command], cwd=folder, env=environment, **quiet)


def test_every_command_is_run_here_or_known_to_be_long():
    assert set(commands(README)) == {*LONG, *RUN}
    fences = re.findall(r"^```(.*)$", README, re.MULTILINE)
    assert set(fences[::2]) <= {"sh", "text", "yaml"}, "a block without its language would be overlooked"


@pytest.mark.slow
@pytest.mark.parametrize("command", RUN)
def test_a_quick_command_runs_as_it_stands(project, command):
    done = shell(project, command)
    assert done.returncode in RUN[command], done.stdout[-2000:] + done.stderr[-2000:]
    assert not re.search(r"Traceback|^error:|Running stage", done.stdout + done.stderr, re.MULTILINE), done.stdout + done.stderr
    if "ask" in command:
        assert "Where was the director of Red Harbor born?" in done.stdout and re.search(r"^(Answer|No answer)", done.stdout, re.MULTILINE)
    if "flows" in command:
        assert "Held-out questions" in done.stderr and all(f"evaluate@{system}" in done.stderr for system in SYSTEMS)


@pytest.mark.parametrize("command", LONG)
def test_what_a_long_command_starts_exists(command):
    target = command.removeprefix("make ")
    # `-o` takes the environment for made: nothing is installed, and only the target's own lines are shown
    done = subprocess.run(["make", "-n", "-o", "setup", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"python -m ([\w.]+)", done.stdout) == STARTS[target]
    assert all(importlib.util.find_spec(name) for name in STARTS[target])


def test_make_help_names_every_target_that_the_pages_name():
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"^make ([\w-]+)", said, re.MULTILINE)) | {"setup"}
    for page in PAGES[:2]:
        text = page.read_text(encoding="utf-8")
        named = {word for line in commands(text) if line.startswith("make ") for word in line.split()[1:]}
        assert named | set(re.findall(r"`make ([\w-]+)`", text)) <= known, page


def test_the_table_of_figures_is_what_its_command_prints():
    found = re.findall(r"^`python -m (benchmarks\.seeds --table [\w -]+)`", README, re.MULTILINE)
    assert len(found) == 1
    printed = subprocess.run([sys.executable, "-m", *found[0].split()], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed.strip() in README


def test_the_stages_of_the_table_are_those_of_dvc():
    named = [name.strip("`") for name in columns(section("The pipeline")) if name.startswith("`")]
    assert named == list(dict.fromkeys(address.split("@")[0] for address in read_stages(ROOT)))
    picture = blocks(README, "text")[0]
    assert set(re.findall(r"[a-z_]+", picture.split("evaluate@{")[1].split("}")[0])) == set(SYSTEMS)
    assert all(name in picture for name in named)


def test_every_path_that_is_named_exists():
    rows = re.findall(r"^\|.*\|$", section("Where each thing is"), re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert len(names) > 15
    assert [name for name in sorted(names) if not exists(name)] == []
    made = {out for stage in read_stages(ROOT).values() for out in stage.outs}
    paths = {name for name in re.findall(r"`([\w.-]+/[\w./-]*)`", README) if "//" not in name and not name.startswith("Qwen/")}
    gone = [name for name in sorted(paths) if not exists(name) and not any(out.startswith(name) or name.startswith(out) for out in made)]
    assert gone == []


def test_the_keys_for_files_of_your_own_are_valid():
    block = blocks(README, "yaml")[0]
    assert "judge: ...                     # the same keys" in block
    wanted = yaml.safe_load(block)
    wanted["judge"] = {**wanted["teacher"], "model": "a-judge"}
    wanted["prepare"]["files"] = {name: f"data/example/{Path(path).name}" for name, path in wanted["prepare"]["files"].items()}
    assert all((ROOT / path).is_file() for path in wanted["prepare"]["files"].values())

    def merged(old, new):
        both = isinstance(old, dict) and isinstance(new, dict)
        return {**old, **{key: merged(old.get(key), value) for key, value in new.items()}} if both else new

    found = params.parse(yaml.safe_dump(merged(yaml.safe_load((ROOT / "params.yaml").read_text()), wanted)))
    assert found.prepare.source == "files" and found.teacher.endpoint == "openai" and found.teacher.budget_usd == 20.0


def test_the_example_files_are_read_by_prepare(tmp_path):
    make_small(tmp_path)
    text = (tmp_path / "params.yaml").read_text()
    server = "endpoint: openai\n  base_url: https://api.example.org\n"
    text = text.replace("source: world", "source: files").replace("endpoint: simulated ", server + "  #").replace("  base_url: null", "  #")
    (tmp_path / "params.yaml").write_text(re.sub(r"endpoint: simulated\n  #", server, text))
    done = shell(tmp_path, f"{sys.executable} -m stages.prepare")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "data/prepared/corpus.jsonl").read_text().count("\n") == (ROOT / "data/example/corpus.jsonl").read_text().count("\n")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_resolve(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", link)]
    assert [link for link in links if link and not (page.parent / link).exists()] == []
    # a page that is named in backticks is a link too
    named = [name for name in re.findall(r"`([\w/-]+\.md)`", text) if not (ROOT / name).exists() and not (page.parent / name).exists()]
    assert named == []
