"""The command line: exit codes, errors that help, JSON and nothing else, and every command on a tiny run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from andrea.checkpoint import complete_steps, newest_checkpoint, read_checkpoint
from andrea.journal import read_journal
from andrea.tokenfile import TokenFile

CPU = ("--device", "cpu")


@pytest.fixture
def trained(andrea, experiment, current_folder):
    """Return the folder of a tiny run of 20 steps."""
    ended = andrea("run", experiment, "--out", "run", "--steps", 20, *CPU)
    assert ended.code == 0, ended.err
    return current_folder / "run"


def refused(ended, *said):
    """Check that a command ended as by the user's error: exit code 2, a message, no traceback, nothing printed."""
    assert ended.code == 2, ended.err
    assert ended.err.count("error: ") == 1
    assert "Traceback" not in ended.err
    assert ended.out == ""
    for text in said:
        assert text in ended.err


def contents(folder):
    """Return the bytes of every file below a folder, by relative path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# -- help --------------------------------------------------------------------------------------------------------------


def test_help_answers_at_once():
    """``andrea --help`` takes hardly more than its libraries take, and loads no CUDA, no engine and no plugin."""
    import resource

    def seconds(*arguments):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # Processor time, the best of five in turns: machines differ, and a busy one slows the clock and the caches.
    libraries = "import attrs, numpy, pluggy, typer.rich_utils"
    pairs = [(seconds("-m", "andrea", "--help"), seconds("-c", libraries)) for _ in range(5)]
    ours, theirs = map(min, zip(*pairs, strict=True))
    assert ours < 1.5 * theirs

    script = "import sys, andrea.cli; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not [
        name for name in loaded if name.startswith(("cuda.", "andrea.engine", "andrea.plugins.", "andrea.loop"))
    ]


def test_every_command_has_help(andrea):
    """Each command explains itself and its options."""
    for command in ("run", "polish", "prepare", "sample", "evaluate", "inspect", "plugins", "doctor"):
        ended = andrea(command, "--help")
        assert ended.code == 0
        assert "Usage" in ended.out


def test_the_version_is_printed(andrea):
    """``--version`` prints the package's version."""
    from andrea import __version__

    assert andrea("--version").out == f"{__version__}\n"


@pytest.mark.parametrize("arguments", [["rum"], ["run", "--stepz", "3"], ["run", "--steps", "many"], ["inspect"]])
def test_a_wrong_command_line_exits_2(andrea, arguments):
    """Unknown commands and options, wrong types and missing arguments are errors of the user's."""
    ended = andrea(*arguments)

    assert ended.code == 2
    assert "Traceback" not in ended.err


# -- plugins -----------------------------------------------------------------------------------------------------------


def test_wrong_plugins_are_answered_with_the_right_ones(andrea, experiment, current_folder):
    """Two misspelt names in one command are both answered, and nothing is written."""
    ended = andrea("run", experiment, "--plugin", "bandit.ucb", "--plugin", "stop.coherense")

    refused(ended, "there is no plugin bandit.ucb", "there is no plugin stop.coherense")
    assert "bandit.ucb1" in ended.err
    assert "stop.coherence" in ended.err
    assert not (current_folder / "runs").exists()


