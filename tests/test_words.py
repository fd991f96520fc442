"""Words that occur at least twice, in bounded memory."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from andrea.words import merge_runs, split_words, write_runs

TEXTS = st.lists(st.lists(st.sampled_from(["a", "ab", "b", "don't", "é", "x1", "a'", "Z"]), max_size=8), max_size=12)


@given(sources=st.lists(TEXTS, min_size=1, max_size=3), most=st.sampled_from([1, 2, 3, 1 << 19]))
@settings(max_examples=60, deadline=None)
def test_counting_in_files_is_counting(tmp_path_factory, sources, most):
    """However often memory is full, and however the texts are spread, the words are those of a plain count, sorted."""
    folder = tmp_path_factory.mktemp("words")
    split = [[split_words(" ".join(words)) for words in source] for source in sources]
    runs = [path for i, source in enumerate(split) for path in write_runs(source, folder / f"{i}", most)]
    count = Counter(word for source in split for words in source for word in words)
    assert list(merge_runs(runs)) == [f"{word}\n" for word in sorted(w for w, n in count.items() if n >= 2)]


def test_memory_is_bounded(tmp_path):
    """No file has more words than are held in memory and one text brings."""
    documents = ([f"word{number}", f"word{number + 1}"] for number in range(100))
    runs = write_runs(documents, tmp_path / "w", 10)
    assert len(runs) > 9
    assert all(len(set(path.read_text(encoding="utf-8").split())) <= 12 for path in runs)
