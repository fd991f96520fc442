"""The journal: one line a step, the same bytes on a resume, and what is rendered from it."""

from __future__ import annotations

import errno
import json
import math

import numpy as np
import pytest

from andrea.errors import AndreaError
from andrea.journal import Journal, plain, read_journal
from andrea.types import Evaluation, Limits, Pull, Sample, StepRecord

NAMES = ("one", "two")


def make_record(step, loss=2.5, **changes):
    """Return the record of a step with one pull of the second source."""
    limits = changes.pop("limits", Limits(np.zeros(2), np.full(2, np.inf)))
    pull = Pull(1, (3, 4), loss, np.array([np.inf, 1.5]), np.ones(2), limits, {"share": 0.25}, {"drop": 1.0})
    return StepRecord(step, (pull,), loss, 0.5, 1e-3, False, 64, **changes)


def lines(folder):
    """Return the lines of a folder's journal."""
    return list(read_journal(folder / "journal.jsonl"))


def test_a_step_is_one_line_with_all_that_decided_it(tmp_path):
    """Source by name, documents, loss, rewards, scores, weights and the sampler's word; inf is written as text."""
    journal = Journal(tmp_path, "model", NAMES)
    journal.step(make_record(0))
    journal.close()

    assert lines(tmp_path) == [
        {
            "kind": "step",
            "step": 0,
            "loss": 2.5,
            "grad_norm": 0.5,
            "learning_rate": 1e-3,
            "skipped": False,
            "tokens": 64,
            "pulls": [
                {
                    "source": "two",
                    "documents": [3, 4],
                    "loss": 2.5,
                    "rewards": {"drop": 1.0},
                    "scores": ["inf", 1.5],
                    "weights": [1.0, 1.0],
                    "detail": {"share": 0.25},
                }
            ],
        }
    ]


def test_limits_and_probes_are_written_where_there_are_any(tmp_path):
    """Floors, caps and probes take no room where no plugin uses them."""
    journal = Journal(tmp_path, "model", NAMES)
    journal.step(make_record(0, limits=Limits(np.array([0, 0.5]), np.array([np.inf, 0.7])), probes={"one": (2.0, 1.5)}))
    journal.close()
    (line,) = lines(tmp_path)

    assert line["pulls"][0]["floor"] == [0.0, 0.5]
    assert line["pulls"][0]["cap"] == ["inf", 0.7]
    assert line["probes"] == {"one": [2.0, 1.5]}


def test_a_step_waits_but_never_loses_its_place(tmp_path):
    """A step is written by `catch_up`, at the latest before the next line, a length, a rendering or the end."""
    journal = Journal(tmp_path, "model", NAMES)
    journal.step(make_record(0))
    assert journal.losses == []
    journal.catch_up()
    assert journal.losses == [[0, 2.5]]
    length = journal.length
    journal.catch_up()
    assert journal.length == length  # nothing is written twice
    journal.step(make_record(1))
    assert journal.length > length
    journal.step(make_record(2))
    journal.sample(Sample(3, 2.0, ("> ",), ("hello",)))
    journal.step(make_record(3, loss=float("nan")))
    journal.rendering()()
    assert json.loads((tmp_path / "model.loss.json").read_text()) == [[0, 2.5], [1, 2.5], [2, 2.5], [3, "nan"]]
    journal.step(make_record(4))
    journal.close()
    assert [line["step"] for line in lines(tmp_path)] == [0, 1, 2, 3, 3, 4]


def test_who_watches_sees_every_line_at_once(tmp_path):
    """Nothing waits in a buffer of this process: a step is in the file when it is caught up with, others at once."""
    journal = Journal(tmp_path, "model", NAMES)
    journal.step(make_record(0))
    journal.catch_up()
    assert [line["step"] for line in lines(tmp_path)] == [0]
    journal.sample(Sample(1, 2.0, ("> ",), ("hello",)))
    assert [line["kind"] for line in lines(tmp_path)] == ["step", "sample"]
    journal.close()


def test_the_other_lines(tmp_path):
    """Samples are prompt and text together; evaluations and reasons are as they were told."""
    journal = Journal(tmp_path, "model", NAMES)
    journal.sample(Sample(7, 2.0, ("> ", ""), ("hello", "world")))
    journal.evaluation(Evaluation(8, {"one": 1.5}, {"one": math.inf}))
    journal.stop(9, {"stop.max_steps": "done"})
    journal.close()

    assert lines(tmp_path) == [
        {"kind": "sample", "step": 7, "loss": 2.0, "texts": ["> hello", "world"]},
        {"kind": "evaluation", "step": 8, "loss": {"one": 1.5}, "bits_per_byte": {"one": "inf"}},
        {"kind": "stop", "step": 9, "reasons": {"stop.max_steps": "done"}},
    ]


