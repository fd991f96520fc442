"""Every plugin swapped in, every default swapped out: it runs and resumes with `==`, or says what is missing."""

from __future__ import annotations

import json

import pytest

from andrea.registry import DEFAULTS, EXCLUSIVE, available

STEPS, CUT = 20, 9

# Options without which a plugin has nothing to do.
OPTIONS = {
    "bandit.fixed": {"weights": {"one": 0.3, "two": 0.7}},
    "bandit.replay": {"path": "other", "order": "reversed"},
    "weight.warmup": {"curriculum_warmup_steps": 8, "curriculum_warmup_sources": ["one"]},
    "limit.floors": {"floors": {"one": 0.3}},
    "limit.caps": {"caps": {"two": 0.5}},
    "tokenizer.harris": {"segments": 32},
    "tokenizer.bpe": {"segments": 32},
    "tokenizer.library": {"path": "other/tokenizer"},
    "stop.coherence": {"grace_steps": 0, "failures": 50},
    "stop.human_range": {"grace_steps": 0, "failures": 50},
}
NEEDS_A_CARD = {name for name in available() if name.startswith("precision.") and name != "precision.fp32"}


def final_bytes(folder):
    """Return the bytes of the state after the last step and of the journal."""
    base = folder / "checkpoints" / f"step_{STEPS:06d}"
    files = [base.with_suffix(suffix) for suffix in (".bin", ".npz", ".json")]
    return [path.read_bytes() for path in (*files, folder / "journal.jsonl")]


def run_and_resume(andrea, experiment, current_folder, *arguments):
    """Run 20 steps at once, and cut after 9; return the exit code and whether both ends are equal."""
    common = [*arguments, "--device", "cpu"]
    whole = andrea("run", experiment, "--steps", str(STEPS), "--out", "whole", *common)
    if whole.code != 0:
        return whole, None
    cut = andrea("run", experiment, "--steps", str(CUT), "--out", "cut", *common)
    assert cut.code == 0, cut
    resumed = andrea("run", "--resume", "--out", "cut", "--steps", str(STEPS), "--device", "cpu")
    assert resumed.code == 0, resumed
    return whole, final_bytes(current_folder / "whole") == final_bytes(current_folder / "cut")


@pytest.mark.parametrize("name", [n for n in available() if not n.startswith("source.") and n not in NEEDS_A_CARD])
def test_every_plugin_swapped_in_runs_and_resumes(andrea, experiment, current_folder, name):
    """20 steps with the plugin, cut at 9 and resumed, end in the same bytes."""
    if name in ("bandit.replay", "tokenizer.library"):
        assert andrea("run", experiment, "--steps", str(CUT), "--out", "other", "--device", "cpu").code == 0
    settings = [f"--set={name}.{key}={json.dumps(value)}" for key, value in OPTIONS.get(name, {}).items()]

    _, equal = run_and_resume(andrea, experiment, current_folder, "--plugin", name, *settings)

    assert equal


@pytest.mark.parametrize("name", sorted(NEEDS_A_CARD))
def test_a_precision_that_needs_a_card_says_so(andrea, experiment, current_folder, name):
    """On the CPU the fast precisions end with exit code 2 and name what works here."""
    whole, _ = run_and_resume(andrea, experiment, current_folder, "--plugin", name)

    assert whole.code == 2
    assert "precision.fp32" in whole.err
    assert not (current_folder / "whole" / "checkpoints").exists()


@pytest.mark.parametrize("name", [*DEFAULTS, "precision.fp32"])
def test_every_default_swapped_out_runs_or_names_what_is_missing(andrea, tiny, write_experiment, current_folder, name):
    """Without a default the run still works and resumes, or exits 2 and names the kind that is missing."""
    tiny["plugins"] = {} if name == "tokenizer.harris" else {"tokenizer.byte": {}}
    experiment = write_experiment(tiny)
    kind = name.partition(".")[0]

    if name == "stop.max_steps":
        ended = andrea("run", experiment, "--without", name, "--steps", str(STEPS), "--device", "cpu")
        assert ended.code == 2
        assert name in ended.err
        return
    whole, equal = run_and_resume(andrea, experiment, current_folder, "--without", name)

    if kind in EXCLUSIVE:
        assert whole.code == 2
        assert f"kind {kind}" in whole.err
    else:
        assert equal


READERS = {
    "source.text": lambda folder: {"path": str(folder / "text")},
    "source.jsonl": lambda folder: {"path": str(folder / "lines.jsonl")},
    "source.markdown": lambda folder: {"path": str(folder / "text")},
    "source.docstrings": lambda folder: {"packages": ["pluggy"]},
    "source.licences": lambda folder: {"distributions": ["numpy", "rich"], "chunk": 400},
    "source.commits": lambda folder: {"path": str(folder / "repository")},
    "source.parquet": lambda folder: {"path": str(folder / "rows.parquet")},
    "source.hub": lambda folder: {"dataset": str(folder), "files": "rows.parquet", "messages": "messages"},
    "source.chat": lambda folder: {"path": str(folder / "rows.parquet")},
    "source.gutenberg": lambda folder: {"path": str(folder / "text")},
    "source.dictionary": lambda folder: {"path": str(folder / "rows.parquet"), "word": "name", "definition": "text"},
}


@pytest.fixture
def readable(current_folder):
    """Return a folder with something for every reader."""
    import subprocess

    (current_folder / "text").mkdir()
    for number in range(6):
        (current_folder / "text" / f"page{number}.md").write_text(
            f"# Page {number}\n\n" + "The seed grows under rain. " * 9
        )
        (current_folder / "text" / f"page{number}.txt").write_text(
            f"Text {number}. " + "A leaf is a leaf in the light. " * 9
        )
    lines = ({"text": f"Line {number} of a source that grows. " * 5} for number in range(20))
    (current_folder / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = [
        {
            "name": f"word{number}",
            "text": f"Row {number} of a source that grows. " * 5,
            "messages": [{"role": role, "content": f"Words of {number}."} for role in ("user", "assistant")],
        }
        for number in range(20)
    ]
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist(rows), current_folder / "rows.parquet")
    git = ["git", "-C", str(current_folder / "repository"), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    (current_folder / "repository").mkdir()
    subprocess.run([*git, "init", "-q"], check=True)
    for number in range(12):
        message = f"Change number {number}: the stem carries the leaf and the leaf catches the light"
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", message], check=True)
    return current_folder


@pytest.mark.parametrize("name", [n for n in available() if n.startswith("source.")])
def test_every_reader_runs_and_resumes(andrea, tiny, write_experiment, readable, name):
    """An experiment read by the reader runs 20 steps, cut at 9 and resumed, to the same bytes."""
    assert name in READERS, f"tell this test what {name} may read"
    tiny["sources"] = [{"name": "one", "reader": name, "options": READERS[name](readable)}]
    tiny["plugins"] = {"tokenizer.byte": {}}

    _, equal = run_and_resume(andrea, write_experiment(tiny), readable)

    assert equal
