"""bandit.odm against numbers worked by hand."""

from __future__ import annotations

import math

import pytest

from andrea import AndreaError
from andrea.plugins.bandit.odm import ODM, _exploration


@pytest.fixture
def make_bandit(make_run):
    def make(**options):
        bandit = ODM(**{"warmup_share": 0.0, **options})
        bandit.on_start(run=make_run())
        return bandit

    return make


def test_exploration_is_the_published_floor():
    """With 22 sources the forced share K e_t is 18% at step 2,000 and 2.6% at 100,000; at first it is everything."""
    assert 22 * _exploration(22, 2000) == pytest.approx(0.184, abs=0.001)  # the published figures have three digits
    assert 22 * _exploration(22, 100_000) == pytest.approx(0.026, abs=0.0005)
    assert _exploration(4, 1) == 0.25


def test_code_samples_by_smoothed_perplexity(make_bandit, make_run, make_record, make_pull):
    """R moves a tenth of the way to exp(loss), shares are linear in R, and every source keeps e_t."""
    bandit = make_bandit()
    bandit.on_step(record=make_record(0, make_pull(0, 2.0), make_pull(1, 1.0)))
    bandit.on_step(record=make_record(1, make_pull(0, 1.5)))
    first, second = 0.9 * 0.1 * math.exp(2.0) + 0.1 * math.exp(1.5), 0.1 * math.exp(1.0)
    floor = math.sqrt(math.log(4) / (4 * 500))
    part = (1 - 4 * floor) / (first + second)
    expected = [part * first + floor, part * second + floor, floor, floor]
    # Products and sums in another order than the hand's: a few units in the last place.
    assert bandit.score_sources(step=499, run=make_run()) == pytest.approx(expected, rel=1e-14)


def test_paper_divides_by_the_probability_of_the_draw(make_bandit, make_run, make_record, make_pull):
    """R = 0.1 loss / q, and the shares are a softmax of e_{t-1} R, on top of e_t."""
    bandit = make_bandit(rule="paper")
    bandit.on_step(record=make_record(0, make_pull(2, 3.0, detail={"share": 0.01})))
    before, floor = math.sqrt(math.log(4) / (4 * 499)), math.sqrt(math.log(4) / (4 * 500))
    power = math.exp(before * 0.1 * 3.0 / 0.01)
    expected = [(1 - 4 * floor) * p / (power + 3) + floor for p in (1, 1, power, 1)]
    assert bandit.score_sources(step=499, run=make_run()) == pytest.approx(expected, rel=1e-13)  # an exponential more


def test_pulls_of_one_source_in_a_step_count_by_their_mean(make_bandit, make_record, make_pull):
    """Two pulls of a step move the value once, to the mean of what each would say."""
    bandit = make_bandit()
    bandit.on_step(record=make_record(0, make_pull(3, 1.0), make_pull(3, 2.0)))
    assert bandit.values[3] == pytest.approx(0.1 * (math.exp(1.0) + math.exp(2.0)) / 2, rel=1e-15)  # two roundings


def test_begins_uniform_for_its_share_of_the_schedule(make_bandit, make_run, make_record, make_pull):
    """2% of 1,000 steps: uniform at step 19, learned at step 20, though it has learned all along."""
    bandit = make_bandit(warmup_share=0.02)
    bandit.on_step(record=make_record(0, make_pull(0, 9.0)))
    assert bandit.score_sources(step=19, run=make_run()).tolist() == [0.25] * 4
    assert bandit.score_sources(step=20, run=make_run())[0] > 0.5


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_teaches_nothing(make_bandit, make_record, make_pull, loss):
    """Neither does a skipped update, and a huge loss stays finite."""
    bandit = make_bandit()
    bandit.on_step(record=make_record(0, make_pull(0, loss)))
    bandit.on_step(record=make_record(1, make_pull(1, 2.0), skipped=True))
    assert bandit.values.tolist() == [0.0] * 4
    bandit.on_step(record=make_record(2, make_pull(2, 1e30)))
    assert math.isfinite(bandit.values[2])


@pytest.mark.parametrize("options", [{"rule": "book"}, {"smoothing": 1.0}, {"warmup_share": 2.0}])
def test_wrong_options_are_refused(options):
    """The error names the option and what it is."""
    with pytest.raises(AndreaError, match=f"{next(iter(options))}.*{next(iter(options.values()))}"):
        ODM(**options)


@pytest.mark.parametrize("rule", ["code", "paper"])
def test_resume_at_every_step_equals_the_uncut_run(make_bandit, make_run, make_record, make_pull, assert_resumes, rule):
    """Scores after a restored state are those of the run that was never cut, bit for bit."""

    def play(bandit, step):
        bandit.on_step(record=make_record(step, make_pull(step * step % 4, 3 * math.exp(-step / 9))))
        return bandit.score_sources(step=step + 1, run=make_run()).tolist()

    assert_resumes(lambda: make_bandit(rule=rule), play, steps=15)
