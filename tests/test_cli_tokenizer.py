"""``andrea tokenizer`` as a person types it."""

import json
import shutil
import sysconfig
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import tokenizers

from andrea import AndreaError
from andrea.interrupts import Interrupts
from andrea.vocabulary import open_tokenizer, prepare_text

HARRIS = "tokenizer.harris.segments=30"


@pytest.fixture
def harris(tiny, write_experiment):
    """Return the name of the tiny experiment with a small Harris tokenizer."""
    tiny["plugins"] = {"tokenizer.harris": {"segments": 12}}
    return write_experiment(tiny, "harris.json")


def test_train_gives_what_a_run_uses(andrea, current_folder, harris):
    """The folder holds the very tokenizer of the experiment's data, which other libraries load too."""
    ended = andrea("tokenizer", "train", harris, "--out", "made", "--json")
    assert ended.code == 0, ended.err
    value = json.loads(ended.out)
    assert value["files"] == ["harris_segments.json", "tokenizer.json", "tokenizer_config.json"]
    name, tokenizer = open_tokenizer(current_folder / "made")
    prepared = prepare_text([harris], [], [], lambda stage, done, total: None, Interrupts()).prepared
    assert (name, tokenizer.fingerprint) == ("tokenizer.harris", prepared.tokenizer.fingerprint)
    assert value["fingerprint"] == tokenizer.fingerprint
    library = tokenizers.Tokenizer.from_file(str(current_folder / "made" / "tokenizer.json"))
    assert library.encode("root and leaf grows").ids == tokenizer.encode(b"root and leaf grows").tolist()


def test_train_takes_settings_and_plugins(andrea, harris):
    """Another size or kind is trained when it is asked for."""
    value = json.loads(andrea("tokenizer", "train", harris, "--set", HARRIS, "--json").out)
    assert (value["plugin"], value["ids"]) == ("tokenizer.harris", 287)
    arguments = ("--plugin", "tokenizer.bpe", "--set", "tokenizer.bpe.segments=9", "--out", "bpe", "--json")
    value = json.loads(andrea("tokenizer", "train", harris, *arguments).out)
    assert (value["plugin"], value["ids"]) == ("tokenizer.bpe", 266)


def test_train_on_plain_files(andrea, current_folder):
    """Files need no experiment: text and JSON lines each find their reader, and a file may be a single document."""
    words = ["seed", "root", "leaf", "stem", "grows", "under", "rain"]
    (current_folder / "a.jsonl").write_text("".join(json.dumps({"text": f"{w} and {w}ing" * 3}) + "\n" for w in words))
    (current_folder / "a.txt").write_text("\n\n".join(f"the {w} of rain\n" * 40 for w in words * 9))
    (current_folder / "b.txt").write_text("one line")
    ended = andrea("tokenizer", "train", "a.jsonl", "a.txt", "b.txt", "--set", HARRIS, "--out", "made")
    assert ended.code == 0, ended.err
    assert "tokenizer.harris with 287 ids in made" in ended.out
    assert open_tokenizer(current_folder / "made")[1].size == 287


@pytest.mark.parametrize(
    ("name", "data", "said", "cure"),
    [
        ("a.txt", b"caf\xe9", "a.txt is not UTF-8", "--set source.text.OPTION=VALUE"),
        ("a.jsonl", b'{"body": "x"}\n' * 9, "line 1 has no field 'text'", "--set source.jsonl.OPTION=VALUE"),
        ("a.txt", b"", "a.txt: there is no text in it", "give files that hold some"),
    ],
)
def test_plain_files_that_cannot_be_read(andrea, current_folder, name, data, said, cure):
    """What is said of their reader's options can be done, though there is no experiment to write them into."""
    (current_folder / name).write_bytes(data)
    ended = andrea("tokenizer", "train", name, "--set", HARRIS)
    assert ended.code == 2
    assert said in ended.err
    assert cure in ended.err


