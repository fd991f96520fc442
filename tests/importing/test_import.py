"""Models from elsewhere become runs: the weights are theirs to the bit, and what is not one of ours is refused."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from andrea.checkpoint import read_checkpoint
from andrea.engine.model import ModelConfig, initial_weights, layout, parameter_count
from andrea.errors import AndreaError
from andrea.importing.hf import read_hf
from andrea.importing.published import find_vocabulary, read_published
from andrea.rng import Draws
from andrea.strict_json import read_json

safetensors = pytest.importorskip("safetensors.numpy")

CPU = ("--device", "cpu")
SHAPE = ModelConfig(2, 2, 8, context=16)


def numbers(name, *shape):
    """Return random numbers, float32."""
    return Draws(3, name).normal(int(np.prod(shape))).reshape(shape)


def gpt2_tensors(vocabulary=257, layers=2, C=8, context=16, tied=True):
    """Return the tensors of a GPT-2 whose biases are zero, with random numbers elsewhere."""
    shapes = {"wte.weight": (vocabulary, C), "wpe.weight": (context, C), "ln_f.weight": (C,), "ln_f.bias": (C,)}
    for i in range(layers):
        for name, shape in (
            ("ln_1.weight", (C,)), ("ln_1.bias", (C,)), ("ln_2.weight", (C,)), ("ln_2.bias", (C,)),
            ("attn.c_attn.weight", (C, 3 * C)), ("attn.c_proj.weight", (C, C)),
            ("mlp.c_fc.weight", (C, 4 * C)), ("mlp.c_proj.weight", (4 * C, C)),
        ):  # fmt: skip
            shapes[f"h.{i}.{name}"] = shape
    tensors = {name: numbers(name, *shape) for name, shape in shapes.items()}
    for i in range(layers):
        for name, width in (("attn.c_attn", 3 * C), ("attn.c_proj", C), ("mlp.c_fc", 4 * C), ("mlp.c_proj", C)):
            tensors[f"h.{i}.{name}.bias"] = np.zeros(width, np.float32)
    if not tied:
        tensors["lm_head.weight"] = numbers("lm_head", vocabulary, C)
    return tensors


CONFIG = {
    "model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 16, "vocab_size": 257,
    "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "bos_token_id": 256,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """Return a function that writes a folder of transformers with a byte tokenizer, and returns it."""

    def write(tensors=None, tokenizer=True, **changes):
        from andrea.plugins.tokenizer.byte import build_library

        place = tmp_path / "gpt2"
        place.mkdir(exist_ok=True)
        if tensors is not False:
            safetensors.save_file(gpt2_tensors() if tensors is None else tensors, place / "model.safetensors")
        config = {key: value for key, value in {**CONFIG, **changes}.items() if value != "gone"}
        (place / "config.json").write_text(json.dumps(config))
        if tokenizer:
            (place / "tokenizer.json").write_text(build_library().to_str())
            (place / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<begin of document>"}))
        return place

    return write


# -- folders of transformers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "transformer."])
@pytest.mark.parametrize("tied", [True, False])
def test_every_tensor_finds_its_place(folder, prefix, tied):
    """In the published order, the three projections apart, to the bit; masks of old files are passed over."""
    tensors = gpt2_tensors(tied=tied)
    given = {prefix + name if name != "lm_head.weight" else name: value for name, value in tensors.items()}
    given[f"{prefix}h.0.attn.bias"] = np.ones((1, 1, 16, 16), np.float32)
    given[f"{prefix}h.0.attn.masked_bias"] = np.array(-1e4, np.float32)
    found = read_hf(folder(given, tie_word_embeddings=tied))

    shape = ModelConfig(2, 2, 8, context=16, tie_embeddings=tied)
    assert (found.model, found.vocabulary, found.step) == (shape, 257, 0)
    want = {"embed": "wte.weight", "position": "wpe.weight", "final.gamma": "ln_f.weight", "final.beta": "ln_f.bias"}
    want["head"] = "lm_head.weight"
    weights = found.state["weights"]
    assert weights.size == parameter_count(shape, 257)
    for one in layout(shape, 257):
        part = weights[one.offset : one.end].reshape(one.shape)
        if one.name in want:
            expected = tensors[want[one.name]]
        else:
            layer, _, name = one.name.removeprefix("layer").partition(".")
            block = f"h.{layer}."
            if name in ("w_q", "w_k", "w_v"):
                first = 8 * ("w_q", "w_k", "w_v").index(name)
                expected = tensors[f"{block}attn.c_attn.weight"][:, first : first + 8]
            else:
                names = {
                    "w_o": "attn.c_proj.weight", "w_1": "mlp.c_fc.weight", "w_2": "mlp.c_proj.weight",
                    "ln1.gamma": "ln_1.weight", "ln1.beta": "ln_1.bias",
                    "ln2.gamma": "ln_2.weight", "ln2.beta": "ln_2.bias",
                }  # fmt: skip
                expected = tensors[block + names[name]]
        assert part.tobytes() == np.ascontiguousarray(expected).tobytes(), one.name


def test_types_of_weights(folder):
    """float16 and bfloat16 are taken as the float32 that they mean; integers are refused."""
    tensors = gpt2_tensors()
    half = {name: value.astype(np.float16) for name, value in tensors.items()}
    weights = read_hf(folder(half)).state["weights"]
    assert weights[:10].tobytes() == half["wte.weight"].reshape(-1)[:10].astype(np.float32).tobytes()

    place = folder(False)
    upper = {name: (value.view(np.uint32) >> 16).astype(np.uint16) for name, value in tensors.items()}
    header, end = {}, 0
    for name, value in upper.items():
        header[name] = {"dtype": "BF16", "shape": value.shape, "data_offsets": [end, end := end + value.nbytes]}
    described = json.dumps(header).encode()
    data = b"".join(value.tobytes() for value in upper.values())
    (place / "model.safetensors").write_bytes(struct.pack("<Q", len(described)) + described + data)
    weights = read_hf(place).state["weights"]
    want = (upper["wte.weight"].reshape(-1)[:10].astype(np.uint32) << 16).view(np.float32)
    assert weights[:10].tobytes() == want.tobytes()

    with pytest.raises(AndreaError, match="is of the type I64"):
        read_hf(folder({**tensors, "wte.weight": np.zeros((257, 8), np.int64)}))


def test_a_model_in_several_files(folder):
    """The index says which."""
    place, tensors = folder(False), gpt2_tensors()
    names = sorted(tensors)
    for number, part in enumerate((names[:9], names[9:])):
        safetensors.save_file({name: tensors[name] for name in part}, place / f"part{number}.safetensors")
    index = {name: f"part{int(name in names[9:])}.safetensors" for name in names}
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    weights = read_hf(place).state["weights"]
    (place / "model.safetensors.index.json").unlink()
    assert weights.tobytes() == read_hf(folder(tensors)).state["weights"].tobytes()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"model_type": "gone"}, "model_type is missing"),
        ({"activation_function": "relu"}, "activation_function is 'relu'"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon is 1e-06"),
        ({"n_inner": 16}, "n_inner is 16"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"n_embd": "gone"}, "n_embd is None"),
        ({"n_head": 0}, "n_head is 0"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"n_head": 3}, "not divisible"),
        ({"n_embd": 16}, "has the shape"),
        ({"n_layer": 3}, "no tensor for layer2"),
        ({"n_layer": 1}, "no place for: h.1"),
        ({"tie_word_embeddings": False}, "no tensor for head"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(folder, changes, said):
    """Each with what it says and what it must say."""
    with pytest.raises(AndreaError) as refused:
        read_hf(folder(**changes))
    assert said in str(refused.value)


def test_all_that_does_not_fit_is_said_at_once(folder):
    """Two wrong keys, one error."""
    with pytest.raises(AndreaError) as refused:
        read_hf(folder(activation_function="relu", n_inner=9))
    assert "activation_function" in refused.value.message
    assert "n_inner" in refused.value.message


def test_biases_are_refused(folder):
    """Without its biases a model would be another one: how many there are is said, and the largest."""
    tensors = gpt2_tensors()
    tensors["h.0.attn.c_proj.bias"][3] = 0.5
    tensors["h.1.mlp.c_fc.bias"][0] = -2
    with pytest.raises(AndreaError, match=r"2 biases that are not zero, the largest in h\.1\.mlp\.c_fc\.bias, 2"):
        read_hf(folder(tensors))


def test_damaged_files_are_refused(folder):
    """Cut, gone, of the old kind, not finite."""
    place = folder()
    content = (place / "model.safetensors").read_bytes()
    (place / "model.safetensors").write_bytes(content[:-10])
    with pytest.raises(AndreaError, match=r"model\.safetensors is damaged"):
        read_hf(place)
    (place / "model.safetensors").unlink()
    with pytest.raises(AndreaError, match=r"there is no .*model\.safetensors"):
        read_hf(place)
    (place / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(AndreaError) as refused:
        read_hf(place)
    assert "save it anew" in refused.value.hint
    with pytest.raises(AndreaError, match="not finite"):
        read_hf(folder({**gpt2_tensors(), "wte.weight": np.full((257, 8), np.nan, np.float32)}))
    for index in ("[]", "{}", '{"weight_map": {}}', '{"weight_map": {"wte.weight": 3}}', '{"weight_map": ["x"]}'):
        (place / "model.safetensors.index.json").write_text(index)
        with pytest.raises(AndreaError, match=r"does not say where the tensors are|not an object"):
            read_hf(place)
    (place / "config.json").write_text("[]")
    with pytest.raises(AndreaError, match="not an object"):
        read_hf(place)


# -- the published layout ----------------------------------------------------------------------------------------------


def write_published(path, model, vocabulary, step=43587):
    """Write a file in the published layout, with weights and moments."""
    weights = initial_weights(model, vocabulary, 4)
    first, second = weights * 0.1, weights**2
    path.write_bytes(struct.pack("<ii", step, weights.size) + b"".join(a.tobytes() for a in (weights, first, second)))
    return weights, first, second


def test_a_published_file(tmp_path):
    """Step, weights and both moments, to the bit; the step drives the bias correction."""
    weights, first, second = write_published(tmp_path / "step.bin", SHAPE, 257)
    found = read_published(tmp_path / "step.bin", SHAPE, 257)
    assert (found.step, found.vocabulary) == (43587, 257)
    assert found.state["weights"].tobytes() == weights.tobytes()
    assert found.state["first_moments"].tobytes() == first.tobytes()
    assert found.state["second_moments"].tobytes() == second.tobytes()
    assert found.state["applied_updates"].tolist() == [43587]


@pytest.mark.parametrize(
    ("shape", "parameters", "vocabulary"),
    [
        (ModelConfig(6, 12, 384), 12_691_584, 4353),
        (ModelConfig(12, 12, 768), 92_248_320, 8449),
        (ModelConfig(16, 24, 1536), 467_636_736, 8449),
        (ModelConfig(12, 12, 768, tie_embeddings=False), 98_737_152, 8449),
        (ModelConfig(12, 12, 768, tie_embeddings=False, norm_affine=False), 98_698_752, 8449),
        (ModelConfig(6, 12, 384, tie_embeddings=False, norm_affine=False), 12_780_288, 2305),
        (ModelConfig(6, 12, 384), 12_691_585, None),
        (ModelConfig(6, 12, 384), 100, None),
    ],
)
def test_the_vocabulary_of_the_family(shape, parameters, vocabulary):
    """The counts of the family give its vocabularies; a count that fits none gives none."""
    assert find_vocabulary(parameters, shape) == vocabulary


def test_counts_that_do_not_agree(tmp_path):
    """The switches that would make them agree are named, with a shape that is wrong otherwise its keys."""
    model = ModelConfig(2, 2, 8, context=16, tie_embeddings=False, norm_affine=False)
    write_published(tmp_path / "step.bin", model, 257)
    with pytest.raises(AndreaError) as refused:
        read_published(tmp_path / "step.bin", SHAPE, 257)
    assert refused.value.hint == "this would fit: --set model.tie_embeddings=false --set model.norm_affine=false"
    with pytest.raises(AndreaError) as refused:
        read_published(tmp_path / "step.bin", ModelConfig(3, 2, 8, context=16), 257)
    assert "model.n_layer" in refused.value.hint


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 7, struct.pack("<ii", 3, 5) + b"\0" * 59, struct.pack("<ii", -1, 1) + b"\0" * 12]
)
def test_what_is_not_in_the_published_layout(tmp_path, content):
    """Empty, cut, and impossible headers."""
    (tmp_path / "step.bin").write_bytes(content)
    with pytest.raises(AndreaError, match="is not in the published layout"):
        read_published(tmp_path / "step.bin", SHAPE, 257)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def trained(andrea, experiment, current_folder):
    """Return the folder of a tiny run of 20 steps."""
    ended = andrea("run", experiment, "--out", "run", "--steps", 20, *CPU)
    assert ended.code == 0, ended.err
    return current_folder / "run"


@pytest.mark.parametrize("plugin", ["tokenizer.byte", "tokenizer.harris", "tokenizer.bpe"])
def test_an_export_comes_back(andrea, experiment, current_folder, plugin):
    """Weights and tokenizer to the bit, whatever the tokenizer; it is measured as before, goes on, and is polished."""
    options = () if plugin == "tokenizer.byte" else ("--set", f"{plugin}.segments=40")
    started = andrea("run", experiment, "--plugin", plugin, *options, "--out", "run", "--steps", 20, *CPU)
    assert started.code == 0, started.err
    assert andrea("export", "run", "--out", "model").code == 0
    ended = andrea("import", "model", experiment, "--out", "back", *CPU)
    assert ended.code == 0, ended.err
    assert "imported: back, step 0" in ended.err

    before, after = (
        read_checkpoint(current_folder / name)
        for name in ("run/checkpoints/step_000020", "back/checkpoints/step_000000")
    )
    assert after.engine["weights"].tobytes() == before.engine["weights"].tobytes()
    assert not after.engine["first_moments"].any()
    assert after.record["fingerprint"]["tokenizer"] == before.record["fingerprint"]["tokenizer"]
    measured = [json.loads(andrea("evaluate", name, "--json", *CPU).out) for name in ("run", "back")]
    assert measured[0]["bits_per_byte"] == measured[1]["bits_per_byte"]

    assert andrea("run", "--resume", "--out", "back", "--steps", 5, *CPU).code == 0
    assert andrea("polish", "back", "--set", "schedule.peak=1e-3", "--steps", 7, *CPU).code == 0
    assert read_checkpoint(current_folder / "back/checkpoints/step_000007").step == 7
    fork = andrea("run", "--from", "back/checkpoints/step_000000.json", "--out", "fork", "--steps", 2, *CPU)
    assert fork.code == 0, fork.err


def test_an_imported_run_goes_on_bit_for_bit(andrea, experiment, current_folder, trained):
    """Cut after 4 steps and resumed it ends as in one go."""
    assert andrea("export", trained, "--out", "model").code == 0
    for name in ("one", "two"):
        assert andrea("import", "model", experiment, "--out", name, *CPU).code == 0
    assert andrea("run", "--resume", "--out", "one", "--steps", 9, *CPU).code == 0
    for steps in (4, 9):
        assert andrea("run", "--resume", "--out", "two", "--steps", steps, *CPU).code == 0
    names = ("checkpoints/step_000009.bin", "checkpoints/step_000009.json", "journal.jsonl")
    assert all((current_folder / "one" / n).read_bytes() == (current_folder / "two" / n).read_bytes() for n in names)


def test_an_import_that_fails_leaves_nothing_and_takes_nothing(
    andrea, experiment, current_folder, trained, monkeypatch
):
    """The folder that it made goes; one that was there, and what lies in it, stays."""

    def fail(self, *arguments):
        raise AndreaError("the disk is full", "make room")

    assert andrea("export", trained, "--out", "model").code == 0
    (current_folder / "there").mkdir()
    (current_folder / "there" / "notes.txt").write_text("mine")
    monkeypatch.setattr("andrea.loop.Loop.save_now", fail)
    before = sorted(path.name for path in current_folder.iterdir())
    assert andrea("import", "model", experiment, "--out", "new", *CPU).code == 2
    assert andrea("import", "model", experiment, "--out", "there", *CPU).code == 2
    assert sorted(path.name for path in current_folder.iterdir()) == before
    assert (current_folder / "there" / "notes.txt").read_text() == "mine"


def test_a_tokenizer_of_the_librarys(andrea, experiment, current_folder, folder):
    """A folder of another's is taken with its tokenizer; rows that no id means are left out, and that is said."""
    place = folder(gpt2_tensors(vocabulary=264), vocab_size=264)
    ended = andrea("import", place, experiment, "--out", "run", *CPU)
    assert ended.code == 0, ended.err
    assert "left out: 7 rows" in ended.err
    config = read_json(current_folder / "run/config.json")
    assert config["plugins"]["tokenizer.library"] == {"path": str(place)}
    assert config["model"]["n_layer"] == 2
    weights = read_checkpoint(current_folder / "run/checkpoints/step_000000").engine["weights"]
    assert weights[: 257 * 8].tobytes() == gpt2_tensors(vocabulary=264)["wte.weight"][:257].tobytes()
    assert weights[257 * 8 : 273 * 8].tobytes() == gpt2_tensors(vocabulary=264)["wpe.weight"].tobytes()
    assert andrea("run", "--resume", "--out", "run", "--steps", 3, *CPU).code == 0
    assert andrea("sample", "run", "--prompt", "seed", "--tokens", 4, *CPU).out.startswith("seed")


