"""A run put together: folders, fingerprints, and a cut run that is the uncut one to the last file."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import attrs
import numpy as np
import pytest

from andrea import assembly, fingerprint, planning, run_data
from andrea.assembly import open_run
from andrea.checkpoint import complete_steps, read_checkpoint, write_checkpoint
from andrea.errors import AndreaError
from andrea.interrupts import Interrupts
from andrea.planning import Mode, Request, newest_run, plan
from andrea.tokenfile import TokenFile
from andrea.types import Device

CPU = ("--device", "cpu")


def quiet(*words):
    """Say nothing."""


def contents(folder):
    """Return the bytes of every file below a folder, by relative path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_seventeen_steps_and_a_resume_are_thirty_steps(andrea, experiment):
    """``--steps 17`` then ``--resume --steps 30`` leaves the files of ``--steps 30``, all of them, byte for byte."""
    assert andrea("run", experiment, "--out", "cut", "--steps", 17, *CPU).code == 0
    assert complete_steps(Path("cut/checkpoints")) == [10, 17]
    assert andrea("run", "--resume", "--out", "cut", "--steps", 30, *CPU).code == 0
    assert andrea("run", experiment, "--out", "uncut", "--steps", 30, *CPU).code == 0
    cut, uncut = contents(Path("cut")), contents(Path("uncut"))

    extra = {name for name in cut if "step_000017" in name}
    assert len(extra) == 3
    # With keep 3 the additional checkpoint of step 17 has pushed out that of step 10.
    pushed_out = {name for name in uncut if "step_000010" in name}
    assert cut.keys() - extra == uncut.keys() - pushed_out
    assert [name for name in cut.keys() - extra if cut[name] != uncut[name]] == []


def test_the_number_of_steps_is_no_part_of_a_run(andrea, experiment):
    """The configuration of a run that was to stop at 4 is that of one that was to stop at 9."""
    for steps in (4, 9):
        assert andrea("run", experiment, "--out", f"run{steps}", "--steps", steps, *CPU).code == 0

    assert Path("run4/config.json").read_bytes() == Path("run9/config.json").read_bytes()
    lines = [Path(f"run{steps}/journal.jsonl").read_bytes().splitlines() for steps in (4, 9)]
    assert lines[0][:4] == lines[1][:4]


def test_two_fresh_runs_are_equal(andrea, experiment):
    """The same experiment twice gives the same bytes in every file."""
    for name in ("a", "b"):
        assert andrea("run", experiment, "--out", name, "--steps", 12, *CPU).code == 0

    assert contents(Path("a")) == contents(Path("b"))


@pytest.mark.parametrize(
    ("part", "patch"),
    [
        ("andrea", ("own_digest", lambda device: "another")),
        ("plugin bandit.ucb1", ("source_digest", lambda target: "another")),
    ],
)
def test_what_has_changed_is_named_part_by_part(andrea, experiment, monkeypatch, part, patch):
    """A resume under other code is refused, naming what it was and is; ``--allow-drift`` goes on."""
    assert andrea("run", experiment, "--out", "run", "--steps", 10, *CPU).code == 0
    was = read_checkpoint(Path("run/checkpoints/step_000010")).record["fingerprint"][part]
    before = contents(Path("run"))
    monkeypatch.setattr(fingerprint, *patch)
    ended = andrea("run", "--resume", "--out", "run", "--steps", 12, *CPU)

    assert ended.code == 2
    assert f"{part}: {was} -> " in ended.err
    assert "another" in ended.err
    assert "--allow-drift" in ended.err
    assert contents(Path("run")) == before
    assert andrea("run", "--resume", "--out", "run", "--steps", 12, "--allow-drift", *CPU).code == 0


def test_a_change_of_the_engine_is_drift(andrea, experiment, monkeypatch):
    """Another library, device or thread count under the engine is named; log plugins are no part of it."""
    from andrea.engine.reference import ReferenceEngine

    assert andrea("run", experiment, "--out", "run", "--steps", 10, *CPU).code == 0
    real = ReferenceEngine.fingerprint
    monkeypatch.setattr(ReferenceEngine, "fingerprint", lambda self: {**real(self), "blas": "other 1.0", "new": "x"})
    ended = andrea("run", "--resume", "--out", "run", "--steps", 12, *CPU)

    assert ended.code == 2
    assert "engine blas: " in ended.err
    assert "-> other 1.0" in ended.err
    assert "engine new: None -> x" in ended.err
    recorded = read_checkpoint(Path("run/checkpoints/step_000010")).record["fingerprint"]
    assert not [part for part in recorded if "log." in part]
    assert {"andrea", "data", "tokenizer", "plugin sampler.dice"} <= set(recorded)


