"""What is outside the range of human text: bounds worked by hand, and to which source a text belongs."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import frozen

from andrea.plugins.stop.human_ranges import LEAST_WINDOWS, RULES, attribute, human_ranges, judge
from andrea.rng import Draws

NAMES = ("a", "b")


@frozen(eq=False)
class Told:
    """Human text of which a test says everything: (hits, trials) of windows and texts, and ln P of texts."""

    held_out: tuple
    documents: tuple
    texts: dict
    likely: dict
    measures: tuple = ("words", "copied")

    def measure(self, texts):
        return np.array([self.texts[text] for text in texts])

    def log_likelihood(self, texts):
        return np.array([self.likely[text] for text in texts], dtype=np.float64)


def tell(windows, text, documents=10**9, measures=("words", "copied")):
    """Return what is known of one source's windows and one text "x", each [(hits, trials), ...] over the measures."""
    return Told((np.array(windows),), (documents,), {"x": [text]}, {"x": [0.0]}, measures)


def uniform():
    return Draws(0, "stop.human_range").uniform


def outside(human, texts=("x",)):
    return judge(human, NAMES, texts, uniform()).outside


def test_margins_and_what_is_added_by_hand():
    """Human batches of two texts all have 20 words in 100 characters, so the bounds are 0.2 and its margins."""
    human = tell([[(10, 50), (0, 9)]] * 16, [(3, 60), (0, 0)])
    found = judge(human, NAMES, ("x", "x"), uniform()).found
    assert list(found) == ["words"]  # no run is long enough to be copied
    # (6 + 10) / (120 + 50) of 50 more characters with the human share; 0.2 - 0.2 x 0.2; 1 - 0.8 x 0.8
    assert found["words"] == pytest.approx((16 / 170, 0.16, 0.36), rel=1e-12)  # of rounding
    assert outside(human, ("x", "x")) == ["words 0.094 below 0.160"]


def test_few_documents_stretch_the_range_by_hand():
    """Two texts of a source with 8 documents: 1 + sqrt(2^2 / 8 / 2) = 1.5 times as far from the median."""
    windows = [[(hits, 100)] for hits in (25, 50, 50, 75)] * 4
    many = human_ranges(tell(windows, [], measures=("words",)), np.array([0, 0]), uniform())
    # of two windows each the outermost have 50 and 150 of 200, with 25 of 50 added: 0.3 and 0.7 about 0.5
    assert many.prior.tolist() == [[25.0, 50.0]]
    assert many.low == pytest.approx([0.8 * 0.3], rel=1e-4)  # a billion documents still stretch by 4e-5
    assert many.high == pytest.approx([1 - 0.8 * 0.3], rel=1e-4)
    few = human_ranges(tell(windows, [], documents=8, measures=("words",)), np.array([0, 0]), uniform())
    assert few.low == pytest.approx([0.8 * 0.2], rel=1e-12)  # of rounding
    assert few.high == pytest.approx([1 - 0.8 * 0.2], rel=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_a_measure_is_judged_on_its_sides(name):
    """Too much and too little of it is outside exactly where its rule has a bound."""
    measures = (name, "copied") if name != "copied" else ("copied", "words")
    windows = [[(50, 100), (0, 0)]] * 16
    too_little, too_much = (outside(tell(windows, [(hits, 400), (0, 0)], measures=measures)) for hits in (0, 400))
    assert [reason.split()[2] for reason in too_little] == ["below"] * RULES[name].low
    assert [reason.split()[2] for reason in too_much] == ["above"] * RULES[name].high
    assert outside(tell(windows, [(200, 400), (0, 0)], measures=measures)) == []


def test_texts_are_compared_with_windows_of_their_own_sources():
    """Lists may be what prose must not: the same text is inside as one, outside as the other."""
    prose, lists = np.array([[(20, 100), (0, 9)]] * 16), np.array([[(60, 100), (0, 9)]] * 16)
    counts = [[(60, 100), (0, 9)]] * 2
    human = Told((prose, lists), (99, 99), dict.fromkeys("pl", counts), {"p": (0.0, -50.0), "l": (-50.0, 0.0)})
    assert outside(human, ["l"] * 8) == []
    assert outside(human, ["p"] * 8) == ["words 0.576 above 0.360"]  # (8 x 60 + 10) / (8 x 100 + 50)
    assert judge(human, NAMES, ["p", "l", "l"], uniform()).sources == {"a": 1, "b": 2}


def test_what_is_copied_is_copied_from_any_source():
    """A text most like one source may be another's, word for word."""
    windows = np.array([[(20, 100), (0, 20)]] * 16)
    text = [[(20, 100), (0, 20)], [(20, 100), (20, 20)]]
    human = Told((windows, windows), (99, 99), {"x": text}, {"x": (0.0, -50.0)})
    assert outside(human, ["x"] * 8) == ["copied 1.000 above 0.600"]  # nothing is added; 0 and the margin of copies


def test_a_source_with_few_windows_takes_those_of_all():
    """And where all have few together, nothing is outside."""
    few = [[(20, 100), (0, 9)]] * (LEAST_WINDOWS - 1)
    assert outside(tell(few, [(0, 100), (9, 9)])) == []
    sources = (np.array(few), np.array([[(80, 100), (0, 9)]] * 45))
    human = Told(sources, (99, 99), {"x": [[(80, 100), (0, 9)]] * 2}, {"x": (0.0, -50.0)})
    assert outside(human, ["x"] * 8) == []
    assert outside(Told((*sources[:1], sources[0]), (99, 99), human.texts, human.likely), ["x"] * 8) != []


def test_nothing_written_is_outside():
    """White space says nothing."""
    human = tell([[(10, 50), (0, 9)]] * 16, [(0, 0), (0, 0)])
    assert outside(human, ("", " \n")) == ["nothing was written"]


def test_clear_texts_decide_unclear_ones():
    """The last text alone would go to the second source; among texts of the first it goes there."""
    clear, unclear = [0.0, -50.0], [-1.0, -0.9]
    assert attribute(np.array([unclear])).tolist() == [1]
    assert attribute(np.array([clear, clear, unclear])).tolist() == [0, 0, 0]


def test_no_source_is_ruled_out():
    """One clear text of another source stays there, however many there are of the first."""
    assert attribute(np.array([[0.0, -50.0]] * 200 + [[-50.0, 0.0]])).tolist() == [0] * 200 + [1]
