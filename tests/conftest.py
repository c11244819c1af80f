"""Settings and costly fixtures of the whole suite."""

import pytest
from hypothesis import settings

from tests.small_project import dvc, make_small

# a time limit on single examples fails on a busy machine and says nothing about the code; speed is measured in benchmarks/
settings.register_profile("r3flow", deadline=None)
settings.load_profile("r3flow")


@pytest.fixture(scope="session")
def small_run(tmp_path_factory):
    """The smallest profile after a whole `dvc repro`, made once. Who changes a file in it puts it back."""
    folder = make_small(tmp_path_factory.mktemp("small") / "project")
    done = dvc(folder, "repro")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder
