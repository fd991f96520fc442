"""Log-likelihoods against the network's own probabilities, computed here id by id."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from andrea.engine import GenerateOptions
from andrea.engine import operations as op
from andrea.engine.network import block_forward, tensors
from andrea.scoring import continue_texts, score_pairs, score_texts, split_pair, windows
from andrea.trained import open_model

CPU = ("--device", "cpu")


@pytest.fixture
def model(andrea, experiment, current_folder):
    """Return the model of a tiny run with a Harris tokenizer, whose context is 16."""
    harris = ("--plugin", "tokenizer.harris", "--set", "tokenizer.harris.segments=30")
    ended = andrea("run", experiment, *harris, "--out", "run", "--steps", 20, "--set", "schedule.peak=0.03", *CPU)
    assert ended.code == 0, ended.err
    return open_model(Path("run"), None, "cpu", lambda line: None)


def log_probabilities(model, ids):
    """Return the logarithm of the probabilities that follow each of at most 16 ids, (T, V), in float64."""
    w = tensors(model.snapshot.engine["weights"].astype(np.float64), model.config.model, model.tokenizer.size)
    x = op.k_embed_fwd(np.asarray(ids)[None], w.embed, w.position)
    for layer in w.layers:
        x, _ = block_forward(x, layer, model.config.model.n_head)
    logits = op.k_head_fwd(op.k_layernorm_fwd(x, w.final_gamma, w.final_beta)[0], w.head)[0]
    logits = logits - logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


@given(st.integers(0, 70), st.integers(1, 70), st.integers(1, 20))
def test_every_id_is_predicted_once_with_all_the_context_that_fits(length, first, context):
    """In order, from the first that is counted on; a window that is not the first has the whole context."""
    ids = np.arange(100, 100 + length, dtype=np.int32)
    seen = []
    for window in windows(ids, first, context):
        assert len(window.inputs) == len(window.targets) <= context
        counted = window.targets >= 0
        assert counted.any()
        assert (window.targets[counted] == window.inputs[counted] + 1).all()
        assert window.inputs[0] == 100 or len(window.inputs) == context
        seen += window.targets[counted].tolist()
    assert seen == list(range(100 + first, 100 + length))


def test_windows_by_hand():
    """Ten ids behind the begin, four at once: the last window ends where the text ends."""
    found = [(w.inputs.tolist(), w.targets.tolist()) for w in windows(np.arange(11, dtype=np.int32), 1, 4)]
    assert found == [
        ([0, 1, 2, 3], [1, 2, 3, 4]),
        ([4, 5, 6, 7], [5, 6, 7, 8]),
        ([6, 7, 8, 9], [-1, -1, 9, 10]),
    ]


def test_a_continuation(model):
    """Its log-likelihood is the sum over its ids, each given all before; the greedy one is known as such."""
    greedy = model.generate(["seed root "], GenerateOptions(4, temperature=0))[0]
    pairs = [("seed root ", "leaf"), ("seed root", " leaf"), ("", "under rain"), ("seed root ", greedy), ("seed", "")]
    found = score_pairs(model, pairs)

    for (context, continuation), (got, is_greedy) in zip(pairs, found, strict=True):
        ids, first = split_pair(model, context, continuation)
        logs = log_probabilities(model, ids[:-1]) if len(ids) > 1 else np.zeros((0, 1))
        counted = range(first, len(ids))
        want = math.fsum(logs[n - 1, ids[n]] for n in counted)
        # float32 against float64: sums of a few nats
        assert got == pytest.approx(want, abs=1e-4)
        assert is_greedy == all(logs[n - 1].argmax() == ids[n] for n in counted)
    assert found[0] == found[1]  # a space belongs to the word behind it
    assert found[4] == (0.0, True)
    assert not found[0][1]


def test_the_greedy_continuation_is_known(model):
    """Ids that the model would write are found to be so, and one that differs at its end is not."""
    ids = model.engine.generate([model.begin("seed")], GenerateOptions(5, temperature=0))[0]
    text = model.tokenizer.decode(ids).decode()
    whole = model.begin("seed" + text)
    assert whole[-5:].tolist() == ids.tolist()  # the text is cut as it was written, else it could not be greedy
    assert score_pairs(model, [("seed", text)])[0][1]
    assert not score_pairs(model, [("seed", text + "~")])[0][1]


def test_a_pair_is_one_text(model):
    """Both are encoded together; an id over the border belongs to the continuation, and so do spaces before it."""
    tokenizer = model.tokenizer
    for context, continuation in (
        ("seed roo", "t"),
        ("seed ", "root"),
        ("", "seed"),
        ("seed", " root"),
        ("\u00e9", "\u00e9"),
    ):
        ids, first = split_pair(model, context, continuation)
        assert tokenizer.decode(ids).decode() == context + continuation
        before = tokenizer.decode(ids[:first]).decode()
        assert context.startswith(before)
        assert first >= 1
        assert len(ids) > first


def test_texts_of_any_length(model):
    """Shorter than the context, as long, and many times as long: windows add up, whatever is measured beside."""
    words = ["seed", "root", "leaf", "stem", "grows", "under", "rain", "and", "light"]
    texts = ["", "seed", " ".join(words), " ".join(words * 9), "\u00e9\U0001f600" * 20]
    found = score_texts(model, texts)
    for text, got in zip(texts, found, strict=True):
        ids = model.begin(text)
        want = 0.0
        for window in windows(ids, 1, 16):
            logs = log_probabilities(model, window.inputs)
            want += sum(logs[n, one] for n, one in enumerate(window.targets) if one >= 0)
        assert got == pytest.approx(want, abs=1e-3)  # float32, some hundred ids
    assert found[0] == 0.0
    assert len(model.begin(texts[3])) > 48
    assert [score_texts(model, [text])[0] for text in texts] == pytest.approx(found, rel=1e-6)  # rows padded otherwise


def test_a_continuation_longer_than_the_context(model):
    """It is measured in windows, and never called greedy."""
    long = " ".join(["seed root leaf"] * 20)
    ids, first = split_pair(model, "seed", " " + long)
    assert len(ids) - first > 16
    got, greedy = score_pairs(model, [("seed", " " + long)])[0]
    assert not greedy
    assert got < -10


def test_texts_that_follow(model):
    """They are the engine's, row by row as if all were drawn at once, and end at a stop string."""
    prompts = [f"seed {word}" for word in ("root", "leaf", "stem", "rain", "light", "and")]
    options = GenerateOptions(12, temperature=0.7, seed=5)
    got = continue_texts(model, prompts, options, [])
    ids = model.engine.generate([model.begin(p) for p in prompts], GenerateOptions(12, 0.7, seed=5, stop=(256,)))
    assert got == [model.tokenizer.decode(row).decode(errors="replace") for row in ids]
    cut = continue_texts(model, prompts, options, ["e", "a"])
    assert cut == [min((text.split(stop)[0] for stop in "ea"), key=len) for text in got]


def test_progress_is_told(model):
    """Stages with numbers up to their total."""
    told = []
    score_pairs(model, [("seed", " root")] * 40, lambda *words: told.append(words))
    assert ("scoring", 0, 40) in told
    assert ("scoring", 32, 40) in told
    assert any(stage == "comparing with greedy text" for stage, _, _ in told)
