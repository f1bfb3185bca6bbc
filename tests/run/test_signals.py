"""The first signal is a wish, the second leaves at once, and the handlers come back."""

import os
import signal
import threading

import pytest

from movelist.run.signals import WISHES, break_off_on_signals, stop_on_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_wish_and_the_handlers_come_back(number):
    before = signal.getsignal(number)
    said = []
    with stop_on_signals(said.append) as stop:
        assert not stop
        signal.raise_signal(number)
        assert stop == [number]
    assert said == ["Stopping after this update. Once more to leave at once."]
    assert signal.getsignal(number) is before


def test_the_second_signal_leaves_at_once(monkeypatch):
    left = []
    monkeypatch.setattr(os, "_exit", left.append)
    with stop_on_signals(lambda line: None):
        signal.raise_signal(signal.SIGINT)
        assert left == []
        signal.raise_signal(signal.SIGTERM)
    assert left == [128 + signal.SIGTERM]


def test_the_handlers_come_back_after_an_error():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), stop_on_signals(lambda line: None):
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_than_the_main_one_handles_no_signals():
    before, stops = signal.getsignal(signal.SIGINT), []

    def work():
        with stop_on_signals(lambda line: None) as stop:
            stops.append(list(stop))
            stops.append(signal.getsignal(signal.SIGINT) is before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert stops == [[], True]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_in_the_middle_of_a_write_to_the_screen():
    """Python refuses to enter a stream twice; the wish counts all the same."""

    def reentrant(line):
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")

    with stop_on_signals(reentrant) as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop == [signal.SIGTERM]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_going_on_can_be_broken_off(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), break_off_on_signals():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_windows_third_signal_is_a_wish_where_it_exists():
    assert {signal.SIGINT, signal.SIGTERM} <= set(WISHES)
    assert len(WISHES) == 2 + hasattr(signal, "SIGBREAK")
