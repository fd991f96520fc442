"""tokenizer.bpe: byte pair encoding, trained and applied by the `tokenizers` library.

Sennrich, Haddow, Birch (2016), "Neural machine translation of rare words with subword units", on bytes. The library
writes every byte as one printable character, splits text as GPT-2 did, and merges inside the pieces. It takes text,
not bytes, so what is not UTF-8 is cut out and becomes byte ids: nothing is lost. No piece goes on beyond a space that
something visible follows, so what the library made of the text between two such spaces is remembered.

Ids: 0-255 the bytes, 256 begins a document, 257 and up the merged segments in the order in which they were learned.
The library's own vocabulary has the same numbers, so `tokenizer.json` serves other programs as it is. Ids that no text
can reach have names with a space in them, which the library never produces: it writes a space as another character.
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from andrea import AndreaError, TokenizerRequest, hookimpl, option, plugin
from andrea.byte_level import BEGIN_NAME, CHARACTERS, VALUES, known_ids, utf8_runs

FORMAT = {"format": "andrea-bpe", "version": 1}
MODEL_FILE, CHECK_FILE = "tokenizer.json", "bpe.json"
MOST_SEGMENTS = 1_000_000  # as of tokenizer.harris
# What is white space beyond ASCII is the library's to say, so only a space before a visible ASCII character counts.
split_words = re.compile(" (?=[!-~])").split

Merges = list[tuple[str, str]]


@plugin
class BytePairs:
    """Byte-level BPE with the vocabulary plan of the Harris tokenizer, for comparison."""

    segments: int = option(4096, help="segments beside the 256 bytes and the id that begins a document")
    sample_bytes: int = option(36_000_000, help="training text that is read, in bytes")

    @hookimpl
    def make_tokenizer(self, request: TokenizerRequest) -> BytePairTokenizer:
        """Return the saved tokenizer, or train one on the sample.

        Raises
        ------
        AndreaError
            When the saved files are missing, damaged or foreign, or an option makes no sense.
        """
        if request.saved is not None:
            return load(request.saved)
        if not 0 <= self.segments <= MOST_SEGMENTS or self.sample_bytes < 1:
            raise AndreaError(
                f"tokenizer.bpe cannot learn {self.segments} segments from {self.sample_bytes} bytes",
                f"set tokenizer.bpe.segments to 0 to {MOST_SEGMENTS} and tokenizer.bpe.sample_bytes to 1 or more",
            )
        return BytePairTokenizer(learn_merges(request.sample(self.sample_bytes), self.segments), self.segments)


class BytePairTokenizer:
    """Text as byte pair segments.

    Parameters
    ----------
    merges
        Pairs to merge, in the library's byte alphabet, best first; at most `segments`.
    segments
        Ids kept for merges; those without a merge are never used and decode to no bytes.
    """

    bos = 256

    def __init__(self, merges: Merges, segments: int) -> None:
        self.size = 257 + segments
        vocabulary = number_tokens(merges, self.size)
        self._library = build_library(vocabulary, merges)
        self._words = Words(self._library)
        self._pieces = np.empty(self.size, dtype=object)
        self._pieces[:] = [token_bytes(token) for token in vocabulary]
        decisive = json.dumps([FORMAT, merges, segments], sort_keys=True)
        self.fingerprint = hashlib.sha256(decisive.encode()).hexdigest()

    def encode(self, data: bytes) -> npt.NDArray[np.int32]:
        """Return the ids of any bytes, int32 (n,)."""
        parts: list[npt.NDArray[np.int32]] = []
        for text, raw in utf8_runs(data):
            parts.append(np.frombuffer(raw, dtype=np.uint8).astype(np.int32) if raw else self._encode_text(text))
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)

    def _encode_text(self, text: str) -> npt.NDArray[np.int32]:
        first, *words = split_words(text)
        begin = array("i", self._library.encode(first).ids).tobytes()
        return np.frombuffer(begin + b"".join(map(self._words.__getitem__, words)), dtype=np.int32).copy()

    def decode(self, ids: npt.ArrayLike) -> bytes:
        """Return the bytes of any ids; `bos` and ids without a merge give none.

        Raises
        ------
        AndreaError
            When an id is not in [0, size).
        """
        return b"".join(self._pieces[known_ids(ids, self.size)].tolist())

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json`, as the library reads it, and `bpe.json` with its checksum."""
        content = self._library.to_str(pretty=True).encode()
        (folder / MODEL_FILE).write_bytes(content)
        check = {**FORMAT, "fingerprint": self.fingerprint, "sha256": hashlib.sha256(content).hexdigest()}
        (folder / CHECK_FILE).write_text(json.dumps(check, indent=1) + "\n", encoding="utf-8")


