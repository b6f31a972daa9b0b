"""The cost model: pure functions on arrays and schemas. No I/O, no torch, no click; scipy.optimize only where a fit runs."""
