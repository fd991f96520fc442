"""The bandits whose shares nothing learns: by size, UniMax, fixed weights, replay."""

from __future__ import annotations

import json

import numpy as np
import pytest

from andrea import AndreaError
from andrea.plugin import get_state, set_state
from andrea.plugins.bandit.fixed import Fixed
from andrea.plugins.bandit.proportional import Proportional
from andrea.plugins.bandit.replay import Replay
from andrea.plugins.bandit.unimax import UniMax
from andrea.testing import run_steps

# -- by size -----------------------------------------------------------------------------------------------------------


def test_size_is_tokens_or_documents(make_run):
    """Shares are the sources' parts of all tokens, or of all documents."""
    run = make_run(tokens=np.array([10, 20, 30, 40]), documents=np.array([5, 5, 5, 1]))
    assert Proportional().score_sources(run=run) == pytest.approx([0.1, 0.2, 0.3, 0.4], rel=1e-15)  # two roundings
    assert Proportional(by="documents").score_sources(run=run) == pytest.approx([5 / 16] * 3 + [1 / 16], rel=1e-15)


def test_exponent_tempers_the_mix(make_run):
    """Sizes 1 and 16: with 0 both have half, with 0.5 the shares are 1/5 and 4/5."""
    run = make_run(("a", "b"), tokens=np.array([1, 16]))
    assert Proportional(exponent=0.0).score_sources(run=run).tolist() == [0.5, 0.5]
    assert Proportional(exponent=0.5).score_sources(run=run).tolist() == [0.2, 0.8]


@pytest.mark.parametrize("options", [{"by": "bytes"}, {"exponent": -1.0}])
def test_what_is_no_size_is_refused(options):
    """The error names the option."""
    with pytest.raises(AndreaError, match=f"bandit.proportional.{next(iter(options))}"):
        Proportional(**options)


# -- UniMax ------------------------------------------------------------------------------------------------------------


def test_unimax_caps_the_small_and_gives_the_rest_evenly(make_run):
    """1,000 steps of 4 x 16 are 64,000 tokens; a of 1,000 tokens takes 2 epochs, the others share 62,000."""
    run = make_run(tokens=np.array([1_000, 90_000, 80_000, 70_000]))
    shares = UniMax(epochs=2.0).score_sources(run=run)
    third = 62_000 / 3 / 64_000
    assert shares == pytest.approx([2_000 / 64_000, third, third, third], rel=1e-14)  # sums of rounded quotients


def test_unimax_passes_on_what_a_middle_source_cannot_take(make_run):
    """Caps of 2,000 and 10,000 leave 52,000 to two sources, of which one holds only 20,000: the last has 32,000."""
    run = make_run(tokens=np.array([1_000, 90_000, 10_000, 5_000]))
    shares = UniMax(epochs=2.0).score_sources(run=run)
    assert (shares * 64_000).tolist() == pytest.approx([2_000, 32_000, 20_000, 10_000], rel=1e-14)  # as above


def test_unimax_is_uniform_while_no_cap_binds(make_run):
    """Every source large enough for a quarter of the budget has a quarter."""
    assert UniMax().score_sources(run=make_run()).tolist() == [0.25] * 4


def test_unimax_is_the_size_where_every_cap_binds(make_run):
    """A budget beyond all caps leaves each source its epochs, so shares are those of the sizes."""
    run = make_run(tokens=np.array([100, 200, 300, 400]))
    assert UniMax(epochs=1.0).score_sources(run=run) == pytest.approx([0.1, 0.2, 0.3, 0.4], rel=1e-15)


def test_unimax_without_epochs_is_refused():
    """A cap of 0 leaves nothing to draw."""
    with pytest.raises(AndreaError, match=r"bandit\.unimax\.epochs is 0"):
        UniMax(epochs=0.0)


# -- fixed weights -----------------------------------------------------------------------------------------------------


def test_fixed_weights_become_shares(make_run):
    """Weights 3 and 1 are shares of 3/4 and 1/4; a source that is not named has none."""
    bandit = Fixed(weights={"d": 3.0, "b": 1.0})
    assert bandit.score_sources(run=make_run()).tolist() == [0.0, 0.25, 0.0, 0.75]


