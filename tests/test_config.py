"""The configuration is read strictly, and every fault is named by its key."""

from __future__ import annotations

import json

import attrs
import pytest

from andrea import config as config_module
from andrea.config import BatchConfig, RunConfig, SamplingConfig, from_json
from andrea.engine.model import ModelConfig
from andrea.engine.schedule import ScheduleConfig
from andrea.errors import AndreaError
from andrea.registry import KINDS
from andrea.strict_json import to_json


def changed(value, path, new):
    """Return a copy of a JSON value in which one place, given as a list of keys, is another."""
    value = json.loads(json.dumps(value))
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return value


def refusal(value):
    """Return the error that reading a JSON value as a configuration gives."""
    with pytest.raises(AndreaError) as caught:
        from_json(value, "tiny.json")
    return caught.value


# -- keys and types ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "known"),
    [
        (["sede"], "seed"),
        (["model", "n_heads"], "n_head"),
        (["schedule", "warmup_step"], "warmup_steps"),
        (["batch", "batchsize"], "batch_size"),
        (["sampling", "sample_evry"], "sample_every"),
        (["evaluation", "row"], "rows"),
        (["checkpoints", "evry"], "every"),
        (["sources", 1, "readr"], "reader"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(tiny, path, known):
    """At every level an unknown key is refused, its place named, and the nearest known key suggested."""
    error = refusal(changed(tiny, path, 1))

    assert f"unknown key {path[-1]!r}" in error.message
    assert known in error.hint
    assert "did you mean" in error.hint
    if len(path) > 1:
        assert path[0] in error.message


def test_an_unknown_key_that_is_near_nothing_lists_the_keys(tiny):
    """Where nothing is near, all keys of the place are listed."""
    error = refusal(changed(tiny, ["optimizer"], {"zzz": 1}))

    assert "keys in optimizer: beta1, beta2, epsilon, weight_decay, max_grad_norm" in error.hint


@pytest.mark.parametrize(
    ("path", "wrong", "said"),
    [
        (["seed"], "1", 'seed: "1" is not a whole number'),
        (["seed"], 1.5, "seed: 1.5 is not a whole number"),
        (["seed"], True, "seed: true is not a whole number"),
        (["seed"], None, "seed: null is not a whole number"),
        (["name"], 3, "name: 3 is not a text"),
        (["model"], [], "model: [] is not an object with keys"),
        (["model", "d_model"], "8", 'model.d_model: "8" is not a whole number'),
        (["model", "tie_embeddings"], True, None),
        (["model", "tie_embeddings"], 1, "model.tie_embeddings: 1 is not true or false"),
        (["schedule", "peak"], "fast", 'schedule.peak: "fast" is not a number'),
        (["schedule", "peak"], 1, None),
        (["schedule", "peak"], True, "schedule.peak: true is not a number"),
        (["sampling", "prompts"], "a", 'sampling.prompts: "a" is not a list'),
        (["sampling", "prompts"], ["a", 2], "sampling.prompts[1]: 2 is not a text"),
        (["sources"], {}, "sources: {} is not a list"),
        (["sources", 0], "one", 'sources[0]: "one" is not an object with keys'),
        (["sources", 1, "name"], 2, "sources[1].name: 2 is not a text"),
        (["sources", 1, "options"], [], "sources[1].options: [] is not an object with keys"),
        (["plugins"], ["bandit.ucb1"], 'plugins: ["bandit.ucb1"] is not an object with keys'),
        (["plugins", "bandit.ucb1"], 2, "plugins['bandit.ucb1']: 2 is not an object with keys"),
        (["without"], "log.console", 'without: "log.console" is not a list'),
        (["engine"], 1, "engine: 1 is not an object with keys"),
        (["engine", "graph"], False, None),
        (["engine", "attention"], "foo", "engine.attention is 'foo'"),
    ],
)
def test_a_value_of_another_type_is_refused(tiny, path, wrong, said):
    """Nothing is converted: a number in quotes, true for 1, a text for a list are all named with their place."""
    value = changed(tiny, path, wrong)
    if said is None:
        assert from_json(value, "tiny.json")
    else:
        assert refusal(value).message == f"tiny.json: {said}"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (["name"], "key 'name' is missing"),
        (["model"], "key 'model' is missing"),
        (["sources"], "key 'sources' is missing"),
        (["model", "n_layer"], "key 'n_layer' is missing in model"),
        (["sources", 0, "name"], "key 'name' is missing in sources[0]"),
    ],
)
def test_a_missing_key_is_named(tiny, path, said):
    """A required key that is not there is named with its section."""
    value = json.loads(json.dumps(tiny))
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]

    assert refusal(value).message == f"tiny.json: {said}"


