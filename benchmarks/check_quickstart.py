"""Has the newest run learned anything? Two figures that a model of single tokens or pairs does not reach.

1. Held-out bits per byte, mean over sources, below those of a Kneser-Ney bigram of the same tokens: one bigram of
   *all* training tokens of all sources, which is more than a short run has seen.
2. Share of word bigrams of its samples that occur in the training text, at least 0.15 above that of words drawn one by
   one by their frequency.

    python benchmarks/check_quickstart.py [RUN]
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np

from andrea.bigram import bigram_of, bits_per_byte, known_bigram_share
from andrea.engine import GenerateOptions
from andrea.rng import Draws
from andrea.tokens import split_words
from andrea.trained import evaluate_run, open_model

MARGIN = 0.15
TEXTS, TOKENS = 192, 128


def main() -> int:
    """Print both figures; return 0 when both hold."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    evaluation, files = evaluate_run(folder, None, 0, "auto", print)
    pairs = bigram_of([train for train, _ in files.values()])
    bigram = np.mean([bits_per_byte(pairs, held_out) for _, held_out in files.values()])
    print(f"held-out bits per byte: model {evaluation.mean:.3f}, bigram {bigram:.3f}")

    model = open_model(folder, None, "auto", print)
    known: set[tuple[str, str]] = set()
    words: Counter[str] = Counter()
    for train, _ in files.values():
        for i in range(train.documents):
            document = split_words(model.tokenizer.decode(train.document(i)).decode(errors="replace"))
            known.update(pairwise(document))
            words.update(document)
    how = model.config.sampling
    options = GenerateOptions(TOKENS, how.temperature, top_p=how.top_p, seed=1, stop=(model.tokenizer.bos,))
    samples = [split_words(text) for text in model.generate([""] * TEXTS, options)]
    share = known_bigram_share(samples, known)

    names, counts = list(words), np.array(list(words.values()), dtype=float)
    picks = np.searchsorted(np.cumsum(counts), Draws(0, "unigram").uniform(4000) * counts.sum(), side="right")
    chance = known_bigram_share([[names[i] for i in picks]], known)
    print(f"known word bigrams: model {share:.3f} of {sum(map(len, samples))} words, unigram {chance:.3f}")
    return 0 if evaluation.mean < bigram and share >= chance + MARGIN else 1


if __name__ == "__main__":
    sys.exit(main())
