"""Harris segments as `tokenizer.json`, which the `tokenizers` and `transformers` libraries load.

The same text gives the same ids, because every step has its counterpart there: bytes are written as characters, text
is split by the same rule, and the library's Unigram model with equal scores finds the fewest segments. Of equally
good ways it keeps the one whose last segment begins first, which is our rule of ties as well.

The id that begins a document has a name which no text can reach; only `tokenizer_config.json`, which `transformers`
reads, calls it special. Both decode it, and ids without a segment, to nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from andrea.byte_level import BEGIN_NAME, CHARACTERS, write_bytes
from andrea.plugins.tokenizer.harris_pieces import PIECE

LIBRARY_FILE, CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"
CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": BEGIN_NAME,
    # Text that happens to spell the name of the special token is text.
    "split_special_tokens": True,
    "clean_up_tokenization_spaces": False,
    "model_max_length": 1_000_000_000,
}
# What matches a single byte in our rules: a class, an escape, a space or an apostrophe.
_ONE_BYTE = re.compile(rb"\[(?:\\.|[^\]\\])+\]|\\x[0-9a-f]{2}|\\.|[ ']")


def write_library_files(folder: Path, segments: Sequence[bytes], size: int) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`."""
    (folder / LIBRARY_FILE).write_text(build_library(segments, size).to_str() + "\n", encoding="utf-8")
    (folder / CONFIG_FILE).write_text(json.dumps(CONFIG, indent=1) + "\n", encoding="utf-8")


def build_library(segments: Sequence[bytes], size: int) -> Any:
    """Return the library's tokenizer that has our ids."""
    names = [*CHARACTERS, BEGIN_NAME, *map(write_bytes, segments)]
    names += [f"<unused {number}>" for number in range(len(names), size)]
    library = Tokenizer(models.Unigram([(name, -1.0) for name in names]))
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            pre_tokenizers.Split(Regex(for_characters(PIECE)), "isolated"),
        ]
    )
    library.decoder = decoders.Sequence([decoders.Replace(Regex("<.* .*>"), ""), decoders.ByteLevel()])
    return library


def for_characters(rule: bytes) -> str:
    """Return a rule about bytes as one about the characters that stand for them."""
    return _ONE_BYTE.sub(lambda found: _any_of(found[0]), rule).decode()


def _any_of(single: bytes) -> bytes:
    """Return a class of the characters whose bytes match."""
    match = re.compile(single).fullmatch
    codes = [ord(CHARACTERS[value]) for value in range(256) if match(bytes([value]))]
    return b"[%b]" % b"".join(b"\\x{%x}" % code for code in codes)
