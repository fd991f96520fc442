"""The bundled experiments are whole: they parse, name what exists, have the published shapes, and can be prepared."""

from __future__ import annotations

import json
import re

import pytest

from andrea import SourceSpec
from andrea.config import from_json
from andrea.engine.model import parameter_count
from andrea.experiment_file import experiment_names, read_experiment
from andrea.plugins.source import hub
from andrea.registry import available, choose, create
from andrea.sources import read_options

ANDREA = {"ANDREA-12M-TRAIN": 12_691_584, "ANDREA-120M-TRAIN": 92_248_320, "ANDREA-480M-TRAIN": 467_636_736}


def config_of(name):
    return from_json(*read_experiment(name))


@pytest.mark.parametrize("name", experiment_names())
def test_every_bundled_experiment_is_valid(name):
    """What is shipped can be read, and is called as its file, but for -TRAIN behind the name of a model."""
    value, _ = read_experiment(name)

    assert from_json(value, name).name == name.removesuffix("-TRAIN")


@pytest.mark.parametrize("name", experiment_names())
def test_every_plugin_and_option_exists(name):
    """Plugins and readers are installed, and their options are made."""
    config = config_of(name)
    readers = [part.reader for source in config.sources for part in source.parts]
    assert create(choose([], list(config.without), config.plugins, readers, "precision.fp32"))
    for part in (part for source in config.sources for part in source.parts if part.reader == "source.hub"):
        assert re.fullmatch(r"[\w-]+/[\w.-]+", read_options(part, hub.Options).dataset)
        assert part.licence


@pytest.mark.parametrize("name", experiment_names())
def test_curricula_name_sources_that_exist(name):
    """Warm-up, floors and caps speak of sources of the experiment."""
    config = config_of(name)
    named = set(config.plugins.get("weight.warmup", {}).get("curriculum_warmup_sources", []))
    for plugin, option in (("limit.floors", "floors"), ("limit.caps", "caps")):
        named |= set(config.plugins.get(plugin, {}).get(option, {}))
    assert named <= {source.name for source in config.sources}


@pytest.mark.parametrize("name", ANDREA)
def test_the_family_has_its_shapes_and_curriculum(name):
    """Parameters, batch, warm-ups, floors and samples are those of the specification."""
    config = config_of(name)
    assert parameter_count(config.model, 257 + config.plugins["tokenizer.harris"]["segments"]) == ANDREA[name]
    assert (config.batch.batch_size, config.model.context) == (8, 1024)
    assert (config.schedule.peak, config.schedule.warmup_steps, config.sampling.sample_every) == (3e-4, 2000, 100)
    warmup = config.plugins["weight.warmup"]
    assert warmup["curriculum_warmup_steps"] == 20_000
    hermes = ["hermes3-general", "hermes3-creative", "hermes3-roleplay"]
    assert warmup["curriculum_warmup_sources"] == [*hermes, "chat", "smoltalk", "oasst", "gutenberg"]
    floors = {"hermes3-general": 0.8, "chat": 0.8, "dictionary": 0.7, "gutenberg": 0.7}
    assert config.plugins["limit.floors"]["floors"] == floors


# -- prepared from folders that stand in for the hub ---------------------------------------------------------------


def write(folder, name, rows):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / name)


def messages(number):
    return [
        {"role": "user", "content": f"Question {number}?"},
        {"role": "assistant", "content": f"Answer {number}, long."},
    ]


def tree(number):
    rows = [("a", None, "prompter", f"Why {number} so often?"), ("b", f"{number}a", "assistant", f"Because {number}.")]
    common = {"message_tree_id": f"t{number}", "rank": None, "lang": "en" if number % 2 else "de"}
    return [
        {**common, "message_id": f"{number}{name}", "parent_id": parent, "role": role, "text": text}
        for name, parent, role, text in rows
    ]


