"""The exported folder in `transformers`: the same ids, the same logits, the same text. Needs torch and transformers."""

from __future__ import annotations

import numpy as np
import pytest

from andrea.engine import GenerateOptions
from andrea.export import export
from tests.export.family import SHAPES, TEXTS, ids_of, make_portable, open_engine, our_logits

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

torch.set_num_threads(1)  # two that wait for each other on a busy machine take ten times as long

MODELS = [(name, tied) for name in SHAPES for tied in (True, False)]


@pytest.fixture(scope="module", params=MODELS, ids=[f"{name}-{'tied' if tied else 'untied'}" for name, tied in MODELS])
def pair(request, tmp_path_factory):
    """Return a model of the family and its folder."""
    portable = make_portable(*request.param)
    return portable, export(portable, "hf", tmp_path_factory.mktemp("hf") / "model")


@pytest.fixture(scope="module")
def theirs(pair):
    """Return the model that transformers loads, in float32."""
    transformers.logging.disable_progress_bar()
    model, told = transformers.AutoModelForCausalLM.from_pretrained(
        pair[1], dtype=torch.float32, output_loading_info=True
    )
    assert not any(told.values()), told  # nothing missing, nothing unexpected
    return model.eval()


def test_logits_are_ours(pair, theirs):
    """50 real texts, each at every position: float32 in another order of sums, so 1e-4 apart at most."""
    portable, _ = pair
    texts = TEXTS[:50]
    assert len(texts) == 50
    for number, text in enumerate(texts):
        count = portable.model.context if number == 7 and portable.model.d_model < 500 else 40
        ids = ids_of(portable, text, count)
        assert len(ids) == count
        with torch.no_grad():
            got = theirs(torch.tensor(ids[None], dtype=torch.long)).logits[0].numpy()
        want = our_logits(portable, ids)
        assert got.shape == want.shape == (count, portable.tokenizer.size)
        assert np.abs(want).max() > 3  # logits that say something
        assert np.abs(got - want).max() < 1e-4


def test_greedy_text_is_ours(pair, theirs):
    """64 tokens, after texts of several lengths."""
    portable, _ = pair
    engine = open_engine(portable)
    prompts = [ids_of(portable, text, 3 + 9 * number) for number, text in enumerate(TEXTS[50:53])]
    ours = engine.generate(prompts, GenerateOptions(64, temperature=0))
    for prompt, want in zip(prompts, ours, strict=True):
        given = torch.tensor(prompt[None], dtype=torch.long)
        got = theirs.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=64, do_sample=False, eos_token_id=None
        )
        assert len(want) == 64
        assert got[0, len(prompt) :].tolist() == want.tolist()
    engine.close()


def test_ids_are_ours(pair):
    """AutoTokenizer gives our ids behind the one that begins a document, and gives every text back."""
    portable, folder = pair
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    bos = portable.tokenizer.bos
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, len(tokenizer)) == (bos, bos, portable.tokenizer.size)
    for text in [*TEXTS[:20], "", "na\u00efve \u2014 \U0001f600 <begin of document> x"]:
        ids = tokenizer(text)["input_ids"]
        assert ids == [bos, *portable.tokenizer.encode(text.encode()).tolist()]
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_a_pipeline_writes(pair):
    """What most people do first works, and begins as greedy text of ours does."""
    portable, folder = pair
    transformers.logging.set_verbosity_error()
    write = transformers.pipeline("text-generation", model=str(folder), device="cpu")
    text = write("def read(", max_new_tokens=8, do_sample=False, return_full_text=False)[0]["generated_text"]
    prompt = np.append(portable.tokenizer.bos, portable.tokenizer.encode(b"def read("))
    engine = open_engine(portable)
    ids = engine.generate([prompt], GenerateOptions(8, temperature=0, stop=(portable.tokenizer.bos,)))[0]
    engine.close()
    assert text == portable.tokenizer.decode(ids).decode(errors="replace")
