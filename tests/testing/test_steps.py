"""A few steps without data: what a plugin's author can ask, and what comes back."""

from __future__ import annotations

import numpy as np
import pytest

from andrea import AndreaError, hookimpl
from andrea.checkpoint import newest_checkpoint
from andrea.journal import read_journal
from andrea.testing import SOURCES, run_steps


def choices(history):
    return [pull.source for record in history.records for pull in record.pulls]


def test_steps_need_nothing_but_a_name():
    """Names are enough: what a run cannot do without is added, and the run has its length."""
    history = run_steps(["weight.epoch_penalty"], 30)
    assert [record.step for record in history.records] == list(range(30))
    assert history.reasons == {"stop.steps": "30 steps are done"}
    assert set(choices(history)) == set(range(len(SOURCES)))
    assert [sample.step for sample in history.samples] == [5, 10, 15, 20, 25, 30]
    assert [evaluation.step for evaluation in history.evaluations] == [7, 14, 21, 28]
    assert set(history.plugins) >= {"bandit.uniform", "sampler.proportional", "reward.ema_drop"}


def test_the_seed_decides():
    """The same seed gives the same choices, another one others."""
    first, again, other = (choices(run_steps(["bandit.ucb1", "sampler.dice"], 30, seed=s)) for s in (1, 1, 2))
    assert first == again != other


def test_options_reach_plugins_and_settings_the_configuration():
    """Options by plugin name, keys of the configuration by their dotted name."""
    history = run_steps(
        {"bandit.ucb1": {"exploration": 0.25}}, 4, settings={"batch.pulls_per_step": 2, "sampling.sample_every": 0}
    )
    assert history.plugins["bandit.ucb1"].exploration == 0.25
    assert [len(record.pulls) for record in history.records] == [2] * 4
    assert history.samples == []


def test_an_object_needs_no_installation():
    """A plugin that is being written is given as an object under its future name."""

    class First:
        @hookimpl
        def score_sources(self, run):
            return np.eye(len(run.sources))[0]

    assert set(choices(run_steps([("bandit.first", First()), "sampler.argmax"], 8))) == {0}


def test_sources_can_be_given_as_texts():
    """The last text of each is held out, the others are documents."""
    texts = {"one": ["aaa", "bbb", "ccc"], "two": ["dd", "ee"]}
    history = run_steps([], 6, sources=texts)
    assert set(history.evaluations[0].loss if history.evaluations else texts) == {"one", "two"}
    assert {d for r in history.records for p in r.pulls if p.source == 1 for d in p.documents} == {0}


def test_a_folder_gets_journal_and_checkpoint(tmp_path):
    """With a folder the run is a run like any other."""
    run_steps(["bandit.ucb1"], 12, folder=tmp_path, settings={"checkpoints.every": 5})
    assert newest_checkpoint(tmp_path / "checkpoints", say=pytest.fail).step == 12
    assert [line["step"] for line in read_journal(tmp_path / "journal.jsonl") if line["kind"] == "step"] == [*range(12)]


def test_a_plugin_can_stop_the_run_before():
    """Its reason is in the history under its name."""
    assert run_steps({"stop.max_steps": {"steps": 3}}, 10).reasons == {"stop.max_steps": "3 steps are done"}


@pytest.mark.parametrize(
    ("plugins", "settings", "words"),
    [
        (["bandit.ucb"], {}, "no plugin bandit.ucb"),
        (["bandit.ucb1", "bandit.uniform"], {}, "exclude each other"),
        ({"bandit.ucb1": {"explore": 1}}, {}, "no option 'explore'"),
        ([], {"batch.size": 3}, "unknown key 'size'"),
    ],
)
def test_mistakes_are_told_as_in_a_run(plugins, settings, words):
    """They are the same errors."""
    with pytest.raises(AndreaError, match=words):
        run_steps(plugins, 3, settings=settings)
