"""sampler.dice: phases, focus sets, and when they are latched."""

from __future__ import annotations

import numpy as np
import pytest

from andrea import AndreaError
from andrea.plugin import get_state
from andrea.plugins.sampler.dice import Dice

SOURCES = tuple("abcdefghij")
# The seeds are fixed, so a test here gives the same number always; a right sampler passes with 999 of 1000 seeds.
LIKELY = 1e-3


@pytest.fixture
def make_dice(make_run):
    def make(**options):
        dice = Dice(**options)
        dice.on_start(run=make_run(SOURCES))
        return dice

    return make


@pytest.fixture
def ask(make_run, make_limits):
    def select(dice, step, scores=None, weights=None, seed=1, pull=0, **limits):
        return dice.select_source(
            step=step,
            pull=pull,
            scores=np.arange(10.0) if scores is None else np.array(scores, dtype=float),
            weights=np.ones(10) if weights is None else np.array(weights, dtype=float),
            limits=make_limits(10, **limits),
            run=make_run(SOURCES, seed=seed),
        )

    return select


@pytest.fixture
def play(ask, make_record, make_pull):
    """Return a function that makes one step and returns the choice."""

    def step_once(dice, step, **arguments):
        choice = ask(dice, step, **arguments)
        dice.on_step(record=make_record(step, make_pull(choice.source, detail=choice.detail)))
        return choice

    return step_once


def rolled(ask, make_dice, **arguments):
    """Return the first phases of 300 seeds."""
    return [ask(make_dice(), 0, seed=seed, **arguments).detail for seed in range(300)]


def test_dice_are_fair(ask, make_dice, chi_square_tail):
    """Over 300 seeds, the five lengths, the three and the four faces come up as often as they should."""
    phases = rolled(ask, make_dice)
    focus = np.bincount([len(phase["focus"]) for phase in phases], minlength=4)[1:]
    assert chi_square_tail(focus, [1, 1, 1]) > LIKELY
    for key, faces in (("joined", [1, 2, 3, 4]), ("length", [7, 14, 21, 28, 42])):
        seen = [phase[key] if key == "length" else len(phase[key]) for phase in phases]
        assert sorted(set(seen)) == faces
        counts = np.array([seen.count(face) for face in faces])
        # Binomial with 300 draws: 4 standard deviations.
        chance = 1 / len(faces)
        assert (abs(counts - 300 * chance) < 4 * np.sqrt(300 * chance * (1 - chance))).all()


def test_focus_is_the_top_of_the_ranking_and_the_others_join_at_random(ask, make_dice):
    """Focus sources are the best by score x weight; joined ones are others, and over seeds any other may join."""
    weights = np.ones(10)
    weights[9] = 0.5  # 9 x 0.5 ranks behind 8, 7, 6, 5
    phases = rolled(ask, make_dice, weights=weights)
    assert all(phase["focus"] == [8, 7, 6][: len(phase["focus"])] for phase in phases)
    assert not any(set(phase["focus"]) & set(phase["joined"]) for phase in phases)
    assert set().union(*(phase["joined"] for phase in phases)) == set(range(10)) - {8}


def test_untried_sources_rank_first_in_random_order(ask, make_dice):
    """Score inf beats every number; equals are shuffled by the seed."""
    scores = np.arange(10.0)
    scores[[1, 2, 3]] = np.inf
    phases = rolled(ask, make_dice, scores=scores)
    assert all(set(phase["focus"]) <= {1, 2, 3} for phase in phases)
    assert {phase["focus"][0] for phase in phases} == {1, 2, 3}


def test_masked_and_capped_sources_are_in_no_phase(ask, make_dice):
    """Weight 0 or cap 0 keeps a source out of focus and of the joined ones; few sources shorten both sets."""
    weights = np.zeros(10)
    weights[[2, 4, 9]] = 1
    cap = np.full(10, np.inf)
    cap[9] = 0
    for phase in rolled(ask, make_dice, weights=weights, cap=cap):
        assert phase["focus"] + phase["joined"] == [4, 2]


