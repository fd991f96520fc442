"""What an export writes: every number of it, read back without the code that wrote it."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from attrs import evolve

from andrea.checkpoint import read_checkpoint
from andrea.engine.model import ModelConfig, layout
from andrea.errors import AndreaError
from andrea.export import export
from andrea.export.gguf_file import vocabulary
from andrea.export.hf import hf_config
from andrea.export.portable import Portable
from andrea.rng import Draws
from andrea.trained import find_model
from tests.export.family import our_logits

safetensors = pytest.importorskip("safetensors.numpy")
gguf = pytest.importorskip("gguf")

CPU = ("--device", "cpu")


@pytest.fixture
def trained(andrea, experiment, current_folder):
    """Return the folder of a tiny run of 20 steps."""
    ended = andrea("run", experiment, "--out", "run", "--steps", 20, *CPU)
    assert ended.code == 0, ended.err
    return current_folder / "run"


@pytest.fixture(params=[(True, True), (False, True), (True, False)], ids=["tied", "untied", "without norms"])
def portable(request, trained):
    """Return a model of two layers with numbers of its own in every place."""
    tied, affine = request.param
    found = find_model(trained, None, lambda line: None)
    model = ModelConfig(2, 2, 8, context=16, tie_embeddings=tied, norm_affine=affine)
    size = layout(model, found.tokenizer.size)[-1].end
    engine = {**found.snapshot.engine, "weights": Draws(1, "weights").normal(size)}
    found = evolve(found, config=evolve(found.config, model=model), snapshot=evolve(found.snapshot, engine=engine))
    return Portable.of(found)


def gpt2(weights, heads, ids):
    """Return the logits of GPT-2 as its paper and its code have it, in float64, from tensors by their names there."""
    w = {name.removeprefix("transformer."): value.astype(np.float64) for name, value in weights.items()}

    def norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x, name):
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["wte.weight"][ids] + w["wpe.weight"][: len(ids)]
    mask = np.where(np.tri(len(ids)) > 0, 0, -np.inf)
    for i in range(sum(name.endswith("ln_1.weight") for name in w)):
        q, k, v = np.split(linear(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn"), 3, axis=1)
        parts = []
        for one in zip(*(np.split(part, heads, axis=1) for part in (q, k, v)), strict=True):
            scores = np.exp(one[0] @ one[1].T / np.sqrt(one[0].shape[1]) + mask)
            parts.append(scores / scores.sum(1, keepdims=True) @ one[2])
        x = x + linear(np.concatenate(parts, axis=1), f"h.{i}.attn.c_proj")
        y = linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")
        y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        x = x + linear(y, f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ w.get("lm_head.weight", w["wte.weight"]).T


IDS = [256, 3, 250, 0, 77, 77, 9]


def test_the_folder_is_the_same_network(portable, tmp_path):
    """A GPT-2 written for this test gives our logits from the folder's tensors."""
    folder = export(portable, "hf", tmp_path / "model")
    weights = safetensors.load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    got = gpt2(weights, config["n_head"], IDS)
    # float32 against float64 with weights of size 1
    np.testing.assert_allclose(our_logits(full(portable), IDS), got, rtol=1e-4, atol=1e-4)
    assert ("lm_head.weight" in weights) == (not portable.model.tie_embeddings)
    assert config["tie_word_embeddings"] == portable.model.tie_embeddings
    assert not any(
        value.any() for name, value in weights.items() if name.endswith(("c_attn.bias", "c_proj.bias", "c_fc.bias"))
    )
    assert all(value.dtype == np.float32 for value in weights.values())


def full(portable):
    """Return a model whose norms have parameters, as exports have them."""
    return evolve(portable, model=evolve(portable.model, norm_affine=True))


