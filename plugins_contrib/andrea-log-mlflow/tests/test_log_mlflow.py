import json
import math
from types import SimpleNamespace

import pytest
from andrea_log_mlflow import MLflow, _flat, _name
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from andrea import AndreaError, hookimpl
from andrea.plugin import get_state
from andrea.testing import check_plugin, run_steps

# SQLAlchemy 2.1 warns of what MLflow does with it; that is between the two.
pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")


@pytest.fixture(scope="module")
def uri(tmp_path_factory):
    """Return a store for all tests: making its tables takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}"


@pytest.fixture(autouse=True)
def store(uri, monkeypatch):
    """Make it the one that is used where no other is named."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)


@pytest.fixture
def client(uri):
    """Return the library's own reader."""
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def run_of(client, folder):
    """Return the run that a folder remembers."""
    return client.get_run(json.loads((folder / "mlflow.json").read_text())["run_id"])


def points(client, run):
    """Return (step, value) of every point by key."""
    return {
        key: sorted((point.step, point.value) for point in client.get_metric_history(run.info.run_id, key))
        for key in run.data.metrics
    }


def text_of(client, run, name, folder):
    """Return a file of a run."""
    folder.mkdir(exist_ok=True)
    with open(client.download_artifacts(run.info.run_id, name, str(folder)), encoding="utf-8") as file:  # noqa: PTH123
        return file.read()


def test_it_keeps_its_contracts():
    """All of the kit; its cut runs have a folder, so points are logged."""
    check_plugin("log.mlflow", every=3)


def test_points_are_those_of_the_journal_and_a_resume_doubles_none(log_runs, journal_of, client):
    """A run that made seven steps twice has every point once, in one run, and the same as one that did not."""
    whole, cut = log_runs("--plugin", "log.mlflow", "--set", "log.mlflow.every=1", "--set", "log.mlflow.seconds=0.05")
    first, second = run_of(client, whole), run_of(client, cut)
    assert first.info.run_id != second.info.run_id
    assert (first.info.run_name, first.info.status) == ("whole", "FINISHED")
    found = points(client, first)
    assert points(client, second) == found
    lines = list(journal_of(whole))
    steps = [line for line in lines if line["kind"] == "step"]
    assert len(steps) == 30
    assert found["train/loss"] == [(line["step"] + 1, line["loss"]) for line in steps]
    assert found["train/gradient_norm"] == [(line["step"] + 1, line["grad_norm"]) for line in steps]
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    assert found["held_out/one/bits_per_byte"] == [(line["step"], line["bits_per_byte"]["one"]) for line in evaluations]
    assert len(evaluations) == 6


def test_samples_and_configuration_are_logged(log_runs, journal_of, client, tmp_path):
    """Samples as a file for each step; the configuration as a file and, leaf by leaf, as parameters."""
    whole, cut = log_runs("--plugin", "log.mlflow")
    for folder in (whole, cut):
        run, lines = run_of(client, folder), journal_of(folder)
        samples = {line["step"]: line["texts"] for line in lines if line["kind"] == "sample"}
        names = [file.path for file in client.list_artifacts(run.info.run_id, "samples")]
        assert names == [f"samples/step_{step:06d}.json" for step in samples]
        for step, texts in samples.items():
            rows = json.loads(text_of(client, run, f"samples/step_{step:06d}.json", tmp_path / folder.name))
            assert [row["prompt"] + row["text"] for row in rows] == texts
        config = json.loads((folder / "config.json").read_text())
        assert json.loads(text_of(client, run, "config.json", tmp_path / folder.name)) == config
        assert run.data.params["schedule.peak"] == "0.003"
        assert run.data.params["sources.1.name"] == '"two"'
        assert len(run.data.params) == len(list(_flat(config)))
    assert [step for step, _ in points(client, run_of(client, whole))["train/loss"]] == [1, 10, 20, 30]


def test_an_interruption_closes_the_run(interrupt, tmp_path, journal_of, client):
    """By SIGTERM: what waited is sent, and the run counts as killed."""
    arguments = ["--plugin", "log.mlflow", "--set", "log.mlflow.every=1", "--set", "log.mlflow.seconds=999"]
    assert interrupt([*arguments, "--steps", "9999", "--out", "run"], tmp_path / "run" / "journal.jsonl") == 143
    made = sum(line["kind"] == "step" for line in journal_of(tmp_path / "run"))
    run = run_of(client, tmp_path / "run")
    assert run.info.status == "KILLED"
    assert [step for step, _ in points(client, run)["train/loss"]] == list(range(1, made + 1))


