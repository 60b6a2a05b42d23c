"""The simulation: queue, store, takers and clients on simulated clock, disk and network."""