def test_planning_changes_nothing_on_disk(experiment, current_folder):
    """A plan is only a plan: no folder, no cache, no file."""
    before = sorted(path.name for path in current_folder.iterdir())
    planned = plan(Request(experiment=experiment, device="cpu"), quiet)

    assert planned.folder == Path("runs/tiny-001")
    assert sorted(path.name for path in current_folder.iterdir()) == before


def test_plugins_stand_in_call_order(experiment):
    """The command line's first, then the experiment's, then defaults; the checkpoint says the same."""
    request = Request(experiment=experiment, device="cpu", plugins=["stop.coherence"], out=Path("run"), steps=1)
    planned = plan(request, quiet)
    names = [one.name for one in planned.chosen]

    assert names[0] == "stop.coherence"
    assert names[1:5] == ["tokenizer.byte", "bandit.ucb1", "sampler.dice", "weight.epoch_penalty"]
    loop = open_run(planned, quiet, quiet, Interrupts())
    loop.run()
    saved = read_checkpoint(Path("run/checkpoints/step_000001"))
    assert [name for name, _, _ in saved.record["plugins_in_order"]] == names == list(saved.plugins)


def test_a_run_that_cannot_start_leaves_no_folder(experiment, monkeypatch):
    """Whatever fails before the first step, a new run's folder is not there afterwards, and an old one stays."""
    from andrea.loop import Loop

    def fail(*arguments):
        raise AndreaError("no")

    monkeypatch.setattr(Loop, "start", fail)
    request = Request(experiment=experiment, device="cpu", out=Path("new"))
    with pytest.raises(AndreaError, match="no"):
        open_run(plan(request, quiet), quiet, quiet, Interrupts())
    assert not Path("new").exists()

    Path("old").mkdir()
    Path("old/notes.txt").write_text("mine")
    request = Request(experiment=experiment, device="cpu", out=Path("old"))
    with pytest.raises(AndreaError, match="no"):
        open_run(plan(request, quiet), quiet, quiet, Interrupts())
    assert Path("old/notes.txt").read_text() == "mine"
    assert not Path("old/config.json").exists()