def test_plugins_are_added_by_name(andrea, tiny, write_experiment):
    """``--plugin bandit.ucb1 --plugin stop.coherence --steps 20`` works, and both are used."""
    del tiny["plugins"]["bandit.ucb1"]
    ended = andrea(
        "run", write_experiment(tiny), "--plugin", "bandit.ucb1", "--plugin", "stop.coherence", "--steps", 20, *CPU
    )

    assert ended.code == 0, ended.err
    saved = read_checkpoint(Path("runs/tiny-001/checkpoints/step_000020.json"))
    assert list(saved.plugins)[:2] == ["bandit.ucb1", "stop.coherence"]
    assert saved.plugins["bandit.ucb1"]
    assert saved.record["reasons"] == {"stop.max_steps": "20 steps are done"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--plugin", "bandit.ucb1", "--plugin", "bandit.uniform"], "exclude each other"),
        (["--without", "stop.coherence"], "--without stop.coherence: it is not used"),
        (["--without", "tokenizer.byte"], "no plugin of the kind tokenizer is in use"),
        (["--without", "stop.max_steps", "--steps", "3"], "--steps needs stop.max_steps"),
        (["--set", "bandit.ucb1.explore=2"], "did you mean exploration?"),
        (["--set", "bandit.ucb1.exploration=high"], '"high" is not a number'),
        (["--set", "model.n_head=3"], "d_model 8 is not divisible by model.n_head 3"),
        (["--set", "shedule.peak=1"], "did you mean schedule?"),
        (["--set", "schedule.peek=1"], "did you mean peak?"),
        (["--set", "sources=[]"], "names no sources"),
        (["--set", "seed"], "is not KEY=VALUE"),
        (["--steps", "0"], "--steps 0 is less than one step"),
        (["--device", "gpu"], "gpu"),
        (["--resume", "--from", "x"], "exclude each other"),
        (["--from", "x.json"], "--from CHECKPOINT --out NEW"),
        (["--from", "x.json", "--out", "new"], "there is no checkpoint x.json"),
        (["--plugin", "precision.bf16"], "bf16"),
        (["--plugin", "weight.warmup", "--set", 'weight.warmup.curriculum_warmup_sources=["on"]'], "one, two"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(andrea, experiment, current_folder, arguments, said):
    """Every refusal says what is wrong, exits 2 and leaves no folder of a run behind."""
    device = [] if "--device" in arguments else CPU
    new = [] if "--resume" in arguments or "--from" in arguments else [experiment]
    refused(andrea("run", *new, *arguments, *device), said)

    assert not (current_folder / "runs").exists() or not list((current_folder / "runs").iterdir())
    assert not (current_folder / "new").exists()


def test_plugins_are_listed(andrea):
    """As a table, one alone with its options, of one kind, and as JSON."""
    assert "bandit.ucb1" in andrea("plugins").out
    one = andrea("plugins", "bandit.ucb1").out
    assert "--set bandit.ucb1.exploration=" in one
    reader = andrea("plugins", "source.text").out
    assert '\n  "path": VALUE  (str | list[str]) ' in reader
    assert '\n  "chunk": 6000  (int) ' in reader
    assert "--set" not in reader
    assert json.loads(andrea("plugins", "source.text", "--json").out)[0]["source_options"][0]["name"] == "path"
    kinds = {row["kind"] for row in json.loads(andrea("plugins", "--kind", "stop", "--json").out)}
    assert kinds == {"stop"}
    refused(andrea("plugins", "bandit.ucb"), "did you mean bandit.ucb1")
    refused(andrea("plugins", "--kind", "stopp"), "did you mean stop?")


# -- running -----------------------------------------------------------------------------------------------------------


def test_a_run_writes_what_it_promises(trained, tiny):
    """Configuration, checkpoints, journal, losses, samples, state and tokenizer, and nothing half written."""
    names = {path.name for path in trained.iterdir()}
    assert names == {
        "config.json",
        "checkpoints",
        "journal.jsonl",
        "tiny.loss.json",
        "tiny.samples.json",
        "tiny.state.json",
        "tokenizer",
    }
    assert not list(trained.rglob("*.partial"))
    assert complete_steps(trained / "checkpoints") == [10, 20]
    losses = json.loads((trained / "tiny.loss.json").read_text())
    assert [step for step, _ in losses] == list(range(20))
    samples = json.loads((trained / "tiny.samples.json").read_text())
    assert [s["step"] for s in samples] == [7, 7, 14, 14]
    state = json.loads((trained / "tiny.state.json").read_text(), parse_constant=pytest.fail)
    assert state["step"] == 20
    assert "bandit.ucb1" in state["plugins"]


def test_the_written_configuration_starts_the_run_again(andrea, trained):
    """config.json is an experiment: it gives the same run to the last byte."""
    assert andrea("run", trained / "config.json", "--out", "again", "--steps", 20, *CPU).code == 0

    assert contents(trained) == contents(Path("again"))


def test_folders_are_numbered_and_never_used_twice(andrea, experiment, trained):
    """runs/NAME-001, then -002; a folder that holds a run is refused, with what to type."""
    for number in ("001", "002"):
        assert f"run: runs/tiny-{number}" in andrea("run", experiment, "--steps", 2, *CPU).err
    before = contents(trained)
    refused(andrea("run", experiment, "--out", "run", *CPU), "already holds a run", "andrea run --resume --out run")
    refused(andrea("run", "--from", trained / "checkpoints/step_000010.json", "--out", "run", *CPU), "already holds")

    assert contents(trained) == before


def test_a_stop_by_a_plugin_exits_3(andrea, tiny, write_experiment, monkeypatch):
    """A reason other than the step count is exit code 3, and it is kept in the checkpoint."""
    from andrea.plugins.stop.not_finite import NotFinite

    monkeypatch.setattr(NotFinite, "should_stop", NotFinite.should_stop, raising=True)
    original = NotFinite.on_step

    def fail(self, record):
        self.failures = 10 if record.step == 5 else 0

    fail.andrea_impl = original.andrea_impl
    monkeypatch.setattr(NotFinite, "on_step", fail)
    ended = andrea("run", write_experiment(tiny), "--out", "run", *CPU)

    assert ended.code == 3, ended.err
    assert "stop.not_finite: 10 steps in a row" in ended.err
    assert "stop.not_finite" in read_checkpoint(Path("run/checkpoints/step_000006")).record["reasons"]


def test_an_unknown_experiment_is_suggested(andrea):
    """A misspelt name is answered with the bundled experiments."""
    refused(andrea("run", "quickstrat"), "there is no experiment or file 'quickstrat'", "did you mean quickstart?")


def test_malformed_experiments_are_refused(andrea, current_folder):
    """JSON that is none is named with line and column."""
    (current_folder / "bad.json").write_text('{\n "name": }')
    refused(andrea("run", "bad.json"), "bad.json is not JSON", "line 2, column 10")


def test_the_time_of_the_plugins_is_printed_on_request(andrea, experiment):
    """``--trace-hooks`` ends with a table of plugins, hooks and milliseconds, on standard error."""
    ended = andrea("run", experiment, "--steps", 3, "--trace-hooks", *CPU)

    assert ended.code == 0
    assert ended.out == ""
    assert "us a call" in ended.err
    assert "select_source" in ended.err


# -- going on ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seed", "5"], "seed would change"),
        (["--set", "schedule.peak=1"], "schedule would change"),
        (["--set", "bandit.ucb1.exploration=9"], "plugins would change"),
        (["--plugin", "bandit.uniform"], "plugins would change"),
        (["--plugin", "stop.coherence"], "plugins would change"),
        (["--without", "weight.epoch_penalty"], "plugins, without would change"),
    ],
)
def test_a_resume_under_other_settings_is_refused(andrea, trained, arguments, said):
    """What is not where to stop, what to print or where to compute cannot change; polish and fork are named."""
    before = contents(trained)
    refused(andrea("run", "--resume", "--out", trained, *arguments, *CPU), said, "andrea polish", "--from")

    assert contents(trained) == before