@pytest.mark.parametrize("weights", [{}, {"a": 0.0}, {"a": -1.0}])
def test_weights_that_leave_nothing_are_refused(weights):
    """No weight above 0, and negative ones."""
    with pytest.raises(AndreaError, match=r"bandit\.fixed\.weights is "):
        Fixed(weights=weights)


# -- replay ------------------------------------------------------------------------------------------------------------

SCHEDULE = [["a", "b"], ["a", "a"], ["c", "b"]]


@pytest.fixture
def journal(tmp_path):
    """Return the path of a journal of three steps of two pulls, cut within a fourth."""
    lines = [{"kind": "step", "pulls": [{"source": name} for name in step]} for step in SCHEDULE]
    text = "".join(json.dumps(line) + "\n" for line in [lines[0], {"kind": "sample"}, *lines[1:]])
    (tmp_path / "journal.jsonl").write_text(text + '{"kind": "st')
    return tmp_path / "journal.jsonl"


@pytest.fixture
def make_replay(journal, make_run):
    def make(order):
        bandit = Replay(path=str(journal), order=order)
        bandit.on_start(run=make_run())
        return bandit

    return make


def test_average_is_the_mix_of_the_whole_run(make_replay, make_run):
    """Six pulls, three of a, two of b, one of c: the same at every step."""
    bandit = make_replay("average")
    for step in (0, 2, 99):
        assert bandit.score_sources(step=step, run=make_run()).tolist() == [3 / 6, 2 / 6, 1 / 6, 0.0]


def test_same_and_reversed_go_through_the_schedule(make_replay, make_run):
    """Step by step, the second time again from the beginning; reversed from the end."""
    shares = [[0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0]]
    run = make_run()
    assert [make_replay("same").score_sources(step=t, run=run).tolist() for t in range(6)] == shares * 2
    assert [make_replay("reversed").score_sources(step=t, run=run).tolist() for t in range(6)] == shares[::-1] * 2


def test_a_folder_is_as_good_as_its_journal(journal, make_run):
    """The path may be that of the run."""
    bandit = Replay(path=str(journal.parent))
    bandit.on_start(run=make_run())
    assert bandit.choices.tolist() == [[0, 1], [0, 0], [2, 1]]


def test_resume_goes_on_with_what_was_read(make_replay, make_run, journal):
    """The other run has gone on in between: the state keeps the schedule of the start."""
    saved = get_state(make_replay("same"))
    journal.write_text(json.dumps({"kind": "step", "pulls": [{"source": "d"}]}) + "\n")
    resumed = make_replay("same")
    set_state(resumed, saved, "bandit.replay")
    assert resumed.score_sources(step=1, run=make_run()).tolist() == [1.0, 0.0, 0.0, 0.0]


def test_a_reversed_run_draws_the_schedule_backwards(tmp_path):
    """With one pull a step and the proportional sampler, the choices are those of the other run, from the end."""
    first = run_steps(["bandit.ucb1", "sampler.argmax"], 30, folder=tmp_path)
    chosen = [record.pulls[0].source for record in first.records]
    again = run_steps({"bandit.replay": {"path": str(tmp_path), "order": "reversed"}}, 30, seed=5)
    assert len(set(chosen)) > 1
    assert [record.pulls[0].source for record in again.records] == chosen[::-1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "gives .*journal.jsonl: there is no schedule"),
        ("", "a journal without steps"),
        ("text\n", "which is no journal"),
        ("[1]\n", "which is no journal"),
        ('{"kind": "step", "pulls": [{"source": "z"}]}\n', "has drawn z"),
    ],
)
def test_what_cannot_be_replayed_is_refused(tmp_path, make_run, text, said):
    """No file, no steps, no journal, other sources."""
    path = tmp_path / "journal.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(AndreaError, match=said):
        Replay(path=str(path)).on_start(run=make_run())


def test_a_replay_needs_a_path_and_an_order_that_exists(journal):
    """The errors name the option."""
    with pytest.raises(AndreaError, match=r"bandit\.replay\.path"):
        Replay()
    with pytest.raises(AndreaError, match=r"bandit\.replay\.order is 'random'"):
        Replay(path=str(journal), order="random")