def test_the_newest_run_is_the_one_whose_configuration_is_newest(tmp_path):
    """Folders without a configuration do not count; without a run that is said."""
    with pytest.raises(AndreaError, match="there is no run in") as caught:
        newest_run("name it", tmp_path)
    assert caught.value.hint == "andrea run begins one; for one elsewhere: name it"
    for age, name in enumerate(("b", "a", "c")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        os.utime(tmp_path / name / "config.json", (1000 - age, 1000 - age))
    (tmp_path / "zz").mkdir()

    assert newest_run("name it", tmp_path).name == "b"


def test_folders_are_numbered_past_the_highest(experiment, current_folder):
    """A gap is not filled, other names do not disturb, and four digits are possible."""
    for name in ("tiny-001", "tiny-999", "tiny-x", "other-7"):
        (current_folder / "runs" / name).mkdir(parents=True)

    assert plan(Request(experiment=experiment, device="cpu"), quiet).folder == Path("runs/tiny-1000")


def test_the_steps_of_a_plan(experiment, tiny, write_experiment):
    """The command line's count, else the option's, else the schedule's; none where nothing counts."""
    assert plan(Request(experiment=experiment, device="cpu"), quiet).steps == 30
    assert plan(Request(experiment=experiment, device="cpu", steps=4), quiet).steps == 4
    tiny["plugins"]["stop.max_steps"] = {"steps": 12}
    assert plan(Request(experiment=write_experiment(tiny), device="cpu"), quiet).steps == 12
    without = Request(experiment=experiment, device="cpu", without=["stop.max_steps"])
    del tiny["plugins"]["stop.max_steps"]
    write_experiment(tiny)
    assert plan(without, quiet).steps is None


def test_a_fork_without_its_parents_journal_goes_on_all_the_same(andrea, experiment):
    """A checkpoint that was copied away from its run can be forked; its history then begins at the fork."""
    assert andrea("run", experiment, "--out", "run", "--steps", 10, *CPU).code == 0
    Path("run/journal.jsonl").unlink()
    ended = andrea("run", "--from", "run/checkpoints/step_000010.bin", "--out", "fork", "--steps", 12, *CPU)

    assert ended.code == 0, ended.err
    assert [step for step, _ in json.loads(Path("fork/tiny.loss.json").read_text())] == [10, 11]
    assert complete_steps(Path("fork/checkpoints")) == [10, 12]


def test_a_tokenizer_folder_is_whole_or_absent(experiment, monkeypatch):
    """A copy that was cut short is not taken for the tokenizer: the next run in that folder makes it anew."""
    Path("run/tokenizer").mkdir(parents=True)
    Path("run/lock").touch()  # what a start that was killed leaves behind
    request = Request(experiment=experiment, device="cpu", out=Path("run"), steps=1)
    open_run(plan(request, quiet), quiet, quiet, Interrupts()).run()

    names = sorted(path.name for path in Path("run/tokenizer").iterdir())
    assert names == ["byte_tokenizer.json", "tokenizer.json", "tokenizer_config.json"]
    assert plan(Request(Mode.RESUME, device="cpu", out=Path("run"), steps=1), quiet).done


def test_memory_is_said_before_it_is_taken(andrea, experiment, monkeypatch):
    """On a card the plan is printed first, so that a person sees it even when the card then refuses."""
    said = []

    def refuse(config, device, precision):
        assert said[-1].endswith("in all")
        raise AndreaError("does not fit")

    monkeypatch.setattr(assembly, "open_engine", refuse)
    monkeypatch.setattr(planning, "find_device", lambda *_: Device("cuda", "imitated", (9, 0)))
    planned = plan(Request(experiment=str(experiment), out=Path("card")), quiet)
    with Interrupts() as interrupts, pytest.raises(AndreaError, match="does not fit"):
        open_run(planned, said.append, quiet, interrupts)
    assert "device cuda imitated, bf16; memory:" in said
    assert not Path("card").exists()


def test_two_runs_never_share_a_folder(experiment):
    """Two plans that chose the same number become two runs in two folders; a named folder is refused to the second."""
    plans = [plan(Request(experiment=experiment, device="cpu", steps=1), quiet) for _ in range(2)]
    assert plans[0].folder == plans[1].folder == Path("runs/tiny-001")
    loops = [open_run(one, quiet, quiet, Interrupts()) for one in plans]
    assert [loop.folder for loop in loops] == [Path("runs/tiny-001"), Path("runs/tiny-002")]
    for loop in loops:
        loop.run()
    assert [complete_steps(loop.folder / "checkpoints") for loop in loops] == [[1], [1]]

    named = [plan(Request(experiment=experiment, device="cpu", steps=1, out=Path("one")), quiet) for _ in range(2)]
    first = open_run(named[0], quiet, quiet, Interrupts())
    with pytest.raises(AndreaError, match=f"one is in use by process {os.getpid()}"):
        open_run(named[1], quiet, quiet, Interrupts())
    first.run()
    with pytest.raises(AndreaError, match="one already holds a run"):
        open_run(named[1], quiet, quiet, Interrupts())
    assert complete_steps(Path("one/checkpoints")) == [1]


def test_the_folder_is_taken_before_the_data_is_prepared(experiment, monkeypatch):
    """While data is prepared the folder is there and locked; a preparation that fails gives it back."""
    seen = []

    def fail(*arguments):
        seen.extend(sorted(path.name for path in Path("runs/tiny-001").iterdir()))
        raise AndreaError("no text")

    monkeypatch.setattr(run_data, "prepare_data", fail)
    with pytest.raises(AndreaError, match="no text"):
        open_run(plan(Request(experiment=experiment, device="cpu"), quiet), quiet, quiet, Interrupts())

    assert seen == ["lock"]
    assert not Path("runs/tiny-001").exists()


@pytest.mark.parametrize("command", [("run", "--resume", "--out", "run"), ("polish", "run")])
def test_a_run_that_lives_is_left_alone(andrea, experiment, command):
    """Resume and polish beside a running process end with its number and exit code 2, and touch nothing."""
    assert andrea("run", experiment, "--out", "run", "--steps", 10, *CPU).code == 0
    living = open_run(
        plan(Request(Mode.RESUME, device="cpu", out=Path("run"), steps=20), quiet), quiet, quiet, Interrupts()
    )
    living.train_one()
    living.journal.flush()
    before = contents(Path("run"))
    ended = andrea(*command, "--steps", 20, *CPU)

    assert ended.code == 2
    assert f"in use by process {os.getpid()}" in ended.err
    assert contents(Path("run")) == before
    living.close()
    assert andrea(*command, "--steps", 20, *CPU).code == 0


def test_a_fork_or_polish_without_a_step_to_make_asks_for_steps(andrea, experiment):
    """At the end of its steps already, a fork or a polish would do nothing: exit code 2, and what to type."""
    assert andrea("run", experiment, "--out", "run", "--steps", 30, *CPU).code == 0
    checkpoint = "run/checkpoints/step_000030.json"
    for command in (("run", "--from", checkpoint, "--out", "fork"), ("polish", "run")):
        ended = andrea(*command, *CPU)
        assert ended.code == 2
        assert "the checkpoint is at step 30, and the run would end at step 30" in ended.err
        assert "--steps 1030" in ended.err
        assert not Path("fork").exists()
    assert andrea("run", "--from", checkpoint, "--out", "fork", "--steps", 31, *CPU).code == 0
    assert complete_steps(Path("fork/checkpoints")) == [30, 31]


def with_scale(folder, step):
    """Give a checkpoint the state that a dynamic loss scale has, as float16 writes it; return its name."""
    place = Path(folder) / "checkpoints"
    saved = read_checkpoint(place / f"step_{step:06d}")
    scale = {"loss_scale": np.ones(1, np.float32), "loss_scale_growth": np.zeros(1, np.int64)}
    return write_checkpoint(place, attrs.evolve(saved, engine={**saved.engine, **scale}))


def test_another_precision_leaves_its_state_behind(andrea, experiment):
    """A fork and a polish say what of the engine's state they drop; a resume refuses; none ends in a traceback."""
    assert andrea("run", experiment, "--out", "run", "--steps", 10, *CPU).code == 0
    checkpoint = with_scale("run", 10)

    ended = andrea("run", "--from", checkpoint, "--out", "fork", "--steps", 12, *CPU)
    assert ended.code == 0, ended.err
    assert "left behind: loss_scale, loss_scale_growth" in ended.err
    ended = andrea("run", "--resume", "--out", "run", "--steps", 12, *CPU)
    assert ended.code == 2
    assert "loss_scale" in ended.err
    assert "--from CHECKPOINT" in ended.err
    ended = andrea("polish", "run", "--steps", 12, *CPU)
    assert ended.code == 0, ended.err
    assert "left behind: loss_scale, loss_scale_growth" in ended.err
    assert Path("run/checkpoints/step_000012.bin").read_bytes() == Path("fork/checkpoints/step_000012.bin").read_bytes()


def test_what_an_engine_wants_and_was_not_saved_begins_anew(andrea, experiment, monkeypatch):
    """A fork into an engine with more state says which part begins at its fresh value, which it then takes."""
    from andrea.engine.reference import ReferenceEngine

    assert andrea("run", experiment, "--out", "run", "--steps", 10, *CPU).code == 0
    taken = []
    export = ReferenceEngine.export_state
    monkeypatch.setattr(ReferenceEngine, "export_state", lambda self: {**export(self), "scale": np.full(1, 8.0)})
    monkeypatch.setattr(ReferenceEngine, "import_state", lambda self, state: taken.append(state["scale"].tolist()))
    request = Request(
        Mode.FORK, device="cpu", out=Path("fork"), checkpoint=Path("run/checkpoints/step_000010.bin"), steps=12
    )
    said = []
    loop = open_run(plan(request, quiet), said.append, quiet, Interrupts())

    assert "state of the engine that begins anew: scale" in said
    assert taken == [[8.0]]
    loop.close()


def test_a_resume_may_be_started_in_another_folder(andrea, tiny, write_experiment, current_folder, monkeypatch):
    """With the cache gone, the sources are found where they were; they give the data that they gave under any path."""
    for source in tiny["sources"]:
        path = Path(source["options"]["path"])
        (current_folder / path.name).write_bytes(path.read_bytes())
        source["options"]["path"] = path.name
    monkeypatch.setenv("ANDREA_CACHE", str(current_folder / "cache"))
    run = str(current_folder / "run")
    assert andrea("run", write_experiment(tiny), "--out", run, "--steps", 3, *CPU).code == 0
    assert andrea("run", write_experiment(tiny), "--out", "uncut", "--steps", 5, *CPU).code == 0
    (current_folder / "elsewhere").mkdir()
    monkeypatch.chdir(current_folder / "elsewhere")
    monkeypatch.setenv("ANDREA_CACHE", str(current_folder / "other cache"))
    ended = andrea("run", "--resume", "--out", run, "--steps", 5, *CPU)
    assert ended.code == 0, ended.err
    name = "checkpoints/step_000005.json"
    assert (current_folder / "run" / name).read_bytes() == (current_folder / "uncut" / name).read_bytes()
    # The configuration of a run is an experiment, from any folder.
    assert andrea("run", f"{run}/config.json", "--out", "again", "--steps", 5, *CPU).code == 0
    assert Path("again", name).read_bytes() == (current_folder / "uncut" / name).read_bytes()


def test_prepared_data_is_verified_once(andrea, experiment, current_folder, monkeypatch):
    """A run over prepared data, and a resume, read every token file once to compare its digest."""
    read = []
    real = TokenFile.verify
    monkeypatch.setattr(TokenFile, "verify", lambda file: [read.append(file.path), real(file)])
    monkeypatch.setenv("ANDREA_CACHE", str(current_folder / "cache"))
    assert andrea("prepare", experiment).code == 0
    assert read == []  # just written
    assert andrea("run", experiment, "--out", "run", "--steps", 3, *CPU).code == 0
    files = sorted((current_folder / "cache" / "tokens").iterdir())
    assert sorted(read) == files
    read.clear()
    assert andrea("run", "--resume", "--out", "run", "--steps", 5, *CPU).code == 0
    assert sorted(read) == files


def test_a_flipped_bit_in_prepared_data_is_found(andrea, experiment, current_folder, monkeypatch):
    """A token file whose body has changed is refused by inspect, and made again by a new run and by a resume."""
    monkeypatch.setenv("ANDREA_CACHE", str(current_folder / "cache"))
    assert andrea("run", experiment, "--out", "run", "--steps", 10, *CPU).code == 0
    path = next((current_folder / "cache" / "tokens").glob("*.train.btok"))
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[-2000] ^= 1

    for command in (
        ("run", experiment, "--out", "new", "--steps", 1),
        ("run", "--resume", "--out", "run", "--steps", 12),
    ):
        path.write_bytes(damaged)
        ended = andrea("inspect", path)
        assert ended.code == 2
        assert f"{path} is damaged" in ended.err
        ended = andrea(*command, *CPU)
        assert ended.code == 0, ended.err
        assert path.read_bytes() == whole


def test_the_fingerprint_holds_the_interpreter_and_the_evaluation(andrea, experiment):
    """Python's version and the text of the evaluation are part; on the CPU the text of the CUDA engine is none."""
    assert andrea("run", experiment, "--out", "run", "--steps", 1, *CPU).code == 0
    recorded = read_checkpoint(Path("run/checkpoints/step_000001")).record["fingerprint"]
    own, card = ({path.name for path in fingerprint.own_files(device)} for device in ("cpu", "cuda"))

    assert recorded["python"] == ".".join(map(str, sys.version_info[:2]))
    assert {"evaluate.py", "loop.py", "reference.py", "operations.py", "schedule.py"} <= own
    assert "step.py" not in own
    assert own < card
    assert {"step.py", "gemm.py", "launcher.py"} <= card
    assert fingerprint.own_digest("cpu") != fingerprint.own_digest("cuda")


def test_every_engine_file_that_the_reference_imports_is_hashed():
    """The list of the reference's modules is what a fresh interpreter loads with it."""
    script = "import sys, andrea.engine.reference; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()

    modules = {name.removeprefix("andrea.engine.") for name in loaded if name.startswith("andrea.engine.")}
    assert modules | {"__init__"} == set(fingerprint.REFERENCE)


def test_an_edited_tokenizer_is_trained_anew(andrea, tiny, write_experiment, current_folder, monkeypatch):
    """The text of the tokenizer plugin is part of what its trained tokenizer is kept under."""
    monkeypatch.setenv("ANDREA_CACHE", str(current_folder / "cache"))
    name = write_experiment(tiny)
    for digest, count in (("one", 1), ("one", 1), ("two", 2)):
        monkeypatch.setattr(run_data, "source_digest", lambda target, digest=digest: digest)
        assert andrea("prepare", name).code == 0
        assert len([path for path in (current_folder / "cache" / "tokenizers").iterdir() if path.is_dir()]) == count


def test_plugins_are_told_where_the_run_stops(experiment):
    """``--steps`` reaches `Run.stop_step`, and the schedule's horizon stays what it is."""
    loop = open_run(
        plan(Request(experiment=experiment, device="cpu", out=Path("run"), steps=4), quiet), quiet, quiet, Interrupts()
    )
    assert (loop.view().stop_step, loop.view().steps) == (4, 30)
    loop.close()


def test_the_end_says_what_was_written_and_what_to_type(andrea, experiment):
    """The last lines name the folder, the checkpoint, and three commands that work."""
    ended = andrea("run", experiment, "--out", "my run", "--steps", 4, *CPU)

    assert ended.err.splitlines()[-4:] == [
        "run: my run, checkpoint step_000004, tiny.loss.json, journal.jsonl",
        "  write with it: andrea sample 'my run'",
        "  measure it:    andrea evaluate 'my run'",
        "  go on:         andrea run --resume --out 'my run' --steps 34",
    ]
    for line in ended.err.splitlines()[-3:]:
        command = shlex.split(line.partition("andrea ")[2])
        assert andrea(*command, *CPU).code == 0
