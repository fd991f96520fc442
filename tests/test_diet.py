"""What a vocabulary is good for is counted right, and a wrong training text shows."""

import numpy as np
import pytest

from andrea import AndreaError, TokenizerRequest
from andrea.diet import (
    MEGABYTE,
    Diet,
    Usage,
    cut,
    diet_of_text,
    mixed,
    mixed_bytes_per_token,
    saturation,
    segment_flags,
    share_used,
    show,
    sweep,
    usage_of_file,
    usage_of_text,
)
from andrea.plugins.tokenizer.bpe import BytePairs
from andrea.plugins.tokenizer.harris import Harris
from andrea.tokenfile import TokenFile, TokenWriter

STEMS = ["walk", "talk", "paint", "want", "help", "jump", "look", "work", "play", "call", "turn", "open"]
ENDINGS = ["", "ing", "ed", "s", "er", "ers"]
FIRST = ["self", "result", "index", "buffer", "count", "size", "value", "node", "lambda", "assert"]
NAMES = [first + second for first in FIRST for second in ("", "Max", "_of_", "List", "Map", "2")]
FORMS = ["    {0}.{1} = {2}[{1}]\n", "def {0}_{1}({2}):\n", "    return {0}({1}, {2})\n", "if {0} != {1}: raise {2}\n"]


def write_prose(seed, sentences=400):
    draws = np.random.default_rng(seed)
    words = [stem + ending for stem in STEMS for ending in ENDINGS]
    return [" ".join(draws.choice(words, size=12)).encode() + b". " for _ in range(sentences)]


def write_code(seed, lines=400):
    draws = np.random.default_rng(seed)
    return [draws.choice(FORMS).format(*draws.choice(NAMES, size=3)).encode() for _ in range(lines)]


def train(documents, segments=60, plugin=Harris):
    return plugin(segments=segments).make_tokenizer(TokenizerRequest(lambda limit: iter(documents)))


PROSE, HELD_OUT, CODE = write_prose(0), write_prose(1, 100), write_code(2)
RIGHT, WRONG = train(PROSE), train(CODE)


# -- a diet that fits, and one that does not ---------------------------------------------------------------------------


def test_the_right_sample_feeds_the_vocabulary():
    """A vocabulary learned from prose is used by prose: at least 95% in training and held-out text."""
    diet = diet_of_text(RIGHT, {"prose": PROSE}, {"prose": HELD_OUT}, {"prose": 1.0})
    row = diet.table()[-1]
    assert row["used"] >= 0.95
    assert row["used_held_out"] >= 0.95
    assert diet.waste() == {"segments": 60, "never": 0, "rare": 0}


def test_a_wrong_sample_is_reported_as_waste():
    """A vocabulary learned from code alone is mostly never used by prose, which it spells in single bytes."""
    diet = diet_of_text(WRONG, {"prose": PROSE}, {"prose": HELD_OUT}, {"prose": 1.0})
    row, waste = diet.table()[-1], diet.waste()
    assert row["used"] <= 0.3
    assert waste["never"] == round((1 - row["used"]) * 60) >= 42
    assert row["single_bytes"] > 0.5
    assert (
        row["bytes_per_token"]
        < 2
        < diet_of_text(RIGHT, {"p": PROSE}, {"p": HELD_OUT}, {}).table()[0]["bytes_per_token"]
    )


def test_a_source_without_a_share_uses_nothing():
    """What only a source outside the mix uses is waste for the mix, though its own row says used."""
    texts = {"prose": PROSE, "code": CODE}
    diet = diet_of_text(WRONG, texts, texts, {"prose": 1.0, "code": 0.0})
    prose, code, mix = diet.table()
    assert code["used"] == 1.0
    assert (code["share"], prose["share"]) == (0.0, 1.0)
    assert mix["used"] == prose["used"] < 0.5


# -- arithmetic --------------------------------------------------------------------------------------------------------


def usage(counts, text_bytes):
    return Usage(np.array(counts, dtype=np.int64), text_bytes)