def test_plain_files_with_options_of_their_readers(andrea, current_folder):
    """Each setting goes to the source that its reader makes, the others to the tokenizer."""
    words = ["seed", "root", "leaf", "stem"] * 9
    (current_folder / "a.jsonl").write_text("".join(json.dumps({"body": f"{w} and {w}ing" * 3}) + "\n" for w in words))
    (current_folder / "a.txt").write_bytes(b"caf\xe9 and t\xe9\n\n" * 60)
    settings = ("source.jsonl.text=body", "source.text.encoding=latin-1", "source.text.chunk=20", HARRIS)
    ended = andrea("tokenizer", "train", "a.jsonl", "a.txt", *(part for one in settings for part in ("--set", one)))
    assert ended.code == 0, ended.err
    assert "with 287 ids" in ended.out


def test_a_file_is_not_counted_twice(andrea, current_folder):
    """A file that is named twice is an error, by whatever name."""
    (current_folder / "a.txt").write_text("a text of some words\n\n" * 900)
    ended = andrea("tokenizer", "train", "a.txt", "./a.txt")
    assert ended.code == 2
    assert "a.txt is given twice" in ended.err


@pytest.mark.parametrize("what", [("mine.json", "a.txt"), ("a.txt", "mine.json"), ("a.txt", "quickstart")])
def test_an_experiment_stands_alone(andrea, current_folder, what):
    """Its JSON is no text to learn from, and its text would not be read."""
    (current_folder / "a.txt").write_text("a text of some words\n\n" * 900)
    (current_folder / "mine.json").write_text("{}")
    ended = andrea("tokenizer", "train", *what)
    assert ended.code == 2
    one = next(name for name in what if name != "a.txt")
    assert f"{one} is an experiment, which has its own text and stands alone" in ended.err
    assert f"andrea tokenizer train {one}" in ended.err


def test_a_wrong_tokenizer_is_told_before_text_is_prepared(andrea, harris):
    """Preparing may take hours."""
    for arguments in (
        ("tokenizer", "diet", harris, "--tokenizer", "nowhere"),
        ("prepare", harris, "--set", "data.tokenizer=nowhere"),
        ("prepare", harris, "--dry-run", "--plugin", "tokenizer.library", "--set", "tokenizer.library.path=nowhere"),
    ):
        ended = andrea(*arguments)
        assert ended.code == 2
        assert "nowhere" in ended.err
        assert "does not exist" in ended.err
        assert "reading" not in ended.err


def test_train_overwrites_nothing(andrea, current_folder, harris):
    """A folder that exists is the user's."""
    (current_folder / "made").mkdir()
    ended = andrea("tokenizer", "train", harris, "--out", "made")
    assert ended.code == 2
    assert "made exists already" in ended.err
    assert list((current_folder / "made").iterdir()) == []


def test_a_copy_that_fails_leaves_nothing(andrea, current_folder, harris, monkeypatch):
    """Half a tokenizer is cleared away, also one of a command that was killed; the next command works."""
    real = shutil.copytree

    def fail(source, target, **options):
        real(source, target, **options)
        raise SystemExit(130)

    (current_folder / "made.partial").mkdir()
    monkeypatch.setattr(shutil, "copytree", fail)
    assert andrea("tokenizer", "train", harris, "--out", "made").code == 130
    assert not list(current_folder.glob("made*"))
    (current_folder / "made.partial").mkdir()
    monkeypatch.setattr(shutil, "copytree", real)
    assert andrea("tokenizer", "train", harris, "--out", "made").code == 0
    assert [path.name for path in current_folder.glob("made*")] == ["made"]


def test_what_is_not_there(andrea):
    """A missing file, experiment or tokenizer is named, with what to do."""
    assert "there is no file gone.txt" in andrea("tokenizer", "train", "gone.txt", "also.txt").err
    assert "there is no experiment or file 'gone'" in andrea("tokenizer", "train", "gone").err
    assert "no tokenizer plugin can load gone" in andrea("tokenizer", "inspect", "gone").err


def test_inspect_shows_use_and_cuts(andrea, harris):
    """Segments come by use, and texts with their cuts; the same in JSON."""
    andrea("tokenizer", "train", harris, "--out", "made")
    ended = andrea("tokenizer", "inspect", "made", "--text", "root zq", "--most", "3")
    assert ended.code == 0, ended.err
    assert "|z|q" in ended.out
    value = json.loads(andrea("tokenizer", "inspect", "made", "--most", "3", "--json").out)
    assert value["segments"] == 12 == value["used"] + value["never used"]
    assert len(value["most used"]) == 3
    counts = [count for _, count in value["most used"] + value["least used"]]
    assert counts == sorted(counts, reverse=True)
    assert any(segment.strip() in ("seed", "root", "leaf", "stem", "and") for segment, _ in value["most used"])


