"""dvc.yaml: every stage's code dependencies are its import closure, and a system's evaluation depends on its own model alone."""

import pytest

from r3flow.dev.deps import MARKER, closure, rewrite
from r3flow.workdir import read_stages
from tests.toy_project import ROOT


def test_the_code_dependencies_are_the_import_closures():
    text = (ROOT / "dvc.yaml").read_text()
    assert rewrite(ROOT, text) == text, "run: python -m r3flow.dev.deps --write"


def test_every_stage_lists_its_code():
    text = (ROOT / "dvc.yaml").read_text()
    assert text.count(MARKER) == text.count("    cmd: python -m stages.")
    for stage in read_stages(ROOT).values():
        assert f"stages/{stage.address.split('@')[0]}.py" in stage.deps and "stages/_runner.py" in stage.deps


@pytest.mark.parametrize("system", ["base", "rag", "cold_start", "control", "ppo"])
def test_a_system_depends_on_its_own_model_alone(system):
    models = [dep for dep in read_stages(ROOT)[f"evaluate@{system}"].deps if dep.startswith("models/")]
    assert models == ["models/tiny-base" if system in ("base", "rag") else f"models/{system}"]


def test_a_base_of_ones_own_is_watched_in_its_place(tmp_path):
    params = (ROOT / "params.yaml").read_text().replace("models/tiny-base", "models/my-base")
    (tmp_path / "params.yaml").write_text(params)
    (tmp_path / "dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    stages = read_stages(tmp_path)
    for address in ("sft", "evaluate@base", "evaluate@rag"):
        assert "models/my-base" in stages[address].deps and "models/tiny-base" not in stages[address].deps


def test_no_stage_without_need_of_torch_loads_the_trainers():
    for address in ("prepare", "index", "synthesize", "filter", "report"):
        assert not [dep for dep in read_stages(ROOT)[address].deps if dep.startswith(("r3flow/training/", "r3flow/rollout"))], address


@pytest.fixture
def project(tmp_path):
    files = {
        "stages/__init__.py": "", "r3flow/__init__.py": "", "r3flow/a/__init__.py": "from . import inner", "r3flow/a/inner.py": "",
        "r3flow/lazy.py": "", "r3flow/typed.py": "", "r3flow/server.py": "", "r3flow/tracking/__init__.py": "", "r3flow/far.py": "",
        "r3flow/a/words/one.txt": "x", "r3flow/a/page.html": "x", "r3flow/unused.py": "", "r3flow/tracking/journal.py": "import r3flow.far",
        "r3flow/a/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import r3flow.typed\nPATH = 'words'\n",
        "stages/s.py": "from r3flow.a import b\nfrom r3flow.tracking import journal\nCOMMAND = ['-m', 'r3flow.server']\n"
                       "def f():\n    from r3flow import lazy\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_closure_holds_lazy_imports_packages_named_modules_and_data_files(project):
    assert closure(project, "stages.s") == [
        "r3flow/__init__.py", "r3flow/a/__init__.py", "r3flow/a/b.py", "r3flow/a/inner.py", "r3flow/a/words/one.txt", "r3flow/lazy.py",
        "r3flow/server.py", "stages/__init__.py", "stages/s.py",
    ]  # fmt: skip


def test_a_stage_that_scores_depends_on_the_folder_of_plugins_as_a_whole(project):
    assert [address for address, stage in read_stages(ROOT).items() if "plugins" in stage.deps] == ["ppo"]
    (project / "r3flow/training").mkdir()
    (project / "r3flow/training/__init__.py").write_text("")
    (project / "r3flow/training/plugin.py").write_text("")
    assert "plugins" not in closure(project, "stages.s")
    (project / "r3flow/lazy.py").write_text("def f():\n    from r3flow.training.plugin import ProcessPlugin\n")
    assert "plugins" in closure(project, "stages.s")


def test_a_rewrite_keeps_everything_but_the_list(project):
    head = f"# c\nstages:\n  s: # why\n    cmd: python -m stages.s\n    deps:\n      - data.txt\n      {MARKER}\n"
    old = f"{head}      - gone.py\n    outs:\n      - out\n"
    new = rewrite(project, old)
    assert "gone.py" not in new and "      - r3flow/lazy.py\n" in new and rewrite(project, new) == new
    assert new.startswith(head) and new.endswith("    outs:\n      - out\n")