class Broken:
    """Fail at step 7."""

    @hookimpl
    def should_stop(self, record):
        """Raise."""
        if record.step == 6:
            raise ZeroDivisionError


def test_a_failure_closes_the_run(tmp_path, client):
    """As failed, and the plugin holds nothing any more."""
    log = MLflow(every=1)
    with pytest.raises(ZeroDivisionError):
        run_steps([("log.mlflow", log), ("stop.broken", Broken())], 20, folder=tmp_path)
    run = run_of(client, tmp_path)
    assert run.info.status == "FAILED"
    assert [step for step, _ in points(client, run)["train/loss"]] == list(range(1, 8))
    assert log._client is None
    assert get_state(log) == {}


def test_a_store_that_fails_for_a_while_holds_up_no_run(tmp_path, client, monkeypatch, capsys):
    """It is told of; the points wait, and are sent when it answers again."""
    log_batch, calls = MlflowClient.log_batch, []

    def fail_twice(self, *arguments, **named):
        if named.get("metrics"):
            calls.append(len(named["metrics"]))
            if len(calls) < 3:
                raise MlflowException("out of order")
        return log_batch(self, *arguments, **named)

    monkeypatch.setattr(MlflowClient, "log_batch", fail_twice)
    run_steps({"log.mlflow": {"every": 1, "seconds": 0.0}}, 6, folder=tmp_path)
    assert calls[0] < calls[1] < calls[2]
    assert capsys.readouterr().err.count("log.mlflow: out of order") == 2
    assert [step for step, _ in points(client, run_of(client, tmp_path))["train/loss"]] == [1, 2, 3, 4, 5, 6]


def test_losses_that_are_no_numbers_are_logged(tmp_path, client):
    """NaN stays NaN."""
    from andrea.testing import FakeEngine

    run_steps({"log.mlflow": {"every": 1}}, 4, folder=tmp_path, engine=lambda config: FakeEngine(config, (1,)))
    found = points(client, run_of(client, tmp_path))
    assert len(found["train/loss"]) == 4
    assert [value for _, value in found["train/skipped"]] == [0.0, 1.0, 0.0, 0.0]
    assert all(math.isfinite(value) for _, value in found["train/learning_rate"])


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    """A run that writes nothing is not logged either."""
    monkeypatch.chdir(tmp_path)
    run_steps({"log.mlflow": {}}, 5)
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_a_store_makes_one_beside_it(tmp_path, monkeypatch):
    """In the folder of runs, with its files, so that runs of one folder are listed together."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    run_steps({"log.mlflow": {}}, 2, folder=tmp_path / "runs" / "a")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["a", "mlflow-artifacts", "mlflow.db"]


def test_what_cannot_be_opened_is_said(tmp_path):
    """A store that is none, before any training; a run that is gone."""
    with pytest.raises(AndreaError, match=r"cannot open nonsense://x") as caught:
        MLflow(uri="nonsense://x").on_start(run=SimpleNamespace(folder=tmp_path))
    assert "log.mlflow.uri" in caught.value.hint
    assert not (tmp_path / "mlflow.json").exists()
    for content in ("{", "[]", '{"run_id": "unknown"}'):
        (tmp_path / "mlflow.json").write_text(content)
        with pytest.raises(AndreaError, match=r"cannot go on with the run that .*mlflow\.json names") as caught:
            run_steps({"log.mlflow": {}}, 5, folder=tmp_path)
        assert "remove the file" in caught.value.hint


@pytest.mark.parametrize("options", [{"every": 0}, {"seconds": -1.0}])
def test_senseless_options_are_refused(options):
    """The error says what to type instead."""
    with pytest.raises(AndreaError, match=r"log\.mlflow has") as caught:
        MLflow(**options).on_start(run=SimpleNamespace(folder=None))
    assert "--set" in caught.value.hint


def test_names_are_those_that_mlflow_takes():
    """Other characters become underscores."""
    assert _name("share/a b-c.d:e(f)#") == "share/a b-c.d:e_f__"