def test_inspect_a_tokenizer_without_counts(andrea, experiment):
    """A tokenizer that keeps no counts is shown without them."""
    andrea("tokenizer", "train", experiment, "--out", "made")
    value = json.loads(andrea("tokenizer", "inspect", "made", "--json").out)
    assert value["plugin"] == "tokenizer.byte"
    assert value["segments"] == 0
    assert "most used" not in value


def test_a_run_is_inspected_and_put_on_a_diet(andrea, current_folder, harris):
    """A run's own text counts: what inspect says of its tokenizer is what the token files hold."""
    assert andrea("run", harris, "--steps", "2", "--out", "made").code == 0
    value = json.loads(andrea("tokenizer", "inspect", "made", "--json").out)
    assert value["counted in"] == "the run's training text"
    of_run = andrea("tokenizer", "diet", "made", "--sizes", "", "--json")
    assert of_run.code == 0, of_run.err
    of_experiment = andrea("tokenizer", "diet", harris, "--sizes", "", "--json")
    assert json.loads(of_run.out) == json.loads(of_experiment.out)
    assert json.loads(of_run.out)["never"] == value["never used"]


def test_diet_of_the_right_text(andrea, harris):
    """On the text it was trained for, 95% and more of the segments are used; every source has its row."""
    ended = andrea("tokenizer", "diet", harris, "--sizes", "8,16", "--plot", "sweep.svg")
    assert ended.code == 0, ended.err
    assert "of 12 segments" in ended.out
    value = json.loads(andrea("tokenizer", "diet", harris, "--sizes", "8,16", "--json").out)
    assert [row["source"] for row in value["sources"]] == ["one", "two", "mix"]
    assert value["sources"][-1]["used"] >= 0.95
    assert [(point["tokenizer"], point["segments"]) for point in value["sweep"]] == [
        *(("tokenizer.harris", 8), ("tokenizer.bpe", 8), ("tokenizer.harris", 16), ("tokenizer.bpe", 16)),
    ]
    assert len(list(ElementTree.parse("sweep.svg").iter("{http://www.w3.org/2000/svg}polyline"))) == 4


def test_diet_of_a_tokenizer_for_other_text(andrea, current_folder, harris):
    """A tokenizer that was trained on code alone is mostly waste for the experiment's prose, and diet says so."""
    code = Path(sysconfig.get_paths()["stdlib"]) / "argparse.py"
    assert andrea("tokenizer", "train", code, "--set", "tokenizer.harris.segments=400", "--out", "code").code == 0
    own = json.loads(andrea("tokenizer", "diet", harris, "--sizes", "", "--json").out)
    wrong = json.loads(andrea("tokenizer", "diet", harris, "--tokenizer", "code", "--sizes", "", "--json").out)
    assert wrong["segments"] == 400
    assert wrong["never"] > 300
    assert wrong["sources"][-1]["used"] < 0.25 < own["sources"][-1]["used"]
    assert wrong["sources"][-1]["bytes_per_token"] < own["sources"][-1]["bytes_per_token"]


@pytest.mark.parametrize(
    "arguments", [("--sizes", "many"), ("--sizes", "0"), ("--plot", "a.png"), ("--sizes", "", "--plot", "a.svg")]
)
def test_senseless_options(andrea, experiment, arguments):
    """Sizes are whole numbers from 1, and the plot of a sweep needs one."""
    ended = andrea("tokenizer", "diet", experiment, *arguments)
    assert ended.code == 2
    assert "--sizes" in ended.err


def test_open_tokenizer_names_every_plugin(tmp_path):
    """A folder that nobody can load is an error that says what each plugin missed."""
    with pytest.raises(AndreaError, match=r"(?s)bpe.json.*harris_segments.json"):
        open_tokenizer(tmp_path)
