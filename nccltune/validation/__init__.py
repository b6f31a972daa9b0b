"""How far predictions are from a real engine: score measured points, read its traces, or run a server per arm.

``points`` scores a file, ``trace`` reads a profiler's trace, ``session`` runs servers; all end in ``compare``.
"""
