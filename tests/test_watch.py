"""Logging to Weights & Biases: a guest that can fail, never a reason for a run to stop."""
import sys
from types import SimpleNamespace

import runtime


def watched(monkeypatch, tmp_path, log):
    """A Log with a Watch on a made-up wandb; (Log, what was said, what was finished)."""
    finished, said = [], []
    run = SimpleNamespace(log=log, finish=lambda: finished.append(True))
    fake = SimpleNamespace(init=lambda **options: run, Settings=lambda **options: options)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    (tmp_path / "run.json").write_text("{}")
    book = runtime.Log(tmp_path, main=True)
    book.watch = runtime.Watch("project", "name", tmp_path, said.append)
    return book, said, finished


def test_numbers_are_sent_by_event_and_step(monkeypatch, tmp_path):
    sent = []
    book, said, finished = watched(monkeypatch, tmp_path,
                                   lambda numbers, step: sent.append((step, numbers)))
    book.write("train", 3, train_loss=1.5, batch_hash="ab")
    book.write("eval", 4, val_loss=2.0)
    book.close()
    assert sent == [(3, {"train/train_loss": 1.5}), (4, {"eval/val_loss": 2.0})]
    assert finished and not said


def test_a_lost_connection_is_said_once_and_the_log_goes_on(monkeypatch, tmp_path):
    def lost(numbers, step):
        raise ConnectionError("the line is dead")

    book, said, finished = watched(monkeypatch, tmp_path, lost)
    for step in range(3):
        book.write("train", step, train_loss=1.0)
    book.close()
    assert len(said) == 1 and "the line is dead" in said[0] and not finished
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 3


def test_without_wandb_a_line_says_so(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "wandb", None)
    said = []
    runtime.Watch("project", "name", tmp_path, said.append)
    assert len(said) == 1 and "wandb" in said[0]