@pytest.mark.parametrize("inputs", [[], [{"reader": "source.text", "options": {"path": "b"}}]])
def test_a_source_has_a_reader_or_inputs(tiny, inputs):
    """Neither of them, or both, is refused with an example of each; one of them is taken."""
    wrong = changed(tiny, ["sources", 0, "inputs"], inputs)
    if not inputs:
        del wrong["sources"][0]["reader"]
    assert "needs either a reader with its options, or inputs" in refusal(wrong).message
    right = changed(tiny, ["sources", 0], {"name": "one", "inputs": [{"reader": "source.text", "options": {}}]})
    assert [part.reader for part in from_json(right, "tiny.json").sources[0].parts] == ["source.text"]


def test_all_faults_are_reported_at_once(tiny):
    """Three faults in three sections give three lines."""
    value = changed(changed(changed(tiny, ["sede"], 1), ["model", "d_model"], "8"), ["sources", 0, "nam"], 1)

    lines = refusal(value).message.splitlines()

    assert len(lines) == 3
    assert all(line.startswith("tiny.json: ") for line in lines)


@pytest.mark.parametrize(
    ("path", "wrong", "said"),
    [
        (["model", "n_head"], 3, "model.d_model 8 is not divisible by model.n_head 3"),
        (["model", "n_layer"], 0, "tiny.json: model.n_layer is 0"),
        (["model", "d_model"], 10**9, "model.n_layer 1 and model.d_model 1000000000 make at least 12,000,000,016,"),
        (["model", "n_layer"], 10**9, "a model has at most 2,147,483,647"),
        (["model", "context"], 10**9, "model.context 1000000000"),
        (["name"], "x" * 101, "has 101 characters"),
        (["sources", 0, "name"], "", "a source cannot be called ''"),
        (["sources", 0, "name"], " ", "a source cannot be called ' '"),
        (["sources", 0, "name"], "a\nb", "a source cannot be called 'a\\nb'"),
        (["sources", 0, "name"], "../a", "a source cannot be called '../a'"),
        (["sources", 0, "name"], "x" * 101, "a source cannot be called 'xxx"),
        (["sources", 0, "reader"], "bandit.ucb1", "source 'one': bandit.ucb1 is no reader"),
        (["sources"], [], "names no sources"),
        (["batch", "pulls_per_step"], 3, "pulls_per_step 3 does not divide the 4 rows"),
        (["batch", "batch_size"], 0, "must be at least 1"),
        (["name"], "../x", "cannot be part of a file name"),
        (["name"], "", "cannot be part of a file name"),
        (["name"], ".x", "cannot be part of a file name"),
        (["checkpoints", "keep"], 0, "checkpoints.keep is 0; it must be at least 1"),
        (["checkpoints", "every"], -1, "checkpoints.every is -1; it must be at least 0"),
        (["sampling", "count"], 0, "tiny.json: sampling.count is 0; it must be at least 1"),
        (["sampling", "prompts"], [], "sampling.prompts is empty"),
        (["sampling", "top_p"], 0, "sampling.top_p is 0"),
        (["sampling", "temperature"], -1, "sampling.temperature is -1"),
        (["evaluation", "rows"], 0, "evaluation.rows is 0"),
        (["schedule", "peak"], 0, "schedule.peak"),
        (["data"], {"held_out_share": 1}, "held_out_share is 1"),
        (["data"], {"mix": {"one": 1, "on": 2}}, "data.mix names 'on', which is no source"),
        (["data"], {"mix": {"one": 0}}, "which are no shares"),
        (["data"], {"mix": {"one": 2, "two": -1}}, "which are no shares"),
        (["data"], {"mix": {}}, "which are no shares"),
        (["data"], {"mix": {"one": 1e308, "two": 1e308}}, "which are no shares"),
    ],
)
def test_a_value_that_cannot_be_is_refused(tiny, path, wrong, said):
    """Values of the right type that make no run are refused, with what would do."""
    assert said in refusal(changed(tiny, path, wrong)).message


def test_heads_that_do_not_divide_are_answered_with_heads_that_do(tiny):
    """The hint of the commonest mistake names numbers of heads that work."""
    assert "n_head may be 1 or 2 or 4" in refusal(changed(tiny, ["model", "n_head"], 3)).hint


