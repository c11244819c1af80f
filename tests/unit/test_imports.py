"""Imports go one way, and the light modules stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.toy_project import ROOT


def test_the_contracts_of_pyproject_hold():
    done = subprocess.run([Path(sys.executable).parent / "lint-imports", "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize("word", ["mlflow", "dvc.lock"])
def test_only_tracking_knows(word):
    knowing = []
    for path in [*ROOT.glob("r3flow/**/*.py"), *ROOT.glob("stages/*.py"), *ROOT.glob("flows/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if word == "mlflow" and any(name.split(".")[0] == "mlflow" for name in names):
                knowing.append(path)
            if word == "dvc.lock" and isinstance(node, ast.Constant) and node.value == "dvc.lock":
                knowing.append(path)
    assert knowing and {path.parent.relative_to(ROOT).as_posix() for path in knowing} == {"r3flow/tracking"}


@pytest.mark.parametrize("module", ["stages._runner", "r3flow.tracking.journal", "stages.prepare", "r3flow.tracking.__main__"])
def test_a_light_module_loads_neither_torch_nor_mlflow(module):
    code = f"import sys, {module}; sys.exit(', '.join({{'torch', 'mlflow', 'transformers', 'prefect'}} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