def test_shares_within_a_phase(ask, make_dice, chi_square_tail, make_record, make_pull):
    """Focus 1.0, joined 0.5, others 0, then the floor: a floored source outside the phase is drawn, a masked never."""
    dice = make_dice(lengths=[10_000])
    detail = {"start": 0, "length": 10_000, "focus": [9], "joined": [3]}
    dice.on_step(record=make_record(0, make_pull(9, detail=detail)))
    weights = np.ones(10)
    weights[6] = 0
    floor = np.zeros(10)
    floor[[0, 6]] = 0.8
    counts = np.bincount([ask(dice, step, weights=weights, floor=floor).source for step in range(3000)], minlength=10)
    shares = np.zeros(10)
    shares[[9, 3, 0]] = 1.0, 0.5, 0.8
    assert chi_square_tail(counts, shares) > LIKELY


def test_phase_holds_for_its_length_and_then_a_new_one_starts(play, make_dice):
    """Phases follow each other without gap or overlap, whatever the scores do meanwhile."""
    dice = make_dice()
    details = [play(dice, step, scores=np.roll(np.arange(10.0), step)).detail for step in range(200)]
    starts = [step for step, detail in enumerate(details) if detail["start"] == step]
    assert len(starts) > 4
    for start, following in zip(starts, [*starts[1:], None], strict=True):
        members = details[start]
        end = start + members["length"]
        assert following in (end, None)
        for detail in details[start:end]:
            assert [detail[key] for key in ("start", "length", "focus", "joined")] == [
                members[key] for key in ("start", "length", "focus", "joined")
            ]


def test_phases_do_not_take_turns_where_steps_are_chosen_ahead(ask, make_dice, make_record, make_pull):
    """A step is chosen before the last one is learned from: a phase is rolled twice then, and the later holds."""
    dice = make_dice(lengths=[20])
    starts, choice = [], ask(dice, 0)
    for step in range(60):
        chosen, choice = choice, ask(dice, step + 1)
        dice.on_step(record=make_record(step, make_pull(chosen.source, detail=chosen.detail)))
        starts.append(chosen.detail["start"])
    assert starts == [0, 1, 0, *[1] * 18, 21, 22, 21, *[22] * 18, 42, 43, 42, *[43] * 15]


def test_choosing_latches_nothing(ask, make_dice):
    """Asking twice answers the same and changes no state; without on_step the next step rolls its own phase."""
    dice = make_dice()
    before = get_state(dice)
    assert ask(dice, 0) == ask(dice, 0)
    assert get_state(dice) == before
    assert ask(dice, 1).detail["start"] == 1


def test_phase_whose_sources_are_masked_ends_at_once(play, ask, make_dice):
    """When weights drop all of a phase, the next step starts a phase of what is left."""
    dice = make_dice(lengths=[1000])
    detail = play(dice, 0).detail
    weights = np.ones(10)
    weights[detail["focus"] + detail["joined"]] = 0
    choice = ask(dice, 1, weights=weights)
    assert choice.detail["start"] == 1
    assert weights[choice.source] == 1


def test_mixed_step_draws_its_pulls_from_one_phase(ask, make_dice):
    """All pulls of the step that starts a phase see the same phase but draw for themselves."""
    choices = [ask(make_dice(), 0, pull=pull, seed=3) for pull in range(30)]
    assert len({repr(choice.detail["focus"] + choice.detail["joined"]) for choice in choices}) == 1
    assert len({choice.source for choice in choices}) > 1


def test_nothing_left_is_an_error(ask, make_dice):
    """With all weights 0 there is no honest answer."""
    with pytest.raises(ValueError, match="no source has a share left"):
        ask(make_dice(), 0, weights=np.zeros(10))


@pytest.mark.parametrize("lengths", [[], [7, 0]])
def test_lengths_without_steps_are_refused(make_dice, lengths):
    """A phase lasts at least one step."""
    with pytest.raises(AndreaError, match="without steps"):
        make_dice(lengths=lengths)


def test_resume_at_every_step_equals_the_uncut_run(play, make_dice, assert_resumes):
    """Choices after a restored state are those of the run that was never cut, across phase boundaries."""

    def step_once(dice, step):
        choice = play(dice, step, scores=np.cos(np.arange(10.0) * step) + 1)
        return choice.source, dict(choice.detail)

    assert_resumes(lambda: make_dice(lengths=[2, 3, 5]), step_once, steps=30)