@pytest.fixture
def stand_ins(tmp_path):
    """Return folders by the name of the dataset, with its published columns and files of its published names."""
    hermes, smoltalk = tmp_path / "hermes", tmp_path / "smoltalk"
    openings = ["What is rain?", "Write a poem about rain.", "Let us roleplay: you are rain."]
    rows = [
        {"conversations": [{"from": "human", "value": f"{text} {n}"}, {"from": "gpt", "value": f"It falls {n} times."}]}
        for n in range(30)
        for text in openings
    ]
    hermes.mkdir()
    (hermes / "hermes3.json").write_text(json.dumps(rows), encoding="utf-8")
    for part in ("everyday-conversations", "systemchats-30k", "smol-magpie-ultra"):
        talks = [{"messages": messages(f"{part} {n}"), "source": part} for n in range(30)]
        write(smoltalk, f"data/{part}/train-00000-of-00001.parquet", talks)
        write(smoltalk, f"data/{part}/test-00000-of-00001.parquet", [{"messages": messages("test"), "source": "test"}])
    for name, start in (("oasst1", 0), ("oasst2", 100)):
        rows = [row for n in range(start, start + 60) for row in tree(n)]
        write(tmp_path / name, "data/train-00000-of-00001-b42a775f407cee45.parquet", rows)
    books = [
        {"TEXT": f"Chapter {n}. It rained on the hills and in the valleys. " * 9, "SOURCE": "s"} for n in range(20)
    ]
    write(tmp_path / "gutenberg", "data/train-00000-of-00037-99dc6f955d272144.parquet", books)
    lines = ["Word,Example,Definition", *(f"word{n},an example,what the word {n} means" for n in range(30))]
    (tmp_path / "dictionary").mkdir()
    (tmp_path / "dictionary" / "train.csv").write_text("\n".join(lines), encoding="utf-8")
    return {
        "NousResearch/Hermes-3-Dataset": hermes,
        "HuggingFaceTB/smoltalk": smoltalk,
        "OpenAssistant/oasst1": tmp_path / "oasst1",
        "OpenAssistant/oasst2": tmp_path / "oasst2",
        "sedthh/gutenberg_english": tmp_path / "gutenberg",
        "marksverdhei/wordnet-definitions-en-2021": tmp_path / "dictionary",
    }


def test_one_command_prepares_it(stand_ins, andrea, write_experiment, monkeypatch, current_folder):
    """With a folder in the place of each dataset, `andrea prepare` makes every source."""
    monkeypatch.setenv("ANDREA_CACHE", str(current_folder / "cache"))
    value, _ = read_experiment("ANDREA-12M-TRAIN")
    value["plugins"]["tokenizer.harris"]["segments"] = 64
    value["sources"] = [source for source in value["sources"] if source.get("reader") != "source.docstrings"]
    for source in value["sources"]:
        for part in source.get("inputs", [source]):
            if part["reader"] == "source.hub":
                part["options"]["dataset"] = str(stand_ins[part["options"]["dataset"]])
    prepared = andrea("prepare", write_experiment(value), "--json")
    assert prepared.code == 0, prepared.err
    kept = {source["source"]: source["kept"] for source in json.loads(prepared.out)["sources"]}
    del kept["repo-docs"]
    assert kept == {
        "hermes3-general": 30,
        "hermes3-creative": 30,
        "hermes3-roleplay": 30,
        "chat": 90,  # two parts of SmolTalk, and the English half of the trees
        "smoltalk": 30,
        "oasst": 30,
        "gutenberg": 20,
        "dictionary": 30,
    }


def test_the_family_reads_the_same_sources():
    """The three differ in shape, vocabulary, steps, checkpoints, and how much of Gutenberg they take."""
    values = [read_experiment(name)[0] for name in ANDREA]
    for value in values:
        del value["name"], value["model"], value["schedule"]["steps"], value["checkpoints"]
        del value["plugins"]["tokenizer.harris"]
        (gutenberg,) = [source for source in value["sources"] if source["name"] == "gutenberg"]
        del gutenberg["options"]["files"]
    assert values[0] == values[1] == values[2]


def test_the_stand_ins_are_read_as_turns(stand_ins):
    """The first documents of each kind look as the family's text does."""
    options = {"dataset": str(stand_ins["OpenAssistant/oasst1"]), "tree": True, "where": {"lang": "en"}}
    first = next(iter(hub.open_source(SourceSpec("oasst", "source.hub", options))))
    assert first.text == "> Why 1 so often?\n< Because 1."
    assert "source.hub" in available()