def test_the_folder_says_what_it_is(portable, tmp_path):
    """Shapes, the id that begins and ends documents, the tokenizer's own files, and a card for people."""
    folder = export(portable, "hf", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    assert config == hf_config(portable, "float32")
    assert (config["model_type"], config["vocab_size"], config["n_positions"]) == ("gpt2", 257, 16)
    assert config["activation_function"] == "gelu_new"
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 256
    assert json.loads((folder / "tokenizer_config.json").read_text())["bos_token"] == "<begin of document>"
    assert (folder / "andrea/byte_tokenizer.json").is_file()
    card = (folder / "README.md").read_text()
    assert f"{portable.parameters:,} parameters" in card
    assert "one, two" in card


def test_the_library_puts_the_begin_before_a_text(portable, tmp_path):
    """The library's encoding of a text is ours, begin of document included, and a pair has one begin."""
    import tokenizers

    folder = export(portable, "hf", tmp_path / "model")
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert library.encode("ab").ids == [256, 97, 98]
    assert library.encode("ab", "c").ids == [256, 97, 98, 99]
    assert library.encode("ab", add_special_tokens=False).ids == [97, 98]


def test_a_tokenizer_that_other_programs_do_not_know(portable, tmp_path):
    """The folder then has no tokenizer.json, and the card says to give ids."""

    class Own:
        size, bos, fingerprint = 257, 256, "x"

        def decode(self, ids):
            return bytes(i for i in ids if i < 256)

        def save(self, folder):
            (folder / "own.txt").write_text("mine")

    folder = export(evolve(portable, tokenizer=Own()), "hf", tmp_path / "model")
    assert not (folder / "tokenizer.json").exists()
    assert (folder / "andrea/own.txt").read_text() == "mine"
    assert "give ids" in (folder / "README.md").read_text()
    assert vocabulary(evolve(portable, tokenizer=Own())).model == "rwkv"


# -- gguf --------------------------------------------------------------------------------------------------------------


def field(reader, name):
    """Return a value of a GGUF file."""
    return reader.get_field(name).contents()


def test_the_gguf_file_is_the_same_network(portable, tmp_path):
    """Read by the package that defines the format, renamed here, the tensors give our logits."""
    reader = gguf.GGUFReader(export(portable, "gguf", tmp_path / "model.gguf"))
    found = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    weights = {
        "wte.weight": found["token_embd.weight"],
        "wpe.weight": found["position_embd.weight"],
        "ln_f.weight": found["output_norm.weight"],
        "ln_f.bias": found["output_norm.bias"],
    }
    if not portable.model.tie_embeddings:
        weights["lm_head.weight"] = found["output.weight"]
    for i in range(portable.model.n_layer):
        for theirs, name in (("attn_norm", "ln_1"), ("ffn_norm", "ln_2")):
            for kind in ("weight", "bias"):
                weights[f"h.{i}.{name}.{kind}"] = found[f"blk.{i}.{theirs}.{kind}"]
        for theirs, name in (
            ("attn_qkv", "attn.c_attn"),
            ("attn_output", "attn.c_proj"),
            ("ffn_up", "mlp.c_fc"),
            ("ffn_down", "mlp.c_proj"),
        ):
            weights[f"h.{i}.{name}.weight"] = found[f"blk.{i}.{theirs}.weight"].T
            weights[f"h.{i}.{name}.bias"] = found[f"blk.{i}.{theirs}.bias"]
    got = gpt2(weights, field(reader, "gpt2.attention.head_count"), IDS)
    np.testing.assert_allclose(our_logits(full(portable), IDS), got, rtol=1e-4, atol=1e-4)
    assert len(found) == len(weights)
    assert all(tensor.tensor_type == gguf.GGMLQuantizationType.F32 for tensor in reader.tensors)


def test_the_gguf_file_says_what_it_is(portable, tmp_path):
    """The keys that llama.cpp asks for."""
    reader = gguf.GGUFReader(export(portable, "gguf", tmp_path / "model.gguf"))
    want = {
        "general.architecture": "gpt2",
        "general.file_type": 0,
        "gpt2.context_length": 16,
        "gpt2.embedding_length": 8,
        "gpt2.block_count": 2,
        "gpt2.feed_forward_length": 32,
        "tokenizer.ggml.bos_token_id": 256,
        "tokenizer.ggml.eos_token_id": 256,
        "tokenizer.ggml.model": "rwkv",
    }
    assert {name: field(reader, name) for name in want} == want
    assert field(reader, "gpt2.attention.layer_norm_epsilon") == np.float32(1e-5)
    tokens = field(reader, "tokenizer.ggml.tokens")
    assert tokens[:2] == [r"\x00", r"\x01"]
    assert tokens[256] == "<begin of document>"
    assert field(reader, "tokenizer.ggml.token_type") == [1] * 256 + [3]


def test_tokens_of_every_tokenizer(tmp_path):
    """Merges where there are merges, else the bytes; ids that stand for nothing are of the type for those."""
    from andrea import TokenizerRequest
    from andrea.plugins.tokenizer.bpe import BytePairs
    from andrea.plugins.tokenizer.harris import Harris

    sample = TokenizerRequest(lambda limit: iter([b"the sea and the shore and the sea"] * 3))
    for plugin in (BytePairs(segments=40), Harris(segments=40)):
        tokenizer = plugin.make_tokenizer(sample)
        found = vocabulary(Portable("x", 0, ModelConfig(1, 1, 8), {}, tokenizer, ()))
        used = {token for one in range(tokenizer.size) if (token := tokenizer.decode([one]))}
        assert len(used) > 258
        assert found.types.count(1) == len(used)
        assert found.types.count(5) == tokenizer.size - 1 - len(used)
        assert found.types[256] == 3
        if isinstance(plugin, BytePairs):
            assert found.model == "gpt2"
            assert found.merges[0].replace(" ", "") == found.tokens[257]
        else:
            assert (found.model, found.merges) == ("rwkv", ())
            for one in range(257, tokenizer.size):
                bytes_there = found.tokens[one].encode().decode("unicode_escape").encode("latin-1")
                assert bytes_there == (tokenizer.decode([one]) or b"\xff%d" % one)


# -- npz and types -----------------------------------------------------------------------------------------------------


def test_the_npz_file(portable, tmp_path):
    """Every tensor bit for bit, the shapes, and the bytes of every id."""
    with np.load(export(portable, "npz", tmp_path / "model.npz"), allow_pickle=False) as file:
        arrays = dict(file)
    parts = layout(portable.model, 257)
    for one in parts:
        assert arrays.pop(one.name).tobytes() == portable.weights[one.name].tobytes()
    about = json.loads(str(arrays.pop("about")))
    assert about["model"]["tie_embeddings"] == portable.model.tie_embeddings
    assert (about["vocabulary"], about["bos"], about["step"]) == (257, 256, 20)
    ends = arrays.pop("bytes_end")
    pieces = [arrays["bytes"][start:end].tobytes() for start, end in zip([0, *ends], ends, strict=False)]
    assert pieces == [bytes([value]) for value in range(256)] + [b""]
    assert list(arrays) == ["bytes"]


def test_float16(portable, tmp_path):
    """Half the bytes: matrices are rounded once, and in a GGUF file what llama.cpp adds stays float32."""
    weights = safetensors.load_file(export(portable, "hf", tmp_path / "model", "float16") / "model.safetensors")
    embed = portable.weights["embed"].astype(np.float16)
    assert weights["transformer.wte.weight"].tobytes() == embed.tobytes()
    assert {value.dtype.name for value in weights.values()} == {"float16"}
    assert json.loads((tmp_path / "model/config.json").read_text())["torch_dtype"] == "float16"

    reader = gguf.GGUFReader(export(portable, "gguf", tmp_path / "model.gguf", "float16"))
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert kinds["token_embd.weight"] == kinds["blk.1.ffn_up.weight"] == "F16"
    assert kinds["position_embd.weight"] == kinds["output_norm.weight"] == kinds["blk.0.attn_qkv.bias"] == "F32"
    assert field(reader, "general.file_type") == 1

    with np.load(export(portable, "npz", tmp_path / "model.npz", "float16")) as file:
        assert file["embed"].tobytes() == embed.tobytes()


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command(andrea, trained):
    """Every format lies in the run's folder under a name that says what it is; JSON tells where and how large."""
    for form, name in (
        ("hf", "tiny-step_000020-hf"),
        ("gguf", "tiny-step_000020.gguf"),
        ("npz", "tiny-step_000020.npz"),
    ):
        ended = andrea("export", trained, "--format", form, "--json")
        assert ended.code == 0, ended.err
        value = json.loads(ended.out)
        assert value["path"] == str(trained / "export" / name)
        assert (value["format"], value["step"]) == (form, 20)
        assert all(size > 0 for size in value["files"].values())
    assert not list((trained / "export").glob("*.partial"))
    weights = safetensors.load_file(trained / "export/tiny-step_000020-hf/model.safetensors")
    saved = read_checkpoint(trained / "checkpoints/step_000020").engine["weights"]
    assert weights["transformer.wte.weight"].reshape(-1).tobytes() == saved[: 257 * 8].tobytes()


def test_an_older_checkpoint_and_another_place(andrea, trained, current_folder):
    """The checkpoint that is named goes where it is told; what is there stays."""
    ended = andrea("export", trained, "--checkpoint", "step_000010", "--out", "deep/down/model")
    assert ended.code == 0, ended.err
    assert "from_pretrained('deep/down/model')" in ended.err
    assert "10 updates" in (current_folder / "deep/down/model/README.md").read_text()
    again = andrea("export", trained, "--out", "deep/down/model")
    assert again.code == 2
    assert "deep/down/model exists already" in again.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "ggfu"], "did you mean gguf"),
        (["--format", "onnx"], "there are hf, gguf, npz"),
        (["--dtype", "float8"], "did you mean float32 or float16"),
        (["--checkpoint", "step_000011"], "step_000011"),
        (["--out", "tiny.json/model"], "cannot write tiny.json/model"),
    ],
)
def test_what_makes_no_sense_is_refused(andrea, trained, arguments, said):
    """Unknown formats and types, checkpoints that are not there, places that cannot be written."""
    ended = andrea("export", trained, *arguments)
    assert ended.code == 2
    assert said in ended.err
    assert ended.err.count("error: ") == 1
    assert ended.out == ""