@pytest.mark.parametrize(
    ("arguments", "setting", "said"),
    [
        (["--plugin", "bandit.uniform"], "bandit.ucb1.exploration=2", "bandit.ucb1"),
        (["--without", "weight.size"], "weight.size.exponent=2", "weight.size"),
        (["--without", "log.console"], "log.console.every=2", "log.console"),
    ],
)
def test_a_setting_of_a_plugin_that_is_not_used_is_refused(
    andrea, experiment, current_folder, arguments, setting, said
):
    """It would do nothing: what was left out, or gave way to another of its kind, is named and nothing is written."""
    before = contents(current_folder)
    ended = andrea("run", experiment, *arguments, "--set", setting, *CPU)
    refused(ended, f"--set {setting.partition('=')[0]}: {said} is not used in this run", f"--plugin {said}")

    assert contents(current_folder) == before


def test_a_resume_takes_no_experiment(andrea, trained, experiment):
    """A run that goes on has its own configuration."""
    refused(andrea("run", experiment, "--resume", "--out", trained), "EXPERIMENT tiny.json has no place")


def test_a_resume_may_print_otherwise(andrea, trained):
    """Log plugins may be left out of a resume."""
    ended = andrea("run", "--resume", "--out", trained, "--without", "log.console", "--steps", 22, *CPU)

    assert ended.code == 0, ended.err
    assert "finished" not in ended.err