def test_a_mix_weighs_bytes():
    """Every source gives its share of the bytes, whatever its size."""
    usages = {"small": usage([1, 1], 4), "large": usage([0, 1000], 2000)}
    assert mixed(usages, {"small": 3.0, "large": 1.0}).tolist() == [MEGABYTE * 3 / 16, MEGABYTE * (3 / 16 + 1 / 8)]
    assert mixed_bytes_per_token(usages, {"small": 3.0, "large": 1.0}) == 2.0
    assert mixed(usages, {}).tolist() == [MEGABYTE / 8, MEGABYTE * (1 / 8 + 1 / 4)]


def test_rare_segments_are_counted_apart():
    """Never used, used less than once in a megabyte of the mix, and used more: three different things."""
    counts = usage([0, 1, 2, 500], 2 * MEGABYTE)
    diet = Diet({"a": counts}, {"a": counts}, {}, np.array([True, True, True, True]))
    assert diet.waste() == {"segments": 4, "never": 1, "rare": 1}
    assert diet.table()[0]["used"] == 0.75


def test_shares_of_nothing():
    """No segments leave nothing unused, no text has no tokens, and a mix of nothing is the user's error."""
    assert share_used(np.array([0, 0]), np.array([False, False])) == 1.0
    assert usage([0, 0], 0).bytes_per_token == 0.0
    assert usage([0] * 256, 0).single_bytes == 0.0
    with pytest.raises(AndreaError, match="no source has a share"):
        mixed({"a": usage([1], 1)}, {"a": 0.0})


def test_usage_of_text():
    """Every id is counted, and single bytes are those that no segment covers."""
    found = usage_of_text(RIGHT, [b"walking", b"\xff\xfe"])
    assert found.text_bytes == 9
    assert found.counts.tolist() == np.bincount(RIGHT.encode(b"walking\xff\xfe"), minlength=RIGHT.size).tolist()
    assert found.tokens == found.counts.sum()
    assert found.single_bytes == found.counts[:256].sum() / 9
    assert found.bytes_per_token == 9 / found.tokens


def test_a_token_file_counts_like_its_text(tmp_path):
    """Counting a file is counting its documents; the ids that begin them are left out."""
    path = tmp_path / "prose.btok"
    with TokenWriter(path, RIGHT) as writer:
        for document in PROSE:
            writer.add(document)
    from_file, from_text = usage_of_file(TokenFile.open(path)), usage_of_text(RIGHT, PROSE)
    assert from_file.counts.tolist() == from_text.counts.tolist()
    assert from_file.text_bytes == from_text.text_bytes


def test_ids_without_text_are_segments_wasted():
    """A vocabulary that the sample could not fill counts what is empty as never used."""
    hungry = train(PROSE, segments=5000)
    assert int(segment_flags(hungry).sum()) == 5000
    diet = diet_of_text(hungry, {"prose": PROSE}, {"prose": HELD_OUT}, {})
    assert diet.waste()["never"] >= 5000 - len(hungry.segments) > 0


# -- saturation --------------------------------------------------------------------------------------------------------


def test_a_sweep_trains_every_kind_and_size():
    """Points come by size and kind, measured like any vocabulary; more segments make shorter text."""
    texts, held_out = {"prose": PROSE, "code": CODE}, {"prose": HELD_OUT, "code": CODE[:50]}
    makers = {
        "tokenizer.harris": lambda size: train(PROSE + CODE, size),
        "tokenizer.bpe": lambda size: train(PROSE + CODE, size, BytePairs),
    }
    points = list(sweep(makers, [20, 80], texts, held_out, {}))
    assert [(point.tokenizer, point.segments) for point in points] == [
        (name, size) for size in (20, 80) for name in makers
    ]
    assert points[0].bytes_per_token < points[2].bytes_per_token
    assert points[1].bytes_per_token < points[3].bytes_per_token
    assert points[2] == saturation("tokenizer.harris", train(PROSE + CODE, 80), texts, held_out, {})
    assert all(0 < point.used_held_out <= point.used <= 1 for point in points)


# -- cuts --------------------------------------------------------------------------------------------------------------


def test_cuts_are_shown_in_one_line():
    """A bar stands between tokens; line ends and halves of characters are written out."""
    assert cut(RIGHT, "Xyz") == "X|y|z"
    assert cut(RIGHT, "\n\u00e9").split("|") == ["\\n", "\\xc3", "\\xa9"]
    assert show("\u00e9\t".encode()) == "\u00e9\\t"
