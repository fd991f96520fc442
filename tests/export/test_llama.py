"""The exported file in llama.cpp: it loads and goes on with the same ids. Needs xllamacpp or llama-cpp-python."""

from __future__ import annotations

import importlib.util
import json
import urllib.request

import numpy as np
import pytest

from andrea.engine import GenerateOptions
from andrea.export import export
from tests.export.family import SHAPES, TEXTS, ids_of, make_portable, open_engine

BINDINGS = [name for name in ("xllamacpp", "llama_cpp") if importlib.util.find_spec(name)]
if not BINDINGS:
    pytest.skip("llama.cpp is not installed", allow_module_level=True)

MODELS = [(name, tied) for name in SHAPES for tied in (True, False)]
F32 = 0  # ggml's number of the type


class Server:
    """A model in xllamacpp, asked over its port on this machine."""

    def __init__(self, path):
        import xllamacpp

        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.n_ctx, parameters.n_parallel, parameters.n_gpu_layers = 256, 1, 0
        parameters.cpuparams.n_threads, parameters.verbosity, parameters.warmup = 2, 0, False
        parameters.cache_type_k = parameters.cache_type_v = F32
        self._server = xllamacpp.Server(parameters)

    def _ask(self, path, value):
        request = urllib.request.Request(
            self._server.listening_address + path, json.dumps(value).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def go_on(self, ids, count):
        """Return the likeliest ids that follow."""
        how = {"n_predict": count, "temperature": 0, "ignore_eos": False, "return_tokens": True, "cache_prompt": False}
        return self._ask("/completion", {"prompt": [int(one) for one in ids], **how})["tokens"]

    def split(self, text):
        """Return the ids of a text."""
        return self._ask("/tokenize", {"content": text, "add_special": True})["tokens"]

    def join(self, ids):
        """Return the text of some ids."""
        return self._ask("/detokenize", {"tokens": [int(one) for one in ids]})["content"]


class Llama:
    """A model in llama-cpp-python."""

    def __init__(self, path):
        import llama_cpp

        self._model = llama_cpp.Llama(
            str(path), n_ctx=256, n_threads=2, verbose=False, type_k=F32, type_v=F32, n_gpu_layers=0
        )

    def go_on(self, ids, count):
        """Return the likeliest ids that follow."""
        following = self._model.generate([int(one) for one in ids], top_k=1, temp=0.0, repeat_penalty=1.0)
        return [one for _, one in zip(range(count), following, strict=False)]

    def split(self, text):
        """Return the ids of a text."""
        return self._model.tokenize(text.encode(), add_bos=True, special=True)

    def join(self, ids):
        """Return the text of some ids."""
        return self._model.detokenize([int(one) for one in ids]).decode(errors="replace")


OPEN = {"xllamacpp": Server, "llama_cpp": Llama}


@pytest.mark.parametrize("bindings", BINDINGS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("name", "tied"), MODELS)
def test_it_goes_on_with_our_ids(name, tied, dtype, bindings, tmp_path):
    """64 ids after texts of several lengths; with float16 weights the first of them.

    llama.cpp rounds GELU to float16, so a logit is a few thousandths off. Where two ids are closer than that in our
    own numbers, either may come; the draws of these weights leave no such place in float32.
    """
    portable = make_portable(name, tied)
    theirs = OPEN[bindings](export(portable, "gguf", tmp_path / "model.gguf", dtype))
    count = 64 if dtype == "float32" else 4
    prompts = [ids_of(portable, text, 3 + 9 * number) for number, text in enumerate(TEXTS[50:54])]
    engine = open_engine(portable)
    ours = engine.generate(prompts, GenerateOptions(count, temperature=0))
    engine.close()
    for prompt, want in zip(prompts, ours, strict=True):
        assert theirs.go_on(prompt, count) == want.tolist()


@pytest.mark.parametrize("bindings", BINDINGS)
def test_text_there(bindings, tmp_path):
    """Every text comes back, begins a document if it says so, and is mostly cut as here."""
    portable = make_portable("12M")
    theirs = OPEN[bindings](export(portable, "gguf", tmp_path / "model.gguf"))
    same = count = 0
    for text in [*TEXTS[:20], "na\u00efve \u2014 \U0001f600"]:
        text = text[:2000]
        ids = theirs.split(f"<begin of document>{text}")
        assert ids[0] == portable.tokenizer.bos
        assert b"".join(portable.tokenizer.decode([one]) for one in ids).decode() == text
        assert theirs.join(ids[1:]) == text
        same += len(_spans(portable, ids[1:]) & _spans(portable, portable.tokenizer.encode(text.encode())))
        count += len(ids) - 1
    assert same / count > 0.7


def _spans(portable, ids):
    ends = np.cumsum([len(portable.tokenizer.decode([one])) for one in ids]).tolist()
    return {*zip([0, *ends], ends, strict=False)}