def test_a_run_that_is_there_says_so(andrea, trained):
    """A resume with nothing left to do exits 0 and changes nothing."""
    before = contents(trained)
    ended = andrea("run", "--resume", "--out", trained, "--steps", 20, *CPU)

    assert ended.code == 0
    assert "already at step 20; --steps is the total" in ended.err
    assert contents(trained) == before


def test_a_bare_resume_takes_the_newest_run(andrea, experiment):
    """Without --out the newest in runs/ goes on; with none there, that is said."""
    refused(andrea("run", "--resume"), "there is no run in runs/", "andrea run --resume --out FOLDER")
    for _ in range(2):
        andrea("run", experiment, "--steps", 2, *CPU)
    ended = andrea("run", "--resume", "--steps", 3, *CPU)

    assert "run: runs/tiny-002" in ended.err
    assert ended.code == 0
    assert complete_steps(Path("runs/tiny-002/checkpoints")) == [2, 3], "one more step is one more"


def test_a_resume_of_nothing_is_refused(andrea, current_folder):
    """A folder that is not there, or holds no run, is named."""
    (current_folder / "empty").mkdir()
    for folder in ("empty", "none"):
        refused(andrea("run", "--resume", "--out", folder), f"{folder} holds no run with a checkpoint")


def test_a_run_without_a_checkpoint_begins_again(andrea, experiment, trained, current_folder):
    """What was killed before its first checkpoint is begun again by a resume, and ends as if never killed."""
    shutil.copytree(trained, current_folder / "early")
    shutil.rmtree(current_folder / "early" / "checkpoints")
    (current_folder / "early" / "checkpoints").mkdir()
    ended = andrea("run", "--resume", "--out", "early", "--steps", 20, *CPU)

    assert ended.code == 0, ended.err
    assert "has no checkpoint yet: the run begins again" in ended.err
    assert contents(current_folder / "early") == contents(trained)


def test_a_resume_passes_over_a_damaged_checkpoint(andrea, trained, current_folder):
    """The damaged one is named, the one before is taken, and the end is the same."""
    shutil.copytree(trained, current_folder / "damaged")
    with (current_folder / "damaged/checkpoints/step_000020.npz").open("r+b") as file:
        file.truncate(100)
    ended = andrea("run", "--resume", "--out", "damaged", "--steps", 20, *CPU)

    assert ended.code == 0, ended.err
    assert "passing over step_000020" in ended.err
    assert contents(current_folder / "damaged") == contents(trained)


def test_a_fork_goes_on_from_a_checkpoint_in_a_folder_of_its_own(andrea, trained, current_folder):
    """With the same settings it is the parent to the last byte of its state; the parent is left alone."""
    before = contents(trained)
    checkpoint = trained / "checkpoints" / "step_000010.json"
    ended = andrea("run", "--from", checkpoint, "--out", "fork", "--steps", 20, *CPU)

    assert ended.code == 0, ended.err
    assert contents(trained) == before
    assert contents(current_folder / "fork") == before


def test_a_fork_may_take_other_settings_but_not_another_model(andrea, trained, current_folder):
    """Bandit and schedule may change; model, sources, seed and tokenizer belong to the weights."""
    source = ("run", "--from", trained / "checkpoints" / "step_000010")
    ended = andrea(
        *source, "--out", "fork", "--plugin", "bandit.uniform", "--set", "schedule.peak=0.1", "--steps", 15, *CPU
    )
    assert ended.code == 0, ended.err
    saved = read_checkpoint(current_folder / "fork/checkpoints/step_000015")
    assert "bandit.uniform" in saved.plugins
    assert saved.record["config"]["schedule"]["peak"] == 0.1

    for setting in ("model.n_layer=2", "seed=4", "sources=[]", "data.held_out_share=0.5"):
        ended = andrea(*source, "--out", "other", "--set", setting, *CPU)
        assert ended.code == 2
    refused(andrea(*source, "--out", "other", "--set", "model.n_layer=2", *CPU), "model cannot change")
    refused(andrea(*source, "--out", "other", "--plugin", "tokenizer.bpe", *CPU), "tokenizer cannot change")
    assert not (current_folder / "other").exists()