def test_two_sources_of_one_name_are_refused(tiny):
    """Source names are how a run calls its arms, so they are distinct."""
    assert "two sources are called 'one'" in refusal(changed(tiny, ["sources", 1, "name"], "one")).message


def test_a_number_that_is_not_finite_is_refused(tiny):
    """NaN and infinity are no values of an experiment, wherever they come from."""
    assert "is not a number" in refusal(changed(tiny, ["schedule"], {"peak": 1e999})).message


# -- whole configurations ----------------------------------------------------------------------------------------------


def test_a_configuration_survives_the_way_to_json_and_back(tiny):
    """from_json(to_json(c)) is c, and the JSON is plain: it can be written and read as text."""
    config = from_json(tiny, "tiny.json")
    written = json.loads(json.dumps(to_json(config)))

    assert from_json(written, "again") == config
    assert to_json(from_json(written, "again")) == to_json(config)
    assert list(to_json(config)) == [f.name for f in attrs.fields(RunConfig)]


def test_the_digest_says_when_a_configuration_is_another(tiny):
    """Equal configurations have equal digests; any value changes it; the order of keys does not."""
    config = from_json(tiny, "a")
    turned = dict(reversed(tiny.items()))

    assert from_json(turned, "b") == config
    assert from_json(changed(tiny, ["seed"], 1), "c") != config
    assert from_json(changed(tiny, ["plugins", "bandit.ucb1"], {"exploration": 3.0}), "d") != config


def test_the_original_names_of_fields_are_kept():
    """Fields that the original's experiments have are called as there."""
    names = {f.name for cls in (ModelConfig, BatchConfig, SamplingConfig, ScheduleConfig) for f in attrs.fields(cls)}

    assert {"n_layer", "n_head", "d_model", "batch_size", "sample_every", "warmup_steps"} <= names


def test_no_section_is_called_like_a_kind_of_plugin():
    """``--set`` always knows whether it addresses a section or a plugin."""
    assert not {f.name for f in attrs.fields(RunConfig)} & set(KINDS)


def test_a_configuration_cannot_be_changed(tiny):
    """Configurations are frozen, the sections too."""
    config = from_json(tiny, "tiny.json")

    for target, name in ((config, "seed"), (config.model, "n_layer"), (config.batch, "batch_size")):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(target, name, 1)


def test_sections_are_documented():
    """Every class of the configuration says what it is."""
    classes = [
        c for c in vars(config_module).values() if isinstance(c, type) and c.__module__ == config_module.__name__
    ]

    assert len(classes) > 5
    assert all(c.__doc__ for c in classes)


def test_a_reader_of_another_kind_lists_the_readers(tiny):
    """Whoever names a plugin that reads nothing is told which do."""
    assert "source.text" in refusal(changed(tiny, ["sources", 0, "reader"], "bandit.ucb1")).hint


def test_names_at_their_limits_are_taken(tiny):
    """A hundred characters, spaces within and letters of any script are names."""
    value = changed(changed(tiny, ["name"], "x" * 100), ["sources", 0, "name"], "Übungen, Teil 1")
    assert from_json(value, "tiny.json").sources[0].name == "Übungen, Teil 1"


def test_a_misspelt_key_is_not_also_to_be_added(tiny):
    """Both faults are said, and the hint is the key that was meant."""
    value = changed(tiny, ["model", "n_layers"], 1)
    del value["model"]["n_layer"]

    error = refusal(value)

    assert error.message.splitlines() == [
        "tiny.json: key 'n_layer' is missing in model",
        "tiny.json: unknown key 'n_layers' in model",
    ]
    assert error.hint == "did you mean n_layer?"


def test_every_hint_is_shown(tiny):
    """Two faults have two hints."""
    value = changed(changed(tiny, ["sede"], 1), ["model", "contxt"], 8)

    assert sorted(refusal(value).hint.splitlines()) == ["did you mean context?", "did you mean seed or schedule?"]


@pytest.mark.parametrize(
    ("path", "wrong", "hint"),
    [
        (["model"], [1], 'give keys in braces, as {"n_layer": ...}'),
        (["plugins"], [], 'give keys in braces, as {"KEY": VALUE}, or {} for none'),
        (["without"], "log.console", 'put it in brackets: ["log.console"]'),
    ],
)
def test_what_has_another_shape_is_shown_how(tiny, path, wrong, hint):
    """A list for an object, or a value for a list, comes with an example."""
    assert refusal(changed(tiny, path, wrong)).hint == hint