class Words(dict[str, bytes]):
    """The ids of words with a space before them, int32 as bytes; what is missing is asked of the library.

    Parameters
    ----------
    library
        Encodes text.
    most
        Words that are kept; then it begins anew. Long ones are not kept, so memory is bounded on any text.
    longest
        Characters of a word that is kept.
    """

    def __init__(self, library: Any, most: int = 1 << 18, longest: int = 32) -> None:
        super().__init__()
        self._library, self._most, self._longest = library, most, longest

    def __missing__(self, word: str) -> bytes:
        """Ask the library."""
        found = array("i", self._library.encode(" " + word).ids).tobytes()
        if len(word) <= self._longest:
            if len(self) >= self._most:
                self.clear()
            self[word] = found
        return found


# -- training --------------------------------------------------------------------------------------------------------


def learn_merges(documents: Iterable[bytes], segments: int) -> Merges:
    """Return at most `segments` merges, in the order in which the library learned them.

    A pair seen once saves one byte in the sample and nothing elsewhere, so it is not learned.
    """
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=256 + segments,
        min_frequency=2,
        initial_alphabet=list(CHARACTERS),
        show_progress=False,
    )
    library.train_from_iterator((text for data in documents for text, raw in utf8_runs(data) if text), trainer)
    return [tuple(pair) for pair in json.loads(library.to_str())["model"]["merges"]]


def number_tokens(merges: Merges, size: int) -> dict[str, int]:
    """Return the library's vocabulary with our ids: bytes, begin of document, segments, ids never used."""
    tokens = [*CHARACTERS, BEGIN_NAME, *(left + right for left, right in merges)]
    tokens += [f"<unused {number}>" for number in range(len(tokens), size)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != size:
        raise ValueError(f"two merges give one token, or there are more merges than the {size - 257} ids for them")
    return vocabulary


def build_library(vocabulary: dict[str, int], merges: Merges) -> Any:
    """Return the library's tokenizer for a vocabulary that has our ids."""
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    return library


def token_bytes(token: str) -> bytes:
    """Return the bytes of a token; names of ids that text cannot reach have none."""
    return b"" if " " in token else bytes(VALUES[character] for character in token)


# -- loading ---------------------------------------------------------------------------------------------------------


def load(folder: Path) -> BytePairTokenizer:
    """Load what `BytePairTokenizer.save` wrote.

    Raises
    ------
    AndreaError
        When a file is missing, damaged or not ours.
    """
    check = read_json(folder / CHECK_FILE)
    if not isinstance(check, dict) or {key: check.get(key) for key in FORMAT} != FORMAT:
        raise damaged(folder / CHECK_FILE, f"it is not of the format {FORMAT}")
    path = folder / MODEL_FILE
    content = read_json(path)
    if hashlib.sha256(path.read_bytes()).hexdigest() != check.get("sha256"):
        raise damaged(path, f"its checksum is not the one in {CHECK_FILE}")
    try:
        merges = [(str(left), str(right)) for left, right in content["model"]["merges"]]
        tokenizer = BytePairTokenizer(merges, len(content["model"]["vocab"]) - 257)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, f"it is no byte-level BPE of ours ({error})") from error
    if tokenizer.fingerprint != check.get("fingerprint"):
        raise damaged(path, f"its merges are not those whose fingerprint stands in {CHECK_FILE}")
    return tokenizer


def read_json(path: Path) -> Any:
    """Read a JSON file of a saved tokenizer."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AndreaError(
            f"{path} does not exist: no BPE tokenizer was saved in {path.parent}",
            "name the tokenizer plugin that wrote this folder",
        ) from None
    except (OSError, ValueError) as error:
        raise damaged(path, str(error)) from error


def damaged(path: Path, problem: str) -> AndreaError:
    """Return the error for a file that cannot be trusted."""
    return AndreaError(f"{path} is damaged or foreign: {problem}", "delete the folder and prepare the data again")
