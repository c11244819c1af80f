"""Loading a policy: what is no model is said in one line, and no network is asked about a folder's misspelt name."""

import shutil

import pytest

from r3flow.errors import ConfigError, DataError
from r3flow.params import load
from r3flow.policy import load_policy
from r3flow.training.sft import encode_all
from tests.toy_project import ROOT


def test_damaged_weights_are_named(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "models/tiny-base", folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(ConfigError, match=r"the weights in '.*model' are damaged .*dvc repro") as caught:
        load_policy(folder, trust_remote_code=False)
    assert "\n" not in str(caught.value)


def test_a_misspelt_folder_is_not_looked_for_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *_, **__: pytest.fail("it asked for the model"))
    with pytest.raises(ConfigError, match="'models/pppo': no such folder"):
        load_policy("models/pppo", trust_remote_code=False)


def test_no_trajectory_at_all_is_said_as_such():
    _, tokenizer = load_policy(ROOT / "models/tiny-base", trust_remote_code=False)
    with pytest.raises(DataError, match=r"accepted.jsonl holds no trajectory"):
        encode_all([], tokenizer, load(ROOT / "params.yaml"))
