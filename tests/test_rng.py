"""The draws: an independent Philox, golden values, and the distributions that are mapped from its words."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from statistics import NormalDist

import numpy as np
import pytest

from andrea.rng import AT_ONCE, Draws

MASK = 2**64 - 1


def philox_block(counter, key):
    """Return four words of Philox-4x64 with ten rounds, written down from the paper in plain integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        low, high = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
        c = [high >> 64 ^ c[1] ^ k[0], high & MASK, low >> 64 ^ c[3] ^ k[1], low & MASK]
        k = [(k[0] + 0x9E3779B97F4A7C15) & MASK, (k[1] + 0xBB67AE8584CAA73B) & MASK]
    return c


def philox_words(seed, consumer, step, pull, count):
    """Return the words that the module promises: the counter's first word goes up by one before every block."""
    digest = hashlib.blake2b(f"{seed}:{consumer}".encode(), digest_size=16).digest()
    key = [int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")]
    blocks = (philox_block([block + 1, 0, step, pull], key) for block in range(-(-count // 4)))
    return [word for block in blocks for word in block][:count]


@pytest.mark.parametrize(
    ("seed", "consumer", "step", "pull"),
    [(0, "test", 0, 0), (7, "sampler.dice", 3, 2), (2**70, "ä", 2**64 - 1, 2**63)],
)
def test_words_are_philox(seed, consumer, step, pull):
    """Key, counter and words are those of the definition, for any step and pull of 64 bits."""
    words = Draws(seed, consumer, step, pull).words(11)
    assert words.dtype == np.uint64
    assert words.tolist() == philox_words(seed, consumer, step, pull, 11)


def test_a_word_at_a_time_gives_the_same_words():
    """Words drawn one by one or several at once, across the ends of blocks, are the same ones."""
    draws = Draws(7, "sampler.dice", 3, 2)
    one_by_one = [draws.word() for _ in range(3)] + draws.words(3).tolist() + [draws.word() for _ in range(5)]
    assert one_by_one == philox_words(7, "sampler.dice", 3, 2, 11)


def test_golden_words():
    """The words never change: every run and checkpoint depends on them."""
    assert Draws(0, "test").words(2).tolist() == [0x8F215DA68E487323, 0x3C1BBABDE84881BF]
    assert Draws(7, "sampler.dice", 3, 2).words(2).tolist() == [0x9538AC70C1CD5F62, 0xAC611829E10BDE37]


def test_golden_numbers():
    """Nor do the numbers mapped from them."""
    assert Draws(0, "test").uniform(3).tolist() == [0.559102872050319, 0.23479811798486772, 0.5922465024042041]
    assert [Draws(0, "test", step).integer(6) for step in range(10)] == [1, 0, 2, 1, 2, 5, 3, 3, 1, 0]
    assert Draws(0, "test").permutation(8).tolist() == [5, 3, 7, 1, 0, 2, 6, 4]
    assert [Draws(0, "test", step).choice([1, 2, 3]) for step in range(10)] == [2, 1, 1, 1, 2, 0, 1, 0, 1, 2]
    normal = [-0.1262679100036621, 0.14031469821929932, -0.34294337034225464, 0.1487017571926117, 0.01711704023182392]
    assert Draws(0, "test").normal(5).tolist() == normal


def test_draws_go_on():
    """One object gives the stream in pieces, as in one piece."""
    pieces = Draws(1, "a")
    assert [*pieces.words(3), *pieces.words(6)] == Draws(1, "a").words(9).tolist()


@pytest.mark.parametrize("other", [(2, "a", 3, 4), (1, "b", 3, 4), (1, "a", 5, 4), (1, "a", 3, 5)])
def test_every_part_of_the_address_counts(other):
    """Another seed, consumer, step or pull gives other words, none in common."""
    assert not set(Draws(1, "a", 3, 4).words(1000).tolist()) & set(Draws(*other).words(1000).tolist())


def test_uniform_is_in_range_and_even():
    """Values lie in [0, 1) and fill 100 equal parts evenly, by chi-square."""
    values = Draws(3, "uniform").uniform(100_000)
    assert values.min() >= 0
    assert values.max() < 1
    counts = np.bincount((values * 100).astype(int), minlength=100)
    # 148.2 is exceeded with probability 0.001 at 99 degrees of freedom; the draws are fixed, so it never flickers.
    assert ((counts - 1000) ** 2 / 1000).sum() < 148.2


def test_integer_is_even():
    """All values below the bound come, equally often, by chi-square."""
    draws = Draws(3, "integer")
    counts = Counter(draws.integer(7) for _ in range(14_000))
    assert set(counts) == set(range(7))
    # 22.5 is exceeded with probability 0.001 at 6 degrees of freedom.
    assert sum((count - 2000) ** 2 / 2000 for count in counts.values()) < 22.5


def test_integer_draws_incomplete_intervals_again():
    """With a bound of 3 x 2**61 two words of eight lie in the incomplete last interval, and are passed over."""
    below = 3 * 2**61
    stream = [word for word in Draws(5, "reject").words(400).tolist() if word < 2**64 - 2**64 % below]
    assert len(stream) < 340
    draws = Draws(5, "reject")
    assert [draws.integer(below) for _ in range(200)] == [word % below for word in stream[:200]]


def test_integer_bounds():
    """A bound of 1 has one answer; 0, negative and too large ones are refused."""
    assert Draws(0, "one").integer(1) == 0
    for below in (0, -1, 2**63):
        with pytest.raises(ValueError, match="below must be"):
            Draws(0, "one").integer(below)


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_permutation_is_one(count):
    """Every number comes once."""
    assert sorted(Draws(2, "permutation").permutation(count).tolist()) == list(range(count))


def test_permutations_are_equally_likely():
    """The 24 orders of four come equally often, by chi-square."""
    counts = Counter(tuple(Draws(2, "orders", step).permutation(4).tolist()) for step in range(4800))
    assert len(counts) == 24
    # 49.7 is exceeded with probability 0.001 at 23 degrees of freedom.
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 49.7


def test_choice_follows_its_weights():
    """Indices come in proportion to their weights, and those of weight 0 never, by chi-square."""
    weights = [0.0, 1.0, 2.0, 0.0, 5.0, 0.0]
    counts = Counter(Draws(4, "choice", step).choice(weights) for step in range(8000))
    assert set(counts) == {1, 2, 4}
    # 13.8 is exceeded with probability 0.001 at 2 degrees of freedom.
    assert sum((counts[i] - 1000 * weights[i]) ** 2 / (1000 * weights[i]) for i in (1, 2, 4)) < 13.8


@pytest.mark.parametrize("weights", [[], [0, 0], [1, math.nan], [math.inf, 1], [-1]])
def test_choice_refuses_bad_weights(weights):
    """Nothing to choose from, or weights that are no numbers, are errors."""
    with pytest.raises(ValueError, match="weights must be"):
        Draws(0, "choice").choice(weights)


def test_normal_moments():
    """Mean, variance, skewness and kurtosis are those of the normal distribution."""
    values = Draws(6, "normal").normal(400_000).astype(np.float64)
    # Sampling deviations for n = 400,000: 1/sqrt(n) = 0.0016, sqrt(2/n), sqrt(6/n), sqrt(24/n) = 0.0077; four of each.
    assert abs(values.mean()) < 0.0064
    assert abs(values.var() - 1) < 0.009
    assert abs((values**3).mean()) < 0.016
    # The table ends at 4.3 deviations, which takes some 0.003 off the fourth moment.
    assert abs((values**4).mean() - 3) < 0.035


def test_normal_follows_the_distribution():
    """The largest distance to the distribution function (Kolmogorov, Smirnov) is what chance allows."""
    values = np.sort(Draws(6, "ks").normal(20_000))
    expected = np.array([NormalDist().cdf(float(value)) for value in values])
    distance = np.abs(expected - (np.arange(20_000) + 0.5) / 20_000).max()
    # 1.95 / sqrt(n) is exceeded with probability 0.001.
    assert distance < 1.95 / math.sqrt(20_000)


def test_normal_is_float32_and_symmetric():
    """The 65,536 quantiles are symmetric about 0, have variance 1, and end at 4.3."""
    from andrea.rng import _normal_quantiles

    table = _normal_quantiles()
    assert table.shape == (65_536,)
    assert (table == -table[::-1]).all()
    assert (np.diff(table) > 0).all()
    # Rounding of the quantiles to float32.
    assert np.mean(table.astype(np.float64) ** 2) == pytest.approx(1, abs=1e-7)
    assert 4.2 < table[-1] < 4.4
    assert Draws(0, "n").normal(3).dtype == np.float32


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5])
def test_normal_of_any_count(count):
    """Counts that words do not divide are prefixes of longer draws."""
    assert Draws(0, "n").normal(count).tolist() == Draws(0, "n").normal(8).tolist()[:count]


@pytest.mark.parametrize("count", [0, 5, AT_ONCE - 1, AT_ONCE, 2 * AT_ONCE + 3])
def test_filling_an_array_gives_the_same_bits(count):
    """Piece by piece and with the deviation in the table, and what is drawn next is the same too."""
    filled, drawn = Draws(3, "fill"), Draws(3, "fill")
    values = np.empty(count, dtype=np.float32)
    filled.fill_normal(values, 0.02)
    assert values.tobytes() == (drawn.normal(count) * np.float32(0.02)).tobytes()
    assert filled.word() == drawn.word()


def test_a_seed_is_what_it_is_called():
    """1 and True are equal and have other names, so other values, in whatever order they are asked."""
    for first, second in ((1, True), (True, 1)):
        values = [Draws(seed, "names").words(2).tolist() for seed in (first, second)]
        assert values[0] != values[1]
