"""The ledger: nothing paid for is lost, whoever dies and whenever."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3flow.errors import DataError
from r3flow.llm.ledger import Ledger

ROOT = Path(__file__).parents[2]
A, B, C = "a" * 32, "b" * 32, "c" * 32


def test_what_was_put_is_there_again_in_another_process_life(tmp_path):
    path = tmp_path / "deep" / "ledger.jsonl"
    with Ledger(path) as ledger:
        assert ledger.get(A) is None
        ledger.put(A, {"text": "größe\u2028\n"})
        assert ledger.get(A)["text"] == "größe\u2028\n"
    with Ledger(path) as ledger:
        assert ledger.get(A) == {"key": A, "text": "größe\u2028\n"}
        assert len(ledger) == 1
        assert list(ledger.records()) == [{"key": A, "text": "größe\u2028\n"}]


@given(st.data())
def test_a_cut_anywhere_costs_only_the_line_that_was_cut(data):
    lines = [json.dumps({"key": key, "text": key * 3}).encode() + b"\n" for key in (A, B, C)]
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        path.write_bytes(whole[:cut])
        with Ledger(path) as ledger:
            assert path.read_bytes() in (b"", lines[0], lines[0] + lines[1], whole)
            ledger.put("d" * 32, {"text": "new"})
            known = [key for key in (A, B, C) if ledger.get(key) is not None]
        ends = [len(b"".join(lines[: i + 1])) for i in range(3)]
        assert known == [key for key, end in zip((A, B, C), ends, strict=True) if end <= cut]
        assert all(json.loads(line) for line in path.read_bytes().splitlines())


def test_a_damaged_line_in_the_middle_is_left_out_and_told(tmp_path, caplog):
    path = tmp_path / "ledger.jsonl"
    good = json.dumps({"key": A, "text": "x"})
    path.write_text(f'{good}\n\0\0\0\0\n{{"key": "{B}", "text": \n{json.dumps({"key": C, "text": "y"})}\n')
    with Ledger(path) as ledger:
        assert ledger.get(A) and ledger.get(C)
        assert ledger.get(B) is None
        ledger.put(B, {"text": "again"})
        assert ledger.get(B)["text"] == "again"
    assert "damaged" in caplog.text


def test_two_ledgers_on_one_file_see_each_other(tmp_path):
    with Ledger(tmp_path / "l") as one, Ledger(tmp_path / "l") as two:
        one.put(A, {"text": "1"})
        assert two.get(A)["text"] == "1"
        two.put(B, {"text": "2"})
        one.put(C, {"text": "3"})
        assert [one.get(key)["text"] for key in (A, B, C)] == ["1", "2", "3"]
        assert [two.get(key)["text"] for key in (A, B, C)] == ["1", "2", "3"]


def test_a_line_half_written_by_a_dead_process_is_cut_off_before_the_next_append(tmp_path):
    with Ledger(tmp_path / "l") as ledger:
        ledger.put(A, {"text": "1"})
        with open(tmp_path / "l", "ab") as file:
            file.write(b'{"key": "' + B.encode()[:9])
        assert ledger.get(B) is None
        ledger.put(C, {"text": "3"})
        assert [json.loads(line)["key"] for line in (tmp_path / "l").read_bytes().splitlines()] == [A, C]


def test_processes_append_at_once_and_every_line_is_whole(tmp_path):
    code = (
        "import sys; from r3flow.llm.ledger import Ledger\n"
        "with Ledger(sys.argv[1]) as ledger:\n"
        "    print('ready', flush=True); sys.stdin.readline()\n"
        "    for i in range(400):\n"
        "        ledger.put(f'{sys.argv[2]}{i:031d}', {'text': 'x' * (i * 97 % 9000)})\n"
        "        assert ledger.get(f'{sys.argv[2]}{i:031d}') is not None\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "l"), name], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for name in "abc"
    ]
    for child in children:
        assert child.stdout.readline() == b"ready\n"
    for child in children:
        child.stdin.write(b"go\n")
        child.stdin.flush()
    for child in children:
        child.communicate()
    assert [child.returncode for child in children] == [0, 0, 0]
    keys = {json.loads(line)["key"] for line in (tmp_path / "l").read_bytes().splitlines()}
    assert len(keys) == 1200
    with Ledger(tmp_path / "l") as ledger:
        assert all(len(ledger.get(key)["text"]) == int(key[1:]) * 97 % 9000 for key in keys)


def test_a_full_disk_is_one_clear_error_and_leaves_the_file_whole(tmp_path, monkeypatch):
    with Ledger(tmp_path / "l") as ledger:
        ledger.put(A, {"text": "1"})
        write = os.write
        monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:10]))
        with pytest.raises(DataError, match="disk is full"):
            ledger.put(B, {"text": "2"})
        monkeypatch.undo()
        assert (tmp_path / "l").read_bytes().endswith(b'"1"}\n')
        assert ledger.get(B) is None
        ledger.put(C, {"text": "3"})
    assert [json.loads(line)["key"] for line in (tmp_path / "l").read_bytes().splitlines()] == [A, C]


def test_a_path_that_can_not_be_opened_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/ledger\.jsonl"):
        Ledger(tmp_path / "file" / "ledger.jsonl")
