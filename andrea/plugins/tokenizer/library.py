"""tokenizer.library: the `tokenizer.json` of another model, to go on with that model on its own ids.

Only tokenizers that lose nothing can be taken: those that write every byte as a character, as GPT-2's does and most
since. Tokens that stand for no bytes, such as the one that begins a document, can then not be reached by text: they are
taken out of the library's sight, and a text that spells one of their names is split like any other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from andrea import AndreaError, TokenizerRequest, hookimpl, option, plugin
from andrea.byte_level import CHARACTERS, VALUES, known_ids, utf8_runs

FORMAT = {"format": "andrea-library", "version": 1}
LIBRARY_FILE, CONFIG_FILE, CHECK_FILE = "tokenizer.json", "tokenizer_config.json", "library.json"
# Spaces of all kinds, accents on their own, letters of any script, symbols, and what normalising would change.
TRIAL = (
    "a  b\n\n\tc' 1234567 \u00e9e\u0301 \u212b \ufb01 \u4f60\u597d \u0430\u0431 \u2014 \U0001f600\x00 Aa \u200b\r\n "
)


@plugin
class Library:
    """A byte-level tokenizer.json made elsewhere; nothing is trained."""

    path: str = option(
        "", help="folder with tokenizer.json, and tokenizer_config.json for the token that begins", path=True
    )

    @hookimpl
    def make_tokenizer(self, request: TokenizerRequest) -> LibraryTokenizer:
        """Return the tokenizer of the folder, or the saved one.

        Raises
        ------
        AndreaError
            When a file is missing or damaged, or the tokenizer can lose text.
        """
        if request.saved is not None:
            return load(request.saved)
        if not self.path:
            raise AndreaError(
                "tokenizer.library has no path", "--set tokenizer.library.path=FOLDER, which has a tokenizer.json"
            )
        folder = Path(self.path)
        content = read_json(folder / LIBRARY_FILE)
        kept, specials = without_specials(content, str(folder / LIBRARY_FILE))
        return LibraryTokenizer(kept, find_begin(folder, kept, specials), specials, str(folder / LIBRARY_FILE))


class LibraryTokenizer:
    """Text as the library's tokens.

    Parameters
    ----------
    content
        Of a ``tokenizer.json`` without special tokens.
    bos
        The id that stands before every document.
    specials
        Tokens that stand for no bytes.
    where
        It was found, for errors.

    Raises
    ------
    AndreaError
        When it can lose text.
    """

    def __init__(self, content: Any, bos: int, specials: Sequence[str], where: str) -> None:
        try:
            self._library = tokenizers.Tokenizer.from_str(json.dumps(content))
        except Exception as error:  # the library has no class of its own for it
            raise AndreaError(f"{where} is no tokenizer of the library tokenizers: {error}") from None
        self.bos = bos
        self._content, self._specials = content, list(specials)
        self._pieces, self._bytes = token_bytes(content["model"]["vocab"], {*specials}, where)
        self._pieces[bos] = b""
        self.size = len(self._pieces)
        decisive = json.dumps([FORMAT, content, bos, self._specials], sort_keys=True)
        self.fingerprint = hashlib.sha256(decisive.encode()).hexdigest()
        trial = TRIAL.encode()
        if self.decode(self.encode(trial)) != trial:
            raise loses_text(where, "a text comes back as another one")

    def encode(self, data: bytes) -> npt.NDArray[np.int32]:
        """Return the ids of any bytes, int32 (n,)."""
        parts: list[npt.NDArray[np.int32]] = []
        for text, raw in utf8_runs(data):
            if raw:
                parts.append(self._bytes[np.frombuffer(raw, dtype=np.uint8)])
            else:
                parts.append(np.array(self._library.encode(text, add_special_tokens=False).ids, dtype=np.int32))
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)

    def decode(self, ids: npt.ArrayLike) -> bytes:
        """Return the bytes of any ids; `bos` and other tokens that stand for no text give none.

        Raises
        ------
        AndreaError
            When an id is not in [0, size).
        """
        return b"".join(self._pieces[known_ids(ids, self.size)].tolist())

    def save(self, folder: Path) -> None:
        """Write ``tokenizer.json``, and ``library.json`` with what begins a document and its checksum."""
        content = json.dumps(self._content, indent=1).encode() + b"\n"
        (folder / LIBRARY_FILE).write_bytes(content)
        check = {**FORMAT, "bos": self.bos, "specials": self._specials, "fingerprint": self.fingerprint}
        (folder / CHECK_FILE).write_text(json.dumps(check, indent=1) + "\n", encoding="utf-8")


def load(folder: Path) -> LibraryTokenizer:
    """Load what `LibraryTokenizer.save` wrote.

    Raises
    ------
    AndreaError
        When a file is missing, damaged or not ours.
    """
    check, path = read_json(folder / CHECK_FILE), folder / LIBRARY_FILE
    if not isinstance(check, dict) or {key: check.get(key) for key in FORMAT} != FORMAT:
        raise AndreaError(f"{folder / CHECK_FILE} is not of the format {FORMAT}", "take the folder from its run")
    try:
        tokenizer = LibraryTokenizer(read_json(path), check["bos"], check["specials"], str(path))
    except (KeyError, TypeError, IndexError) as error:
        raise AndreaError(f"{path} is damaged: {error}", "take the folder from its run") from None
    if tokenizer.fingerprint != check.get("fingerprint"):
        raise AndreaError(f"{path} is damaged: it is not what was saved", "take the folder from its run")
    return tokenizer


# -- what a tokenizer.json says ----------------------------------------------------------------------------------------


def without_specials(content: Any, where: str) -> tuple[dict[str, Any], list[str]]:
    """Return the content without what the library adds to text, and its special tokens, which keep their ids."""
    try:
        vocabulary = {str(token): int(number) for token, number in content["model"]["vocab"].items()}
        added = {str(one["content"]): int(one["id"]) for one in content.get("added_tokens") or []}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise AndreaError(
            f"{where} has no vocabulary from token to id", "a byte-level BPE is needed, as GPT-2's"
        ) from None
    if content.get("normalizer"):
        raise loses_text(where, "it normalises text")
    parts = {key: content.get(key) for key in ("version", "pre_tokenizer", "decoder")}
    model = {**content["model"], "vocab": {**vocabulary, **added}}
    return {**parts, "added_tokens": [], "normalizer": None, "post_processor": None, "model": model}, sorted(added)


def token_bytes(vocabulary: dict[str, int], specials: set[str], where: str) -> tuple[Any, npt.NDArray[np.int32]]:
    """Return the bytes of every id, and the id of every byte."""
    if missing := [character for character in CHARACTERS if character not in vocabulary]:
        raise loses_text(where, f"{len(missing)} of the 256 bytes have no token")
    pieces = np.full(max(vocabulary.values()) + 1, b"", dtype=object)
    for token, number in vocabulary.items():
        if token not in specials and all(character in VALUES for character in token):
            pieces[number] = bytes(VALUES[character] for character in token)
    return pieces, np.array([vocabulary[character] for character in CHARACTERS], dtype=np.int32)


def find_begin(folder: Path, content: dict[str, Any], specials: Sequence[str]) -> int:
    """Return the id of the token that begins a document, or else of the one that ends it, which is as good.

    Raises
    ------
    AndreaError
        When the configuration names neither, and there is not one special token alone.
    """
    path = folder / CONFIG_FILE
    config = read_json(path) if path.exists() else {}
    names = [config.get(key) for key in ("bos_token", "eos_token")] if isinstance(config, dict) else []
    names = [name.get("content") if isinstance(name, dict) else name for name in names]
    for name in [*names, *(specials if len(specials) == 1 else [])]:
        if isinstance(name, str) and name in content["model"]["vocab"]:
            return int(content["model"]["vocab"][name])
    raise AndreaError(
        f"{folder} does not say which token begins a document",
        f'write it into {path}: {{"bos_token": "<|endoftext|>"}}',
    )


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AndreaError(f"{path} does not exist", "give a folder with the tokenizer of a model") from None
    except (OSError, ValueError, RecursionError) as error:
        raise AndreaError(f"{path} cannot be read: {error}", "take the file from where the model was made") from error


def loses_text(where: str, why: str) -> AndreaError:
    """Return the error for a tokenizer whose text may not come back."""
    return AndreaError(
        f"{where} cannot be taken, since {why}",
        "only byte-level tokenizers keep every text, as GPT-2's, without a normalizer and without a prefixed space",
    )