def test_a_polish_keeps_what_was_learned_and_forgets_what_the_bandit_thought(andrea, trained):
    """Weights, counts and losses stay, samples and state are archived, plugins start over, limits are new."""
    before = newest_checkpoint(trained / "checkpoints", print)
    losses = json.loads((trained / "tiny.loss.json").read_text())
    samples = (trained / "tiny.samples.json").read_bytes()
    state = (trained / "tiny.state.json").read_bytes()
    limits = ("--plugin", "limit.caps", "--set", 'limit.caps.caps={"one": 0}')
    ended = andrea("polish", trained, *limits, "--steps", 24, *CPU)

    assert ended.code == 0, ended.err
    archive = trained / "archive" / "step_000020"
    assert (archive / "tiny.samples.json").read_bytes() == samples
    assert (archive / "tiny.state.json").read_bytes() == state
    after = newest_checkpoint(trained / "checkpoints", print)
    assert after.step == 24
    now = json.loads((trained / "tiny.loss.json").read_text())
    assert now[:20] == losses
    assert [step for step, _ in now] == list(range(24))
    assert [s["step"] for s in json.loads((trained / "tiny.samples.json").read_text())] == [21, 21]
    assert after.engine["applied_updates"][0] == 24
    assert (np.array(after.data["pulls"]) >= np.array(before.data["pulls"])).all()
    assert sum(after.data["pulls"]) == 24
    assert after.data["pulls"][0] == before.data["pulls"][0], "the source with cap 0 was not drawn"
    played = after.plugins["bandit.ucb1"]
    assert sum(int(np.sum(v)) for k, v in played.items() if k in ("pulls", "counts")) <= 4
    steps = [line for line in read_journal(trained / "journal.jsonl") if line["kind"] == "step"]
    assert [line["step"] for line in steps] == list(range(24))

    again = andrea("run", "--resume", "--out", trained, "--steps", 26, *CPU)
    assert again.code == 0, again.err


def test_a_polish_killed_before_its_first_checkpoint_never_happened(andrea, trained, current_folder, monkeypatch):
    """Until a checkpoint under the new settings is whole, a resume goes on as before, to the same bytes."""
    from andrea.loop import Loop

    shutil.copytree(trained, current_folder / "uncut")
    with monkeypatch.context() as patch:

        def die(self):
            self.close()
            raise SystemExit(99)

        patch.setattr(Loop, "run", die)
        assert andrea("polish", trained, "--set", "schedule.peak=1", "--steps", 30, *CPU).code == 99
    for folder in (trained, current_folder / "uncut"):
        assert andrea("run", "--resume", "--out", folder, "--steps", 30, *CPU).code == 0
    shutil.rmtree(trained / "archive")

    assert contents(trained) == contents(current_folder / "uncut")


def test_a_polish_needs_a_run(andrea, current_folder):
    """Without a checkpoint there is nothing to polish."""
    refused(andrea("polish", current_folder / "none"), "holds no run with a checkpoint")


# -- data that is not what it should be --------------------------------------------------------------------------------


@pytest.fixture
def own_cache(current_folder, monkeypatch):
    """Use a cache of this test alone; return its folder."""
    monkeypatch.setenv("ANDREA_CACHE", str(current_folder / "cache"))
    return current_folder / "cache"


def test_an_empty_source_is_refused(andrea, tiny, write_experiment, current_folder, own_cache):
    """A source without a document is named, before a folder is made."""
    (current_folder / "empty.jsonl").write_text("")
    tiny["sources"][1]["options"]["path"] = "empty.jsonl"
    refused(andrea("run", write_experiment(tiny), *CPU), "two")

    assert not (current_folder / "runs").exists()


def test_a_missing_source_is_refused(andrea, tiny, write_experiment, current_folder):
    """A path that is not there is named."""
    tiny["sources"][1]["options"]["path"] = "no/such.jsonl"
    refused(andrea("run", write_experiment(tiny), *CPU), "no/such.jsonl")


