"""A setting of the command line is JSON or text, and reaches a section or a plugin's option."""

from __future__ import annotations

import pytest

from andrea.errors import AndreaError
from andrea.settings import override, parse_setting

PLUGINS = ["bandit.ucb1", "bandit.ucb1.fast", "sampler.dice", "stop.max_steps"]


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("seed=3", "seed", 3),
        ("a.b=1e-3", "a.b", 1e-3),
        ("a=true", "a", True),
        ("a=null", "a", None),
        ("a=[1, 2]", "a", [1, 2]),
        ('a={"b": 1}', "a", {"b": 1}),
        ('a="3"', "a", "3"),
        ("a=text", "a", "text"),
        ("a=b=c", "a", "b=c"),
        ("a=", "a", ""),
    ],
)
def test_a_setting_is_json_when_it_parses_and_text_otherwise(setting, key, value):
    """The first equals sign divides; what is not JSON is a text."""
    assert parse_setting(setting) == (key, value)


@pytest.mark.parametrize("setting", ["seed", "=3", ""])
def test_a_setting_without_key_or_value_is_refused(setting):
    """What is not KEY=VALUE is answered with an example."""
    with pytest.raises(AndreaError, match="is not KEY=VALUE") as caught:
        parse_setting(setting)
    assert "--set schedule.peak=1e-3" in caught.value.hint


def test_a_setting_of_nan_is_refused():
    """A number that is not finite cannot come in by the command line."""
    with pytest.raises(AndreaError, match="NaN is not a number"):
        parse_setting("schedule.peak=NaN")


def test_the_longest_name_of_a_plugin_wins():
    """An option of bandit.ucb1.fast is not an option called fast.x of bandit.ucb1."""
    value = {"plugins": {"sampler.dice": {"lengths": [7]}}}
    override(value, "bandit.ucb1.fast.rate", 2, PLUGINS)
    override(value, "bandit.ucb1.exploration", 3, PLUGINS)
    override(value, "sampler.dice.lengths", [1], PLUGINS)

    assert value["plugins"] == {
        "sampler.dice": {"lengths": [1]},
        "bandit.ucb1.fast": {"rate": 2},
        "bandit.ucb1": {"exploration": 3},
    }


def test_a_setting_reaches_into_sections():
    """Dots are sections; a section that is not there is made."""
    value = {"model": {"n_layer": 1}}
    override(value, "model.n_layer", 2, PLUGINS)
    override(value, "schedule.peak", 0.1, PLUGINS)
    override(value, "seed", 4, PLUGINS)

    assert value == {"model": {"n_layer": 2}, "schedule": {"peak": 0.1}, "seed": 4}


@pytest.mark.parametrize(
    ("key", "suggested"),
    [
        ("shedule.peak", "schedule"),
        ("modl.n_layer", "model"),
        ("bandit.ucb.exploration", "bandit.ucb1"),
        ("stop.maxsteps.steps", "stop.max_steps"),
    ],
)
def test_an_unknown_section_or_plugin_is_answered_with_the_nearest(key, suggested):
    """A misspelt section or plugin in ``--set`` is suggested."""
    with pytest.raises(AndreaError, match="there is no section or plugin") as caught:
        override({}, key, 1, PLUGINS)
    assert suggested in caught.value.hint


@pytest.mark.parametrize(
    ("value", "key"),
    [({"seed": 1}, "seed.x"), ({"plugins": 3}, "bandit.ucb1.x"), ({"plugins": {"bandit.ucb1": 3}}, "bandit.ucb1.x")],
)
def test_a_setting_below_a_value_is_refused(value, key):
    """What is no object has no keys that could be set."""
    with pytest.raises(AndreaError, match="has no keys of its own"):
        override(value, key, 1, PLUGINS)


def test_setting_within_a_list_says_how(tiny):
    """Elements of a list have no keys; the list as a whole can be set."""
    with pytest.raises(AndreaError, match="'sources' is a list") as caught:
        override(tiny, "sources.0.name", "b", [])
    assert caught.value.hint == "set all of it: --set 'sources=[...]'"
