"""The Kneser-Ney bigram model that a trained model has to beat, and the share of known word bigrams."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from andrea.bigram import Bigram, bigram_of, bits_per_byte, known_bigram_share
from andrea.plugins.tokenizer.byte import ByteTokenizer
from andrea.tokenfile import TokenFile, TokenWriter


def probabilities(model, size):
    """Return P(next | token) of all pairs, (V, V)."""
    before, after = np.divmod(np.arange(size * size), size)
    return np.exp(model.log_probability(before, after)).reshape(size, size)


@pytest.mark.parametrize(
    "stream",
    [
        [0, 1],
        [0, 0, 0, 0],
        [0, 1, 2, 0, 1, 3],
        list(range(10)),
        [0, 1] * 20 + [2],
        np.random.default_rng(3).integers(0, 9, size=400).tolist(),
        (np.random.default_rng(4).integers(0, 100, size=300) ** 2 // 1000).tolist(),
    ],
)
def test_probabilities_sum_to_one_in_every_context(stream):
    """Seen, unseen and rare contexts alike: all are positive and sum to 1."""
    size = 12
    table = probabilities(Bigram(stream, size), size)

    assert (table > 0).all()
    # 12 terms of at most 1, each right to a few units in the last place
    assert np.allclose(table.sum(axis=1), 1, rtol=0, atol=1e-13)


def test_a_hand_computation():
    """The stream 0 1 2 0 1 3 with four ids, worked out on paper.

    Pairs: 01 twice, 12, 20, 13 once. n1 = 3, n2 = 1, so D = 3 / (3 + 2) = 0.6. Each of 0, 1, 2, 3 was seen in one
    context, so of 4 distinct pairs each keeps (1 - 0.6) / 4 = 0.1, and the rest 0.6 is spread evenly: 0.1 + 0.15 = 1/4.
    """
    model = Bigram([0, 1, 2, 0, 1, 3], 4)
    table = probabilities(model, 4)

    wanted = [
        # after 0: 2 occurrences, 1 follower, backoff 0.6 x 1 / 2 = 0.3
        [0.3 / 4, 1.4 / 2 + 0.3 / 4, 0.3 / 4, 0.3 / 4],
        # after 1: 2 occurrences, 2 followers, backoff 0.6 x 2 / 2 = 0.6
        [0.6 / 4, 0.6 / 4, 0.4 / 2 + 0.6 / 4, 0.4 / 2 + 0.6 / 4],
        # after 2: 1 occurrence, 1 follower, backoff 0.6
        [0.4 + 0.6 / 4, 0.6 / 4, 0.6 / 4, 0.6 / 4],
        # after 3: never seen, all of it backs off
        [0.25, 0.25, 0.25, 0.25],
    ]
    assert model.discount == 0.6
    # a few roundings each, and the logarithm and back
    assert np.allclose(table, wanted, rtol=1e-14, atol=0)


def test_a_token_that_follows_many_is_likelier_than_one_that_follows_often():
    """What Kneser-Ney is for: 1 comes often but only after 0, so after an unseen context 2, that follows 3..5, wins."""
    stream = [0, 1] * 30 + [3, 2, 4, 2, 5, 2]
    after_unseen = probabilities(Bigram(stream, 8), 8)[7]

    assert after_unseen[2] > after_unseen[1]


@pytest.fixture
def write(tmp_path):
    """Return a function that writes texts as a token file."""

    def call(name, texts):
        with TokenWriter(tmp_path / name, ByteTokenizer()) as writer:
            for text in texts:
                writer.add(text.encode())
        return TokenFile.open(tmp_path / name)

    return call


def test_bits_per_byte_count_every_target_and_only_bytes(write):
    """The sum over all targets, the end of a document included, over the bytes of the text: by the definition."""
    train, held_out = write("train.btok", ["abab", "abba"]), write("held.btok", ["ab", "ba"])
    model = Bigram(train.tokens, 257)
    stream = [256, *b"ab", 256, *b"ba"]
    total = sum(float(model.log_probability([a], [b])[0]) for a, b in pairwise(stream))

    # the same terms in another order of summation
    assert bits_per_byte(bigram_of([train]), held_out) == pytest.approx(-total / math.log(2) / 4, rel=1e-14)


def test_text_like_the_training_text_takes_fewer_bits(write):
    """A repetitive held-out text costs little, a foreign one more than eight bits or nearly."""
    train = write("train.btok", ["ab" * 200, "ab" * 100])

    assert bits_per_byte(bigram_of([train]), write("near.btok", ["ab" * 50])) < 0.5
    assert bits_per_byte(bigram_of([train]), write("far.btok", ["zyxw" * 20])) > 6


def test_known_bigrams_are_counted_over_all_texts():
    """Pairs do not reach over the end of a text; without any pair the share is 0."""
    known = {("a", "b"), ("b", "c")}

    assert known_bigram_share([["a", "b", "c"], ["a", "c"]], known) == 2 / 3
    assert known_bigram_share([["a"], ["b"], []], known) == 0.0
    assert known_bigram_share([], known) == 0.0


def test_the_bigram_of_several_sources_is_one(write):
    """It is the bigram of their tokens end to end."""
    one, two = write("one.btok", ["abab"]), write("two.btok", ["bcbc"])
    joined = Bigram(np.concatenate([one.tokens, two.tokens]), 257)

    # equal arrays give equal sums
    assert bits_per_byte(bigram_of([one, two]), two) == bits_per_byte(joined, two)
