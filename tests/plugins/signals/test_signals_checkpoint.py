"""signals.checkpoint: what each signal asks for."""

from __future__ import annotations

from andrea.plugins.signals import checkpoint


def test_signals_ask_for_what_is_promised():
    """Terminate and interrupt save and stop, the user's signal saves, any other is left to others."""
    assert checkpoint.on_signal(signal="SIGTERM") == {"checkpoint", "stop"}
    assert checkpoint.on_signal(signal="SIGINT") == {"checkpoint", "stop"}
    assert checkpoint.on_signal(signal="SIGUSR1") == {"checkpoint"}
    assert checkpoint.on_signal(signal="SIGHUP") is None


def test_answers_are_not_shared():
    """A caller that empties an answer changes no later one."""
    checkpoint.on_signal(signal="SIGTERM").clear()
    assert checkpoint.on_signal(signal="SIGTERM") == {"checkpoint", "stop"}