def test_a_published_file_goes_on(andrea, experiment, current_folder):
    """Its shape is the experiment's; the run stands at the file's step, with its moments."""
    shape = ModelConfig(1, 2, 8, context=16)
    weights, first, _ = write_published(current_folder / "step_000012.bin", shape, 257, step=12)
    ended = andrea("import", "step_000012.bin", experiment, "--out", "run", *CPU)
    assert ended.code == 0, ended.err
    saved = read_checkpoint(current_folder / "run/checkpoints/step_000012")
    assert saved.engine["weights"].tobytes() == weights.tobytes()
    assert saved.engine["first_moments"].tobytes() == first.tobytes()
    assert saved.engine["applied_updates"].tolist() == [12]
    assert (current_folder / "run/checkpoints/step_000012.bin").read_bytes() == (
        current_folder / "step_000012.bin"
    ).read_bytes()
    ended = andrea("run", "--resume", "--out", "run", "--steps", 14, *CPU)
    assert ended.code == 0, ended.err
    assert "step 13/14" in ended.err


def test_the_tokenizer_of_a_published_file(andrea, experiment, current_folder):
    """One that would be trained is refused; a folder of one is taken, and its ids must fit."""
    harris = ("--plugin", "tokenizer.harris", "--set", "tokenizer.harris.segments=30")
    assert andrea("run", experiment, *harris, "--out", "other", "--steps", 1, *CPU).code == 0
    write_published(current_folder / "step.bin", ModelConfig(1, 2, 8, context=16), 287, step=0)
    refused = andrea("import", "step.bin", experiment, *harris, "--out", "run", *CPU)
    assert refused.code == 2
    assert "tokenizer.harris would train another" in refused.err
    refused = andrea("import", "step.bin", experiment, "--out", "run", *CPU)
    assert "which with this shape means 287 ids; the tokenizer has 257" in refused.err
    assert not (current_folder / "run").exists()

    ended = andrea("import", "step.bin", experiment, "--tokenizer", "other", "--out", "run", *CPU)
    assert ended.code == 0, ended.err
    one, two = (
        read_checkpoint(current_folder / n) for n in ("run/checkpoints/step_000000", "other/checkpoints/step_000001")
    )
    assert one.record["fingerprint"]["tokenizer"] == two.record["fingerprint"]["tokenizer"]
    config = read_json(current_folder / "run/config.json")
    assert config["data"]["tokenizer"] == str((current_folder / "other/tokenizer").resolve())
    assert config["plugins"]["tokenizer.harris"] is not None


