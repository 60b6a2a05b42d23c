"""Clocks: the machine's, a test's and a server's, and sleeping until a time."""

from dwell.clock.clock import Clock, RealClock, SimulatedClock

__all__ = ["Clock", "RealClock", "SimulatedClock"]
