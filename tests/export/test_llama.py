"""The exported file in llama.cpp: it loads and goes on with the same ids. Needs xllamacpp or llama-cpp-python."""

from __future__ import annotations

import importlib.util
import json
import urllib.request

import numpy as np
import pytest

from andrea.engine import GenerateOptions
from andrea.export import export
from andrea.trained import open_model
from tests.export.family import SHAPES, TEXTS, ids_of, make_portable, open_engine, our_logits

BINDINGS = [name for name in ("xllamacpp", "llama_cpp") if importlib.util.find_spec(name)]
if not BINDINGS:
    pytest.skip("llama.cpp is not installed", allow_module_level=True)

F32 = 0  # ggml's number of the type
VERSE = """When the wind is on the water and the rain on the shore,
the seed in the ground and the leaf at the door,
then the root and the stem and the light on the sea
are the words that are written for you and for me.

"""


class Server:
    """A model in xllamacpp, asked over its port on this machine."""

    def __init__(self, path):
        import xllamacpp

        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.n_ctx, parameters.n_parallel, parameters.n_gpu_layers = 256, 1, 0
        parameters.cpuparams.n_threads, parameters.verbosity, parameters.warmup = 1, 0, False
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
            str(path), n_ctx=256, n_threads=1, verbose=False, type_k=F32, type_v=F32, n_gpu_layers=0
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
@pytest.mark.parametrize(
    ("name", "tied", "dtype", "tolerance"),
    [*((name, tied, "float32", 0.02) for name in SHAPES for tied in (True, False)), ("12M", True, "float16", 0.05)],
)
def test_the_family_goes_on_with_our_ids(name, tied, dtype, tolerance, bindings, tmp_path):
    """64 ids after texts of several lengths, up to a place where two ids are as good as equal.

    llama.cpp rounds what GELU gives to float16, so its logits are some thousandths off ours, and more with weights in
    float16. These weights are random: the two best ids are sometimes closer than that, and then either may come.
    """
    portable = make_portable(name, tied)
    theirs = OPEN[bindings](export(portable, "gguf", tmp_path / "model.gguf", dtype))
    prompts = [ids_of(portable, text, 3 + 9 * number) for number, text in enumerate(TEXTS[50:53])]
    engine = open_engine(portable)
    ours = engine.generate(prompts, GenerateOptions(64, temperature=0))
    engine.close()
    same = 0
    for prompt, want in zip(prompts, ours, strict=True):
        got = theirs.go_on(prompt, 64)
        agreed = next((n for n, pair in enumerate(zip(got, want, strict=True)) if pair[0] != pair[1]), 64)
        same += agreed
        if agreed < 64:
            logits = our_logits(portable, [*prompt, *want[:agreed]])[-1]
            assert logits[want[agreed]] - logits[got[agreed]] < tolerance
    assert same >= 64


@pytest.mark.parametrize("bindings", BINDINGS)
@pytest.mark.parametrize("tied", ["true", "false"])
def test_a_trained_model_goes_on_with_our_ids(andrea, current_folder, tied, bindings):
    """64 ids after every prompt, exactly: what a model has learned by heart leaves no two ids as good as equal."""
    (current_folder / "verse.jsonl").write_text("\n".join(json.dumps({"text": VERSE * (3 + n % 3)}) for n in range(40)))
    value = {
        "name": "verse",
        "model": {"n_layer": 2, "n_head": 2, "d_model": 64, "context": 128},
        "schedule": {"steps": 150, "warmup_steps": 10, "peak": 1e-2},
        "sampling": {"sample_every": 0},
        "evaluation": {"eval_every": 0},
        "sources": [{"name": "verse", "reader": "source.jsonl", "options": {"path": "verse.jsonl"}}],
        "plugins": {"tokenizer.harris": {"segments": 40}},
    }
    (current_folder / "verse.json").write_text(json.dumps(value))
    trained = andrea("run", "verse.json", "--set", f"model.tie_embeddings={tied}", "--out", "run", "--device", "cpu")
    assert trained.code == 0, trained.err
    assert andrea("export", "run", "--format", "gguf", "--out", "model.gguf").code == 0
    theirs = OPEN[bindings]("model.gguf")
    model = open_model(current_folder / "run", None, "cpu", lambda line: None)
    for prompt in ("", "When", "and the ", "sea ", "rain on "):
        ids = model.begin(prompt)
        want = model.engine.generate([ids], GenerateOptions(64, temperature=0))[0].tolist()
        assert model.tokenizer.bos not in want
        assert len(set(want)) > 10
        assert theirs.go_on(ids, 64) == want


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