def test_a_saved_tokenizer_for_a_new_run(andrea, experiment, current_folder, trained):
    """`data.tokenizer` takes the tokenizer of a folder, so that two runs have the same ids; a wrong folder is said."""
    harris = ("--plugin", "tokenizer.harris", "--set", "tokenizer.harris.segments=30")
    assert andrea("run", experiment, *harris, "--out", "first", "--steps", 1, *CPU).code == 0
    taken = (
        "--plugin",
        "tokenizer.harris",
        "--set",
        "data.tokenizer=first/tokenizer",
        "--set",
        "data.held_out_share=0.2",
    )
    ended = andrea("run", experiment, *taken, "--out", "second", "--steps", 1, *CPU)
    assert ended.code == 0, ended.err
    ids = [
        read_checkpoint(current_folder / n / "checkpoints/step_000001").record["fingerprint"]["tokenizer"]
        for n in ("first", "second")
    ]
    assert ids[0] == ids[1]
    refused = andrea(
        "run",
        experiment,
        "--plugin",
        "tokenizer.harris",
        "--set",
        "data.tokenizer=run/tokenizer",
        "--out",
        "third",
        *CPU,
    )
    assert refused.code == 2
    assert "harris_segments.json" in refused.err
    assert not (current_folder / "third").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gone"], "there is no gone"),
        (["run"], "run is a run already"),
        (["model", "--set", "model.n_layer=3"], "the model brings its own shape"),
        (["model", "--tokenizer", "gone"], "no tokenizer plugin can load gone"),
        (["model", "--tokenizer", "other"], "the tokenizer has 287 ids, and the model in model only 257"),
        (["model", "--plugin", "tokenizer.harris"], "holds a tokenizer.byte, not a tokenizer.harris"),
        (["model", "--out", "run"], "run already holds a run"),
        (["tiny.json"], "tiny.json is not in the published layout"),
    ],
)
def test_what_cannot_be_imported_is_refused(andrea, experiment, current_folder, trained, arguments, said):
    """With what is wrong, and nothing is left behind."""
    harris = ("--plugin", "tokenizer.harris", "--set", "tokenizer.harris.segments=30")
    assert andrea("run", experiment, *harris, "--out", "other", "--steps", 1, *CPU).code == 0
    assert andrea("export", trained, "--out", "model").code == 0
    before = sorted(path.name for path in current_folder.iterdir())
    ended = andrea(
        "import", arguments[0], experiment, *arguments[1:], *([] if "--out" in arguments else ["--out", "new"]), *CPU
    )
    assert ended.code == 2
    assert said in ended.err
    assert sorted(path.name for path in current_folder.iterdir()) == before
