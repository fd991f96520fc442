"""tokenizer.byte: every byte is a token; the yardstick and the smallest vocabulary."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from andrea import AndreaError, TokenizerRequest, hookimpl, plugin
from andrea.byte_level import BEGIN_NAME, CHARACTERS, known_ids

FILE, LIBRARY_FILE, CONFIG_FILE = "byte_tokenizer.json", "tokenizer.json", "tokenizer_config.json"
CONTENT = {"format": "andrea-byte", "version": 1, "size": 257, "bos": 256}


@plugin
class Byte:
    """Ids 0-255 are the bytes, 256 begins a document; nothing is trained."""

    @hookimpl
    def make_tokenizer(self, request: TokenizerRequest) -> ByteTokenizer:
        """Return the tokenizer; a saved one must be a byte tokenizer."""
        if request.saved is not None:
            check_saved(request.saved)
        return ByteTokenizer()


class ByteTokenizer:
    """Text as its bytes: 257 ids."""

    size = 257
    bos = 256
    fingerprint = hashlib.sha256(json.dumps(CONTENT, sort_keys=True).encode()).hexdigest()

    def encode(self, data: bytes) -> npt.NDArray[np.int32]:
        """Return the values of the bytes, int32 (n,)."""
        return np.frombuffer(data, dtype=np.uint8).astype(np.int32)

    def decode(self, ids: npt.ArrayLike) -> bytes:
        """Return the bytes of any ids; `bos` gives none.

        Raises
        ------
        AndreaError
            When an id is not in [0, 257).
        """
        values = known_ids(ids, self.size)
        return bytes(values[values != self.bos].astype(np.uint8))

    def save(self, folder: Path) -> None:
        """Write `byte_tokenizer.json`, and for other programs two files that are never read here."""
        (folder / FILE).write_text(json.dumps(CONTENT, indent=1) + "\n", encoding="utf-8")
        (folder / LIBRARY_FILE).write_text(build_library().to_str() + "\n", encoding="utf-8")
        (folder / CONFIG_FILE).write_text(json.dumps({"bos_token": BEGIN_NAME}) + "\n", encoding="utf-8")


def build_library() -> Any:
    """Return the tokenizer of the library `tokenizers` that has our ids: byte pairs without a pair."""
    # The library is slow to import and needed for nothing else.
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    library = Tokenizer(models.BPE({name: number for number, name in enumerate([*CHARACTERS, BEGIN_NAME])}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.Sequence([decoders.Replace(Regex("<.* .*>"), ""), decoders.ByteLevel()])
    return library


def check_saved(folder: Path) -> None:
    """Raise `AndreaError` unless a byte tokenizer was saved in `folder`."""
    path = folder / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AndreaError(
            f"{path} does not exist: no byte tokenizer was saved in {folder}",
            "name the tokenizer plugin that wrote this folder",
        ) from None
    except (OSError, ValueError) as error:
        raise AndreaError(f"{path} cannot be read: {error}", "delete the folder and prepare the data again") from error
    if content != CONTENT:
        raise AndreaError(
            f"{path} is not what tokenizer.byte writes: it holds {str(content)[:80]}",
            "delete the folder and prepare the data again",
        )
