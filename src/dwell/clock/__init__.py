"""What time it is: the machine's, a test's, a server's, and being woken at one."""

from dwell.clock.clock import Clock, RealClock, SimulatedClock

__all__ = ["Clock", "RealClock", "SimulatedClock"]
