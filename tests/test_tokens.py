"""Token files, the held-out split, and a preparation that may be interrupted anywhere."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from andrea import AndreaError, Document, SourceSpec
from andrea.tokenfile import Encoder, TokenFile, TokenWriter, bytes_of_tokens
from andrea.tokens import (
    StoppedError,
    group_hash,
    held_out_mask,
    is_held_out,
    prepare,
    reopen,
    sample_budgets,
    split_words,
    survey,
)
from andrea.types import SourceInput

GOLDEN = "0deb90b2d1007041b01423a557ea202f8e37bb7c64f98879e1464cf0000c0647"
GROUP_HASH = 12147583775996357911


class Common:
    """A trained tokenizer in small: the bytes, and the most frequent word of its sample as one more id."""

    def __init__(self, word: bytes, size: int = 258) -> None:
        self.word, self.size, self.bos = word, size, 256
        self.fingerprint = hashlib.sha256(word + bytes([size % 251])).hexdigest()

    @classmethod
    def make(cls, request):
        if request.saved is not None:
            return cls((request.saved / "word").read_bytes())
        words = b" ".join(request.sample(1 << 20)).split()
        return cls(min(sorted(set(words)), key=lambda word: -words.count(word)))

    def encode(self, data):
        first, *parts = data.split(self.word)
        ids = list(first)
        for part in parts:
            ids += [257, *part]
        return np.array(ids, dtype=np.int32)

    def decode(self, ids):
        return b"".join(self.word if i == 257 else b"" if i >= 256 else bytes([i]) for i in np.asarray(ids).tolist())

    def save(self, folder):
        (folder / "word").write_bytes(self.word)


# -- the file ----------------------------------------------------------------------------------------------------------


def write(path: Path, texts, tokenizer=None, lengths=None) -> TokenFile:
    with TokenWriter(path, tokenizer or Common(b"the"), lengths) as writer:
        for text in texts:
            writer.add(text)
    return TokenFile.open(path)


@given(texts=st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=10), wide=st.booleans())
@settings(max_examples=80, deadline=None)
def test_what_is_written_is_read(tmp_path_factory, texts, wide):
    """Any documents come back, in 16 bits up to 65,536 ids and in 32 bits above."""
    folder = tmp_path_factory.getbasetemp()
    tokenizer = Common(b"the", 65537 if wide else 65536)
    lengths = np.zeros(tokenizer.size, dtype="<u4")
    lengths[:258] = [1] * 256 + [0, 3]
    file = write(folder / "any.btok", texts, tokenizer, lengths)
    assert file.documents == len(texts)
    assert file.bytes == sum(map(len, texts))
    assert file.tokens.dtype == (np.uint32 if wide else np.uint16)
    assert [tokenizer.decode(file.document(i)) for i in range(len(texts))] == texts
    assert [int(file.tokens[start]) for start in file.offsets[:-1]] == [tokenizer.bos] * len(texts)
    assert int(file.offsets[-1]) == file.tokens.size
    assert int(file.token_bytes[file.tokens].sum()) == file.bytes
    assert (file.vocabulary, file.bos, file.fingerprint) == (tokenizer.size, 256, tokenizer.fingerprint)
    file.verify()


def test_bytes_on_the_disk_are_these(tmp_path):
    """The format is fixed: a file of two known documents has a known digest, and its header known fields."""
    path = tmp_path / "a.btok"
    write(path, [b"the cat", b"on the mat"])
    data = path.read_bytes()
    assert data[:8] == b"\x93BTOK\r\n\x1a"
    assert int.from_bytes(data[8:12], "little") == 1
    assert int.from_bytes(data[16:24], "little") == len(data)
    assert hashlib.sha256(data).hexdigest() == GOLDEN


def test_every_cut_is_noticed(tmp_path):
    """A file cut at any byte, or with a byte too many, is refused by name."""
    path, cut = tmp_path / "whole.btok", tmp_path / "cut.btok"
    write(path, [b"the cat", b"sat"])
    data = path.read_bytes()
    for length in [*range(300), *range(300, len(data), 7), *range(len(data) - 40, len(data))]:
        cut.write_bytes(data[:length])
        with pytest.raises(AndreaError, match=r"cut\.btok is (cut short|not a token file)") as caught:
            TokenFile.open(cut)
        assert caught.value.hint
    cut.write_bytes(data + b"\0")
    with pytest.raises(AndreaError, match="too long"):
        TokenFile.open(cut)


def test_every_flipped_byte_is_noticed(tmp_path):
    """A changed byte of the header is noticed when the file is opened, any other one by `verify`."""
    path = tmp_path / "a.btok"
    write(path, [b"the cat", b"sat"])
    data = path.read_bytes()
    header = 184
    for place in [*range(header), *range(header, len(data), 5)]:
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        if place < header:
            with pytest.raises(AndreaError, match=r"a\.btok"):
                TokenFile.open(path)
        else:
            with pytest.raises(AndreaError, match=r"a\.btok is damaged"):
                TokenFile.open(path).verify()


def test_foreign_files_are_named(tmp_path):
    """Something else, an other version, an other tokenizer, nothing at all: each error says what it is."""
    path = tmp_path / "a.btok"
    write(path, [b"the cat"])
    data = path.read_bytes()
    with pytest.raises(AndreaError, match="made by another tokenizer") as caught:
        TokenFile.open(path, "ab" * 32)
    assert "andrea prepare" in caught.value.hint
    path.write_bytes(data[:8] + b"\x02" + data[9:])
    with pytest.raises(AndreaError, match="has version 2"):
        TokenFile.open(path)
    path.write_bytes(b"PK\x03\x04" + data)
    with pytest.raises(AndreaError, match="is not a token file"):
        TokenFile.open(path)
    with pytest.raises(AndreaError, match=r"b\.btok does not exist"):
        TokenFile.open(tmp_path / "b.btok")


def test_a_failed_writer_leaves_nothing(tmp_path):
    """When writing fails no file is left, and an earlier one of the name stays."""
    path = tmp_path / "a.btok"
    write(path, [b"the cat"])
    before = path.read_bytes()

    def documents():
        yield b"x"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write(path, documents())
    assert content(tmp_path) == {"a.btok": before}


@pytest.mark.parametrize(
    ("ids", "said"), [([256], "bos"), ([300], "outside"), ([-1], "outside"), ([97, 98], "more or fewer bytes")]
)
def test_a_wrong_tokenizer_is_caught(tmp_path, ids, said):
    """Ids that are bos, unknown, or stand for other bytes never get into a file."""
    tokenizer = Common(b"the")
    tokenizer.encode = lambda data: np.array(ids, dtype=np.int32)
    with pytest.raises(ValueError, match=said), TokenWriter(tmp_path / "a.btok", tokenizer) as writer:
        writer.add(b"a")


@pytest.mark.parametrize(
    ("counts", "said"),
    [([1, 2], None)] + [(wrong, "more or fewer bytes") for wrong in ([2, 1], [3], [1, 1], [0, 1, 2])],
)
def test_texts_that_are_encoded_together_are_kept_apart(tmp_path, counts, said):
    """What a tokenizer says of many texts must hold for each of them."""
    tokenizer = Common(b"the")
    tokenizer.encode_all = lambda texts: (np.array([97, 98, 99], dtype=np.int32), np.array(counts))
    encoder = Encoder(tokenizer)
    if said is None:
        tokens, lengths = encoder.encode_all([b"a", b"bc"])
        assert (tokens.tolist(), lengths.tolist()) == ([256, 97, 256, 98, 99], [2, 3])
        return
    with pytest.raises(ValueError, match=said):
        encoder.encode_all([b"a", b"bc"])


def test_bytes_of_tokens():
    """Every id stands for the bytes that it decodes to, bos for none."""
    lengths = bytes_of_tokens(Common(b"there"))
    assert lengths.tolist() == [1] * 256 + [0, 5]


# -- the split ---------------------------------------------------------------------------------------------------------


def mask_of(groups, share, sizes=None):
    hashes = np.array([group_hash(group) for group in groups], dtype=np.uint64)
    return held_out_mask(hashes, np.array(sizes or [10] * len(groups), dtype=np.int64), share)


@given(
    works=st.lists(st.tuples(st.sampled_from("abcdefghij"), st.integers(1, 99)), min_size=2, max_size=30),
    share=st.floats(0.001, 0.999),
)
@settings(max_examples=150, deadline=None)
def test_split_keeps_works_together(works, share):
    """Both sides have a document, no work of several is on both, and half the share of the bytes is held out."""
    groups, sizes = [group for group, _ in works], [size for _, size in works]
    mask = mask_of(groups, share, sizes)
    assert 0 < mask.sum() < len(groups)
    held, kept = ({g for g, m in zip(groups, mask, strict=True) if bool(m) is side} for side in (True, False))
    if len(set(groups)) == 1:
        return
    assert not held & kept
    in_order = sorted(set(groups), key=group_hash)
    assert held == set(in_order[: len(held)])

    def part(chosen):
        return sum(size for group, size in works if group in chosen) / sum(sizes)

    by_hash = {group for group in groups if is_held_out(group, share)}
    if len(kept) > 1 and held != by_hash:  # more than the hash says, and the last one was needed
        assert held > by_hash
        assert part(in_order[: len(held) - 1]) < share / 2 + 1e-12  # rounding of the quotient
    if len(kept) > 1:
        assert part(held) >= share / 2 - 1e-12  # the same


def test_split_of_a_single_work():
    """One work gives its last documents; one document alone cannot be split."""
    assert mask_of("a" * 20, 0.1).tolist() == [False] * 18 + [True] * 2
    assert mask_of("aa", 0.1).tolist() == [False, True]
    with pytest.raises(AndreaError, match="one document alone"):
        mask_of("a", 0.1)
    with pytest.raises(AndreaError, match="the held-out share is 1"):
        mask_of("ab", 1.0)


def test_split_is_the_same_everywhere():
    """The hash of a work is fixed for good, and its share comes out right."""
    assert group_hash("json/encoder.py") == GROUP_HASH
    # 10,000 works at 5%: the count is binomial with deviation 22, so 5 deviations are 110.
    assert abs(sum(is_held_out(f"work {i}", 0.05) for i in range(10000)) - 500) < 110


# -- preparation -------------------------------------------------------------------------------------------------------

WORDS = ["the", "cat", "sat", "on", "Mat", "don't", "x1", "naïve", "été", "λόγος"]


def texts_of(spec):
    draw = random.Random(spec.name)
    for number in range(spec.options["documents"]):
        text = " ".join(draw.choice(WORDS) for _ in range(draw.randint(0, 30)))
        yield Document(text=text, name=f"{spec.name} {number}", group=f"work {number // 3}")


def sources(*counts):
    return [SourceSpec(f"s{i}", "source.test", {"documents": count}) for i, count in enumerate(counts)]


def do(cache, specs=None, **changes):
    arguments = {
        "open_source": texts_of,
        "keep_document": lambda document, source: "short" if len(document.text) < 10 else None,
        "make_tokenizer": Common.make,
        "tokenizer_key": "common",
        "cache": cache,
        "held_out_share": 0.2,
    }
    return prepare(specs or sources(60, 300, 30), **{**arguments, **changes})


def content(cache: Path) -> dict[str, bytes]:
    return {p.relative_to(cache).as_posix(): p.read_bytes() for p in sorted(cache.rglob("*")) if p.is_file()}


def test_prepared_files_hold_the_kept_documents(tmp_path):
    """Training and held-out files together are the kept documents; training keeps the order of the source."""
    prepared = do(tmp_path)
    for source, spec in zip(prepared.sources, sources(60, 300, 30), strict=True):
        kept = [d for d in texts_of(spec) if len(d.text) >= 10]
        train, held_out = TokenFile.open(source.train), TokenFile.open(source.held_out)
        decode = prepared.tokenizer.decode
        of_train = [decode(train.document(i)).decode() for i in range(train.documents)]
        of_held_out = [decode(held_out.document(i)).decode() for i in range(held_out.documents)]
        assert of_train == [d.text for d in kept if not is_held_out(d.group, 0.2)]
        assert sorted(of_held_out) == sorted(d.text for d in kept if is_held_out(d.group, 0.2))
        manifest = source.manifest
        assert manifest["kept"] == len(kept) == manifest["train"]["documents"] + manifest["held_out"]["documents"]
        assert manifest["kept"] + sum(manifest["dropped"].values()) == spec.options["documents"]
        assert manifest["bytes"] == sum(len(d.text.encode()) for d in kept) == train.bytes + held_out.bytes
        assert set(manifest["dropped"]) <= {"short", "empty"}
        train.verify()
        held_out.verify()


def test_known_words(tmp_path):
    """Words are those of training text that occur twice or more, lower case, sorted in the file."""
    prepared = do(tmp_path)
    counts: dict[str, int] = {}
    for spec in sources(60, 300, 30):
        for document in texts_of(spec):
            if len(document.text) >= 10 and not is_held_out(document.group, 0.2):
                for word in document.text.lower().split():
                    counts[word] = counts.get(word, 0) + 1
    expected = {word for word, count in counts.items() if count >= 2}
    assert prepared.known_words() == expected
    assert prepared.words.read_text(encoding="utf-8").splitlines() == sorted(expected)
    assert split_words("Don't stop_it, ÉTÉ 42!") == ["don't", "stop", "it", "été", "42"]


def test_the_same_again_and_elsewhere(tmp_path):
    """A second time writes nothing; another cache gets the same files byte for byte."""
    first = do(tmp_path / "a")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "a").rglob("*") if p.is_file() and p.name != "lock"}

    def refuse(request):
        assert request.saved is not None, "trained a second time"
        return Common.make(request)

    second = do(tmp_path / "a", make_tokenizer=refuse)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "a").rglob("*") if p.is_file() and p.name != "lock"} == before
    third = do(tmp_path / "b")
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert first.sha256 == second.sha256 == third.sha256
    assert [s.sha256 for s in first.sources] == [s.sha256 for s in third.sources]


@pytest.mark.parametrize(
    "change",
    [
        {"held_out_share": 0.3},
        {"tokenizer_key": "other"},
        {"specs": sources(60, 300, 31)},
        {"mix": {"s0": 1}},
        {"keep_document": lambda document, source: None},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_decides_the_data_changes_the_digest(tmp_path, change):
    """Another share, tokenizer, source, mix or filter is other data, and never overwrites the first."""
    first, before = do(tmp_path), content(tmp_path)
    other = do(tmp_path, **change)
    assert other.sha256 != first.sha256
    assert before.items() <= content(tmp_path).items()


class Interruption(BaseException):
    """Like a kill: no handler for errors catches it."""


def test_interrupted_at_every_call(tmp_path):
    """Interrupted at any call of progress, the cache holds whole files only, and going on gives the same."""
    calls = []
    do(tmp_path / "whole", progress=lambda *call: calls.append(call))
    whole = content(tmp_path / "whole")
    assert len(calls) > 20
    for last in range(len(calls)):
        left = iter(range(last))

        def progress(stage, done, total, left=left):
            if next(left, None) is None:
                raise Interruption

        cache = tmp_path / f"cut{last}"
        with pytest.raises(Interruption):
            do(cache, progress=progress)
        assert content(cache).items() <= whole.items()
        do(cache)
        assert content(cache) == whole


def test_killed_at_random(tmp_path):
    """Killed by SIGKILL again and again, the preparation still ends with the same files."""
    do(tmp_path / "whole")
    code = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[2]]\n"
        "import os, signal, pathlib, test_tokens as t\n"
        "left = iter(range(int(sys.argv[4])))\n"
        "real = os.fsync\n"
        "def fsync(handle):\n"
        "    if next(left, None) is None: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    real(handle)\n"
        "os.fsync = fsync\n"
        "t.do(pathlib.Path(sys.argv[3]))\n"
    )
    here = Path(__file__).parent
    cache = tmp_path / "killed"
    for fsyncs in (0, 1, 3, 4):
        command = [sys.executable, "-c", code, str(here.parent), str(here), str(cache), str(fsyncs)]
        killed = subprocess.run(command, check=False, capture_output=True)
        assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    do(cache)
    assert content(cache) == content(tmp_path / "whole")


def short(document, source):
    return "short" if len(document.text) < 10 else None


def first_word(document, source):
    """Identify a document by its first word and its length."""
    words = document.text.split()
    return [group_hash(f"{words[0]} {len(words)}")] if words else []


PICKLABLE = {"keep_document": short, "processes": 2, "small_bytes": 0}


def test_processes_write_the_same_bytes(tmp_path):
    """However many processes work, and however early they start, the files are those of one process."""
    do(tmp_path / "one", identify_document=first_word)
    for name, changes in (("two", {"small_bytes": 0}), ("later", {"small_bytes": 3000}), ("three", {"processes": 3})):
        do(tmp_path / name, identify_document=first_word, **{**PICKLABLE, **changes})
        assert content(tmp_path / name) == content(tmp_path / "one")


def test_small_chunks_change_nothing(tmp_path, monkeypatch):
    """Documents encoded a few at a time give the files of those encoded all at once."""
    do(tmp_path / "whole")
    monkeypatch.setattr("andrea.store.CHUNK_BYTES", 50)
    do(tmp_path / "pieces")
    assert content(tmp_path / "pieces") == content(tmp_path / "whole")


def test_an_error_in_a_process_is_the_users_error(tmp_path):
    """A source that cannot be read elsewhere is named as it is when it is read here."""
    specs = [*sources(60), SourceSpec("bad", "source.test", {"documents": 0})]
    with pytest.raises(AndreaError, match=r"source bad: source\.test found no document"):
        do(tmp_path, specs, **PICKLABLE)
    assert not (tmp_path / "scratch").exists()


def test_stopping_with_processes(tmp_path):
    """When `stopped` says yes while processes work, they end and nothing half written stays."""
    asked = iter(range(12))
    with pytest.raises(StoppedError):
        do(tmp_path, **PICKLABLE, stopped=lambda: next(asked, None) is None)
    assert not list(tmp_path.glob("*/*.partial"))
    do(tmp_path)
    do(tmp_path / "other")
    assert {k: v for k, v in content(tmp_path).items() if not k.startswith("other/")} == content(tmp_path / "other")


def test_stopping_before_what_is_done_has_its_name(tmp_path, monkeypatch):
    """What a process has finished and nobody has taken over yet is cleared away too."""
    seen = []

    def stop(partial, folder):
        seen.append(partial.is_dir())
        raise StoppedError

    monkeypatch.setattr("andrea.tokens.publish_folder", stop)
    with pytest.raises(StoppedError):
        do(tmp_path)
    assert seen == [True]
    assert not list(tmp_path.glob("*/*.partial"))


@pytest.mark.parametrize("folder", [False, True])
def test_what_another_process_finishes_meanwhile_stays(tmp_path, monkeypatch, folder):
    """Without the lock one may have been writing, and may rename it between a look at it and its removal."""
    half, whole = tmp_path / "unchanged/one.partial", tmp_path / "unchanged/one"
    half.parent.mkdir()
    half.mkdir() if folder else half.touch()
    is_dir = Path.is_dir

    def finish(path, **options):
        answer = is_dir(path, **options)
        if path == half and half.exists():
            half.rename(whole)
        return answer

    monkeypatch.setattr(Path, "is_dir", finish)
    do(tmp_path)
    assert whole.exists()


def test_killed_at_random_with_processes(tmp_path):
    """Killed by SIGKILL at random moments, started again with processes or without, the files are the same."""
    do(tmp_path / "whole")
    script = tmp_path / "run.py"
    script.write_text(
        "import sys; sys.path[:0] = [sys.argv[1]]\n"
        "import pathlib, test_tokens as t\n"
        "if __name__ == '__main__': t.do(pathlib.Path(sys.argv[2]), **t.PICKLABLE)\n",
        encoding="utf-8",
    )
    draw, cache = random.Random(1), tmp_path / "killed"
    for _ in range(4):
        process = subprocess.Popen([sys.executable, script, Path(__file__).parent, cache])
        try:
            process.wait(draw.uniform(0.2, 2.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    do(cache)
    assert content(cache) == content(tmp_path / "whole")


def test_duplicates_are_dropped(tmp_path):
    """A document that shares a key with an earlier one, of its own or an earlier source, is dropped and counted."""
    prepared = do(tmp_path, identify_document=first_word)
    seen, expected = set(), {}
    for spec in sources(60, 300, 30):
        for document in texts_of(spec):
            if len(document.text) < 10:
                continue
            key = (document.text.split()[0], len(document.text.split()))
            if key not in seen:
                expected.setdefault(spec.name, []).append(document.text)
            seen.add(key)
    for source in prepared.sources:
        kept = []
        for path in (source.train, source.held_out):
            file = TokenFile.open(path)
            kept += [prepared.tokenizer.decode(file.document(i)).decode() for i in range(file.documents)]
        assert sorted(kept) == sorted(expected[source.name])
        manifest = source.manifest
        assert manifest["kept"] == len(kept)
        assert manifest["bytes"] == sum(len(text.encode()) for text in kept)
        asked = {"s0": 60, "s1": 300, "s2": 30}[source.name]
        assert manifest["kept"] + sum(manifest["dropped"].values()) == asked
        assert manifest["dropped"]["duplicate of an earlier document"] > 0


def test_keys_are_compared_in_parts(tmp_path, monkeypatch):
    """Few keys at once in memory find the same duplicates."""
    do(tmp_path / "whole", identify_document=first_word)
    monkeypatch.setattr("andrea.store._KEYS_AT_ONCE", 7)
    do(tmp_path / "parts", identify_document=first_word)
    assert content(tmp_path / "parts") == content(tmp_path / "whole")


def test_a_survey_reports_and_writes_nothing(tmp_path):
    """Its reports are those of the manifests, duplicates included, with processes and without."""
    prepared = do(tmp_path, identify_document=first_word)
    before = content(tmp_path)
    arguments = {"open_source": texts_of, "identify_document": first_word, "held_out_share": 0.2}
    for changes in ({"keep_document": short}, PICKLABLE):
        reports = survey(sources(60, 300, 30), **arguments, **changes)
        for source in prepared.sources:
            said = reports[source.name].to_json()
            assert said == {key: source.manifest[key] for key in ("kept", "bytes", "dropped")}
    assert content(tmp_path) == before


def test_several_inputs_make_one_source(tmp_path):
    """A source of inputs is their documents one after another; readers and licences stand in the manifest."""
    inputs = (SourceInput("source.a", {"documents": 20}, "CC0"), SourceInput("source.b", {"documents": 10}))
    spec = SourceSpec("chat", inputs=inputs, licence="MIT")
    (source,) = do(tmp_path, [spec], keep_document=lambda d, s: None).sources
    assert source.manifest["readers"] == ["source.a", "source.b"]
    assert source.manifest["licences"] == ["CC0", "MIT"]
    parts = [SourceSpec("chat", one.reader, one.options) for one in inputs]
    texts = [document.text for part in parts for document in texts_of(part)]
    assert source.manifest["kept"] == len([text for text in texts if text])


def test_stopping_is_asked_for(tmp_path):
    """When `stopped` says yes the preparation ends with an error that says how to go on."""
    with pytest.raises(StoppedError, match="what was finished is kept") as caught:
        do(tmp_path, stopped=lambda: True)
    assert "same command" in caught.value.hint


def test_two_at_once_wait_for_each_other(tmp_path):
    """While another preparation works in the cache this one waits, says so, and can be stopped."""
    fcntl = pytest.importorskip("fcntl")
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        stages = []
        with pytest.raises(StoppedError):
            do(tmp_path, progress=lambda stage, done, total: stages.append(stage), stopped=lambda: len(stages) > 2)
    assert set(stages) == {"waiting for another preparation"}


def test_reopen(tmp_path):
    """By its digest a preparation is found again whole, without reading a source."""
    prepared = do(tmp_path)
    again = reopen(tmp_path, prepared.sha256, Common.make, window=256)
    for one, other in zip(prepared.sources, again.sources, strict=True):
        assert (one.name, one.train, one.held_out, one.sha256) == (
            other.name,
            other.train,
            other.held_out,
            other.sha256,
        )
    assert again.tokenizer.fingerprint == prepared.tokenizer.fingerprint
    assert again.known_words() == prepared.known_words()
    assert again.human == prepared.human


def test_reopen_reads_every_file_once_and_can_be_stopped(tmp_path, monkeypatch):
    """Verifying tells how far it is, and ends when the user wants it to."""
    prepared, read, stages = do(tmp_path), [], []
    real = TokenFile.verify
    monkeypatch.setattr(TokenFile, "verify", lambda file: [read.append(file.path.name), real(file)])
    reopen(tmp_path, prepared.sha256, Common.make, lambda *stage: stages.append(stage))
    assert sorted(read) == sorted(path.name for path in tmp_path.glob("tokens/*"))
    total = len(prepared.sources)
    assert stages == [("verifying token files", number, total) for number in range(total + 1)]
    read.clear()
    with pytest.raises(StoppedError):
        reopen(tmp_path, prepared.sha256, Common.make, stopped=lambda: len(read) == 2)
    assert len(read) == 2


PARTS = ("prepared", "tokens", "words", "tokenizers", "known", "human")


@pytest.mark.parametrize("part", ["prepared/*.json", "tokens/*.train.btok", "words/*.txt", "tokenizers/*", "known/*"])
def test_reopen_names_what_is_gone(tmp_path, part):
    """When a part of it is gone the error says which, and that `andrea prepare` makes it again."""
    prepared = do(tmp_path)
    for path in tmp_path.glob(part):
        path.rename(tmp_path / path.name)
    with pytest.raises(AndreaError) as caught:
        reopen(tmp_path, prepared.sha256, Common.make, window=256)
    assert "andrea prepare" in caught.value.hint
    for path in [p for p in tmp_path.iterdir() if p.name not in {"lock", *PARTS}]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert do(tmp_path).sha256 == prepared.sha256
    reopen(tmp_path, prepared.sha256, Common.make, window=256)


DAMAGED = [
    "prepared/*.json",
    "tokens/*.train.btok",
    "words/*.txt",
    "tokenizers/*/word",
    "known/*/pairs.npy",
]


@pytest.mark.parametrize("part", DAMAGED)
@pytest.mark.parametrize("damage", ["cut", "flip", "no text"])
def test_damage_is_noticed_and_mended(tmp_path, part, damage):
    """A part that is cut or changed is refused by `reopen`, and the next preparation makes it again as it was."""
    prepared = do(tmp_path)
    before = content(tmp_path)
    path = next(iter(sorted(tmp_path.glob(part))))
    data = path.read_bytes()
    last = data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]
    path.write_bytes({"cut": data[: len(data) // 2], "flip": last, "no text": b"\xff\xfe"}[damage])
    with pytest.raises(AndreaError, match=r"damaged|cut short|not a token file") as caught:
        reopen(tmp_path, prepared.sha256, Common.make, window=256)
    assert "andrea prepare" in caught.value.hint
    assert do(tmp_path).sha256 == prepared.sha256
    assert content(tmp_path) == before
    reopen(tmp_path, prepared.sha256, Common.make, window=256)


@pytest.mark.parametrize("fault", ["damaged", "gone", "without a seal", "of another length"])
def test_measures_of_held_out_text_are_made_again(tmp_path, fault):
    """When they are not whole, or of windows of another length, they are measured anew, and the same comes out."""
    prepared, window = do(tmp_path), 256
    before, measured = content(tmp_path), prepared.open_human()
    if fault == "damaged":
        prepared.human[0][1].write_bytes(b'{"windows": [[[0, 0]]]}')
    elif fault == "of another length":
        window = 5
    else:
        prepared.human[0][1].with_suffix(".json" if fault == "gone" else ".json.sha256").unlink()
    again = reopen(tmp_path, prepared.sha256, Common.make, window=window).open_human()
    assert (window == 5) == (len(again.held_out[0]) > len(measured.held_out[0]))
    if window == 256:
        assert all(map(np.array_equal, again.held_out, measured.held_out))
        do(tmp_path)
        assert content(tmp_path) == before


def test_what_is_known_of_human_text_can_be_left_out(tmp_path):
    """Who only reads token files needs nothing else to be whole."""
    prepared = do(tmp_path)
    shutil.rmtree(tmp_path / "known")
    assert reopen(tmp_path, prepared.sha256, Common.make).human == ()


@pytest.mark.parametrize("part", ["words/*.txt.sha256", "tokenizers/*.sha256", "known/*.sha256"])
def test_a_part_without_its_seal_is_made_again(tmp_path, part):
    """What cannot be told to be whole is not trusted."""
    prepared = do(tmp_path)
    before = content(tmp_path)
    next(iter(tmp_path.glob(part))).unlink()
    with pytest.raises(AndreaError, match="is damaged"):
        reopen(tmp_path, prepared.sha256, Common.make, window=256)
    do(tmp_path)
    assert content(tmp_path) == before


def test_what_is_whole_is_not_made_again(tmp_path):
    """A second preparation trains no tokenizer and writes no file anew."""
    do(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")}

    def make(request):
        assert request.saved is not None
        return Common.make(request)

    do(tmp_path, make_tokenizer=make)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")} == times


def test_reopen_notices_other_content(tmp_path):
    """A whole token file with other content under the recorded name is noticed."""
    prepared = do(tmp_path)
    write(prepared.sources[0].train, [b"another text"], prepared.tokenizer)
    with pytest.raises(AndreaError, match="is not what it was"):
        reopen(tmp_path, prepared.sha256, Common.make)


def test_sample_follows_the_mix_and_holds_out(tmp_path):
    """The tokenizer sees each source in its share, within the limit, twice the same, and no held-out text."""
    samples = []

    def make(request):
        if request.saved is None:
            samples.append((list(request.sample(3000)), list(request.sample(3000)), list(request.sample(10))))
        return Common.make(request)

    specs = sources(600, 600)
    do(tmp_path, specs, make_tokenizer=make, mix={"s0": 3, "s1": 1}, keep_document=lambda d, s: None)
    (one, two, tiny), of = samples[0], {}
    for spec in specs:
        for document in texts_of(spec):
            if not is_held_out(document.group, 0.2):
                of.setdefault(document.text.encode(), set()).add(spec.name)
    assert one == two
    assert all(text in of for text in one)
    share = {name: sum(len(text) for text in one if name in of[text]) for name in ("s0", "s1")}
    longest = max(map(len, of))
    assert 2250 - longest <= share["s0"] <= 2250
    assert 750 - longest <= share["s1"] <= 750
    assert sum(map(len, tiny)) <= 10
    assert b"".join(tiny).decode()


def test_sample_budgets():
    """What a small source cannot give the others give, in proportion; nothing is asked of a share of 0."""
    assert sample_budgets([1000, 1000], [0.5, 0.5], 100) == [50, 50]
    assert sample_budgets([10, 1000, 1000], [0.5, 0.3, 0.2], 110) == [10, 60, 40]
    assert sample_budgets([10, 20, 1000], [0.4, 0.4, 0.2], 1000) == [10, 20, 970]
    assert sample_budgets([10, 20], [0.5, 0.5], 1000) == [10, 20]
    assert sample_budgets([10, 20], [0.0, 1.0], 15) == [0, 15]


def test_errors_of_the_request(tmp_path):
    """Sources of which nothing is left are named."""
    with pytest.raises(AndreaError, match=r"source s0: every document was dropped: .*no \(\d+\)"):
        do(tmp_path, keep_document=lambda document, source: "no")
    with pytest.raises(AndreaError, match="source s0: one document alone"):
        do(
            tmp_path,
            sources(1),
            keep_document=lambda document, source: None,
            open_source=lambda spec: [Document(text="x", name="a", group="a")],
        )


def test_a_full_disk_is_the_users_error(tmp_path, monkeypatch):
    """A full disk is named, nothing half written stays, and the same call goes on when there is room."""

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AndreaError, match="No space left") as caught:
        do(tmp_path, make_tokenizer=lambda request: Common(b"the"))
    assert "make room" in caught.value.hint
    monkeypatch.undo()
    do(tmp_path)
    do(tmp_path / "other")
    assert {k: v for k, v in content(tmp_path).items() if not k.startswith("other/")} == content(tmp_path / "other")


def test_a_cache_that_may_not_be_written_is_no_full_disk(tmp_path, monkeypatch):
    """Who lacks a permission is not told to make room."""

    def refuse(handle):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(AndreaError, match="Permission denied") as caught:
        do(tmp_path, make_tokenizer=lambda request: Common(b"the"))
    assert "may write" in caught.value.hint
    assert "room" not in caught.value.hint


def test_a_cache_that_cannot_be_a_folder(tmp_path):
    """A file where the cache belongs is no lack of room: the error says what it is and which variable names another."""
    (tmp_path / "cache").write_text("")
    with pytest.raises(AndreaError, match=r"cache: File exists") as caught:
        do(tmp_path / "cache")
    assert "make room" not in caught.value.hint
    assert "ANDREA_CACHE" in caught.value.hint


def test_a_tokenizer_that_does_not_load_as_saved(tmp_path):
    """A tokenizer plugin that loads something else than it saved is refused, and leaves no tokenizer behind."""

    def make(request):
        return Common(b"cat") if request.saved else Common(b"the")

    with pytest.raises(ValueError, match="not the one that was trained"):
        do(tmp_path, make_tokenizer=make)
    assert list((tmp_path / "tokenizers").iterdir()) == []