def test_a_journal_cut_at_its_length_goes_on_as_if_uncut(tmp_path):
    """A resume keeps so many bytes, forgets the rest, remembers losses and samples, and writes the same bytes again."""
    (tmp_path / "cut").mkdir()
    (tmp_path / "uncut").mkdir()
    sample = Sample(2, 1.0, ("",), ("text",))

    def write(journal, steps):
        for step in steps:
            journal.step(make_record(step, loss=10.0 - step))
            if step == 1:
                journal.sample(sample)

    uncut = Journal(tmp_path / "uncut", "model", NAMES)
    write(uncut, range(5))
    first = Journal(tmp_path / "cut", "model", NAMES)
    write(first, range(3))
    length = first.length
    write(first, range(3, 4))
    first.stop(4, {})
    first.close()

    second = Journal(tmp_path / "cut", "model", NAMES, length)
    assert second.length == length
    assert second.losses == [[0, 10.0], [1, 9.0], [2, 8.0]]
    assert second.samples == [{"step": 2, "loss": 1.0, "text": "text"}]
    write(second, range(3, 5))
    for journal in (uncut, second):
        journal.rendering()()
        journal.close()

    for name in ("journal.jsonl", "model.loss.json", "model.samples.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "uncut" / name).read_bytes()


def test_a_new_journal_begins_empty(tmp_path):
    """Length 0 forgets what a run that never came to a checkpoint wrote."""
    (tmp_path / "journal.jsonl").write_text("rubbish")
    Journal(tmp_path, "model", NAMES).close()

    assert (tmp_path / "journal.jsonl").read_bytes() == b""


def test_what_is_rendered_is_the_whole_history(tmp_path):
    """<model>.loss.json is [[step, loss], ...], <model>.samples.json a list of {step, loss, text}, of that moment."""
    journal = Journal(tmp_path, "model", NAMES)
    journal.step(make_record(0))
    journal.sample(Sample(1, 2.5, ("a", "b"), ("x", "y")))
    render = journal.rendering()
    journal.step(make_record(1))
    render()
    journal.close()

    assert json.loads((tmp_path / "model.loss.json").read_text()) == [[0, 2.5]]
    assert json.loads((tmp_path / "model.samples.json").read_text()) == [
        {"step": 1, "loss": 2.5, "text": "ax"},
        {"step": 1, "loss": 2.5, "text": "by"},
    ]


def test_a_polish_begins_new_samples_and_goes_on_with_the_losses(tmp_path):
    """After the line of a polish the samples are those that follow, also when the journal is read again."""
    journal = Journal(tmp_path, "model", NAMES)
    journal.step(make_record(0))
    journal.sample(Sample(1, 2.5, ("",), ("before",)))
    journal.polish(1)
    journal.sample(Sample(2, 2.5, ("",), ("after",)))
    journal.flush()
    again = Journal(tmp_path, "model", NAMES, journal.length)

    for one in (journal, again):
        assert [sample["text"] for sample in one.samples] == ["after"]
        assert one.losses == [[0, 2.5]]
        one.close()


@pytest.mark.parametrize("content", [None, b"", b'{"kind":"stop"}'])
def test_a_journal_that_is_shorter_than_it_was_is_refused(tmp_path, content):
    """Missing history is an error of the user's that says how to go on."""
    if content is not None:
        (tmp_path / "journal.jsonl").write_bytes(content)

    with pytest.raises(AndreaError, match="shorter than the checkpoint says") as caught:
        Journal(tmp_path, "model", NAMES, 100)
    assert "--from" in caught.value.hint


def test_a_damaged_line_is_named(tmp_path):
    """A journal that is no JSON within its length is refused with the number of the line."""
    (tmp_path / "journal.jsonl").write_bytes(b'{"kind":"stop"}\n{"kind:\n')

    with pytest.raises(AndreaError, match="damaged: line 2 is not JSON"):
        Journal(tmp_path, "model", NAMES, 24)


def test_a_last_line_that_was_cut_is_left_out(tmp_path):
    """Reading the journal of a run that is being written, or was killed, gives its whole lines."""
    (tmp_path / "journal.jsonl").write_bytes(b'{"kind":"stop"}\n{"kind":"st')

    assert lines(tmp_path) == [{"kind": "stop"}]


def test_a_full_disk_is_an_error_of_the_users(tmp_path, monkeypatch):
    """When the journal cannot be made safe, the message says so and what to do."""
    journal = Journal(tmp_path, "model", NAMES)
    journal.step(make_record(0))

    def refuse(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(AndreaError, match=r"cannot write .*journal\.jsonl: No space left on device") as caught:
        journal.flush()
    assert "resume" in caught.value.hint
    journal.close()


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (np.float64("inf"), "inf"),
        ((1, [math.inf]), [1, ["inf"]]),
        ({"a": {"b": np.float64("nan")}}, {"a": {"b": "nan"}}),
        (np.array([1, 2]), [1, 2]),
        (np.array([1.0, np.nan]), [1.0, "nan"]),
        ("text", "text"),
        (None, None),
    ],
)
def test_every_value_becomes_one_that_json_has(value, wanted):
    """Numbers of numpy become Python's; what JSON has no number for becomes a text."""
    assert plain(value) == wanted
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == wanted