def test_a_source_without_permission_is_refused(andrea, tiny, write_experiment, current_folder, own_cache, monkeypatch):
    """A file that may not be read is named with the system's reason."""
    real = Path.open

    def refuse(path, *arguments, **named):
        if path.suffix == ".jsonl":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **named)

    monkeypatch.setattr(Path, "open", refuse)
    refused(andrea("run", write_experiment(tiny), *CPU), "Permission denied", "one.jsonl")
    assert not (current_folder / "runs").exists()


def test_a_folder_without_permission_is_refused(andrea, experiment, current_folder, monkeypatch):
    """A run's folder that may not be made is named, and another place is suggested."""
    real = Path.mkdir

    def refuse(path, *arguments, **named):
        if path.name == "secret":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **named)

    monkeypatch.setattr(Path, "mkdir", refuse)
    refused(andrea("run", experiment, "--out", "secret", *CPU), "cannot write in secret: Permission denied", "--out")


@pytest.mark.parametrize("part", ["tokens/*.train.btok", "prepared/*.json", "words/*.txt"])
def test_a_cut_part_of_the_cache_is_made_again(andrea, experiment, own_cache, current_folder, part):
    """A truncated file in the cache is refused by who only reads it, and a resume or `prepare` makes it again."""
    assert andrea("run", experiment, "--out", "run", "--steps", 10, *CPU).code == 0
    path = next(own_cache.glob(part))
    content = path.read_bytes()

    for command in (("run", "--resume", "--out", "run", "--steps", 12, *CPU), ("prepare", experiment)):
        path.write_bytes(content[: len(content) // 2])
        refused(andrea("evaluate", "run", *CPU), path.name, "andrea prepare")
        ended = andrea(*command)
        assert ended.code == 0, ended.err
        assert path.read_bytes() == content


def test_a_token_file_of_another_tokenizer_is_made_again(andrea, tiny, write_experiment, own_cache):
    """A .btok that another tokenizer made, put in the place of the right one, is noticed and replaced."""
    bpe = {**tiny, "plugins": {"tokenizer.bpe": {"segments": 20}}}
    assert andrea("prepare", write_experiment(bpe, "bpe.json")).code == 0
    others = {path.name.split(".")[1]: path for path in (own_cache / "tokens").glob("*.btok")}
    assert andrea("prepare", write_experiment(tiny)).code == 0
    own = [p for p in (own_cache / "tokens").glob("*.train.btok") if TokenFile.open(p).vocabulary == 257]
    content = own[0].read_bytes()
    shutil.copy(others["train"], own[0])

    assert andrea("prepare", "tiny.json").code == 0
    assert own[0].read_bytes() == content


def test_data_that_is_gone_is_prepared_again(andrea, trained, own_cache):
    """A resume whose cache was emptied prepares the same data again and goes on."""
    ended = andrea("run", "--resume", "--out", trained, "--steps", 22, *CPU)

    assert ended.code == 0, ended.err
    assert "reading one" in ended.err


def test_data_that_has_changed_is_refused(andrea, tiny, write_experiment, current_folder, own_cache):
    """When cache and sources are both other than they were, a resume is refused; nothing is lost."""
    text = Path(tiny["sources"][0]["options"]["path"]).read_text()
    (current_folder / "own.jsonl").write_text(text)
    tiny["sources"][0]["options"]["path"] = str(current_folder / "own.jsonl")
    assert andrea("run", write_experiment(tiny), "--out", "run", "--steps", 5, *CPU).code == 0
    before = contents(current_folder / "run")
    (current_folder / "own.jsonl").write_text(text + json.dumps({"text": "more of it"}) + "\n")
    shutil.rmtree(own_cache)

    refused(andrea("run", "--resume", "--out", "run", *CPU), "the sources give other data now")
    assert contents(current_folder / "run") == before


# -- using a run -------------------------------------------------------------------------------------------------------


def test_a_model_writes(andrea, trained):
    """Texts begin with the prompt, are as many as asked, are the same for the same seed, and other for another."""
    asked = ("sample", trained, "--prompt", "seed ", "--count", 2, "--tokens", 9, "--json", *CPU)
    first, second, other = (json.loads(andrea(*asked, "--seed", seed).out) for seed in (1, 1, 2))

    assert first["step"] == 20
    assert [s["prompt"] for s in first["samples"]] == ["seed ", "seed "]
    assert first == second
    assert first["samples"] != other["samples"]
    assert first["samples"][0]["text"] != first["samples"][1]["text"]
    assert andrea("sample", trained, "--prompt", "seed ", *CPU).out.startswith("seed ")


def test_a_model_is_measured(andrea, trained):
    """Bits per byte of every source, beside the bigram model when asked; a table or JSON."""
    value = json.loads(andrea("evaluate", trained, "--bigram", "--json", *CPU).out)

    assert list(value) == ["step", "loss", "perplexity", "bits_per_byte", "bigram_bits_per_byte"]
    assert all(list(value[key]) == ["one", "two"] for key in list(value)[1:])
    assert all(0 < bits < 9 for bits in value["bits_per_byte"].values())
    table = andrea("evaluate", trained, "--bigram", *CPU).out
    assert f"{value['bits_per_byte']['one']:.3f}" in table
    assert "bigram" in table


def test_the_evaluation_of_a_run_is_that_of_its_journal(andrea, trained):
    """The same rows of the same checkpoint give the number that the run wrote down, with ``==``."""
    (line,) = (e for e in read_journal(trained / "journal.jsonl") if e["kind"] == "evaluation" and e["step"] == 20)
    value = json.loads(andrea("evaluate", trained, "--rows", 4, "--json", *CPU).out)

    assert value["bits_per_byte"] == line["bits_per_byte"]


def test_a_checkpoint_is_chosen_by_name_or_path(andrea, trained, current_folder):
    """--checkpoint takes a name in the run, or a path, which then says the run; an unknown one lists what exists."""
    path = trained / "checkpoints" / "step_000010.json"
    for arguments in ((trained, "--checkpoint", "step_000010"), ("--checkpoint", path)):
        assert json.loads(andrea("sample", *arguments, "--tokens", 2, "--json", *CPU).out)["step"] == 10
    ended = andrea("sample", trained, "--checkpoint", "step_000011", *CPU)
    refused(ended, "there is no checkpoint step_000011", "step_000010, step_000020")


def test_a_run_without_a_model_is_refused(andrea, current_folder):
    """Who uses a run says so, and speaks of no option that it has not."""
    for command in ("sample", "chat", "evaluate", "export", "polish"):
        for said in (
            (andrea(command), "there is no run in runs/"),
            (andrea(command, "nowhere"), "nowhere holds no run"),
        ):
            refused(*said, "andrea run begins one")
            assert "--out" not in said[0].err
    refused(andrea("sample"), "for one elsewhere: name its folder, as in andrea sample FOLDER")
    refused(andrea("polish"), "for one elsewhere: andrea polish FOLDER")


def test_a_tokenizer_that_is_not_the_models_is_refused(andrea, trained, own_cache, write_experiment, tiny):
    """A run's tokenizer folder that is gone or was exchanged is noticed before a word is written."""
    (trained / "tokenizer" / "byte_tokenizer.json").write_text("{}")
    refused(andrea("sample", trained, *CPU), "byte_tokenizer.json")
    shutil.rmtree(trained / "tokenizer")
    refused(andrea("sample", trained, *CPU), "tokenizer")


def test_everything_can_be_inspected(andrea, trained, own_cache, current_folder):
    """A run, a checkpoint, its tokenizer and a token file, as lines and as JSON."""
    assert json.loads(andrea("inspect", trained, "--json").out)["checkpoints"] == [10, 20]
    checkpoint = json.loads(andrea("inspect", trained / "checkpoints/step_000010.bin", "--json").out)
    assert checkpoint["step"] == 10
    assert checkpoint["engine"]["weights"] == [checkpoint["parameters"]]
    tokenizer = json.loads(andrea("inspect", trained / "tokenizer", "--json").out)
    assert (tokenizer["plugin"], tokenizer["ids"]) == ("tokenizer.byte", 257)
    assert andrea("prepare", "tiny.json").code == 0
    path = next((own_cache / "tokens").glob("*.btok"))
    tokens = json.loads(andrea("inspect", path, "--json").out)
    assert tokens["tokenizer"] == tokenizer["fingerprint"]
    assert "step" in andrea("inspect", trained).out


@pytest.mark.parametrize("path", ["nowhere", "tiny.json", ".", "step_000001.json", "x.btok"])
def test_what_is_nothing_of_ours_cannot_be_inspected(andrea, experiment, path):
    """A path that is not there, or is something else, is refused with what would do."""
    refused(andrea("inspect", path))


def test_the_doctor_says_what_this_machine_can_do(andrea, experiment, tiny, write_experiment):
    """Versions, cards, cache and problems; an experiment that would not start exits 2, as JSON too."""
    value = json.loads(andrea("doctor", experiment, "--json").out)
    assert value["problems"] == []
    assert {"andrea", "python", "system", "cards", "cuda", "cache"} <= set(value)
    assert "python" in andrea("doctor").out

    tiny["plugins"]["bandit.ucb1"] = {"explore": 1}
    for arguments in (["--json"], []):
        ended = andrea("doctor", write_experiment(tiny, "sick.json"), *arguments)
        assert ended.code == 2
        assert "exploration" in ended.out


WRONG = [
    ("weight.size", "exponent=9", "weight.size.exponent is 9.0"),
    ("limit.floors", 'floors={"on": 0.1}', "limit.floors.floors names on, no source of this run"),
    ("bandit.exp3s", "window=0", "bandit.exp3s has exploration 0.1, mixing 0.001 and window 0"),
]


@pytest.mark.parametrize(("plugin", "setting", "said"), WRONG)
def test_wrong_options_are_said_before_anything_is_read(
    andrea, experiment, tiny, write_experiment, plugin, setting, said
):
    """Values out of range and names of no source: a run, a preparation and the doctor refuse them alike."""
    options = ("--plugin", plugin, "--set", f"{plugin}.{setting}")
    for command in (("run", *CPU), ("prepare",), ("prepare", "--dry-run")):
        ended = andrea(command[0], experiment, *command[1:], *options)
        refused(ended, said)
        assert "reading" not in ended.err
    name, _, value = setting.partition("=")
    tiny["plugins"] = {"tokenizer.byte": {}, plugin: {name: json.loads(value)}}
    assert said in andrea("doctor", write_experiment(tiny, "sick.json")).out


def test_prepare_says_what_there_is(andrea, experiment):
    """A table of sources, or JSON with the digest of all data, the same every time."""
    assert "bytes a token" in andrea("prepare", experiment).out
    first, second = (json.loads(andrea("prepare", experiment, "--json").out) for _ in range(2))

    assert first == second
    assert [source["source"] for source in first["sources"]] == ["one", "two"]


# -- what a damaged model and a foreign folder must not do -------------------------------------------------------------


def test_a_run_whose_numbers_are_lost_is_ended_by_its_stop(andrea, experiment):
    """A rate that ruins the weights ends the run by stop.not_finite, not by a sample that cannot be drawn."""
    ended = andrea("run", experiment, "--set=schedule.peak=1e30", "--set=schedule.warmup_steps=0", "--out", "ruined")

    assert ended.code in (2, 3)
    assert "Traceback" not in ended.err


def test_a_folder_with_other_files_is_left_alone(andrea, experiment, current_folder):
    """A run does not move into a folder that holds something else, nor into a file."""
    (current_folder / "mine").mkdir()
    (current_folder / "mine" / "letter.txt").write_text("dear")
    foreign = andrea("run", experiment, "--out", "mine")
    file = andrea("run", experiment, "--out", "mine/letter.txt")

    assert foreign.code == file.code == 2
    assert "letter.txt" in foreign.err
    assert "is a file" in file.err
    assert [path.name for path in (current_folder / "mine").iterdir()] == ["letter.txt"]


def test_an_error_stands_alone(andrea, experiment):
    """A note about the device does not stand before an error."""
    assert andrea("run", experiment, "--set=modle.n_layer=2").err.startswith("error:")