@pytest.mark.parametrize(("form", "package"), [("hf", "safetensors.numpy"), ("gguf", "gguf")])
def test_a_library_that_is_not_installed_is_named(portable, tmp_path, monkeypatch, form, package):
    """With the command that installs it, and nothing half written."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(AndreaError, match=package.split(".")[0]) as refused:
        export(portable, form, tmp_path / "out" / "model")
    assert "andrea[export]" in refused.value.hint
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_nothing(portable, tmp_path, monkeypatch):
    """What was begun is taken away again, and what is wrong is said."""

    def fail(self, *arguments, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", fail)
    monkeypatch.setattr("andrea.export.write_whole", fail)
    for form in ("gguf", "hf", "npz"):
        with pytest.raises(AndreaError, match="No space left"):
            export(portable, form, tmp_path / "model")
        assert list(tmp_path.glob("model*")) == []


def test_the_bytes_are_the_same_every_time(portable, tmp_path):
    """Two exports of a model do not differ."""
    for form in ("hf", "gguf", "npz"):
        first, second = (export(portable, form, tmp_path / f"{number}") for number in (1, 2))
        if form == "hf":
            names = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
            assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)
        else:
            assert first.read_bytes() == second.read_bytes()
        for number in (1, 2):
            (tmp_path / f"{number}").rename(tmp_path / f"{form}{number}")
