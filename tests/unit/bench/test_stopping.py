"""Signals during a walk: the first is a request, the second an interrupt, and none cuts into the clean-up."""

import os
import signal
import threading

import pytest

from nccltune.bench.stopping import StopSignals

ALL = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", ALL)
def test_first_requests_second_interrupts_and_the_old_handler_comes_back(number):
    old = signal.getsignal(number)
    told = threading.Event()
    stop = StopSignals(told.set)
    with stop:
        os.kill(os.getpid(), number)
        assert stop.requested
        assert told.wait(5)
        told.clear()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) == old
    assert not told.wait(0.05), "told once"


def test_the_user_is_told_outside_of_the_code_that_the_signal_cut_into():
    """Drawing in the handler would draw in the middle of drawing, or of importing what draws."""
    threads = []
    told = threading.Event()

    def tell():
        threads.append(threading.get_ident())
        told.set()

    with StopSignals(tell):
        os.kill(os.getpid(), signal.SIGINT)
        assert told.wait(5)
    assert threads != [threading.get_ident()]


def test_the_clean_up_is_not_cut_short():
    with StopSignals(lambda: None) as stop:
        stop.shield()
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    assert not stop.requested


def test_a_lost_terminal_does_not_turn_the_request_into_an_error():
    def gone():
        raise OSError("Input/output error")

    with StopSignals(gone) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
    assert stop.requested


def test_under_nohup_a_hangup_stays_ignored():
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals(lambda: None) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
        assert not stop.requested
    finally:
        signal.signal(signal.SIGHUP, old)


def test_outside_the_main_thread_nothing_changes():
    found = []

    def enter():
        with StopSignals(lambda: None):
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
