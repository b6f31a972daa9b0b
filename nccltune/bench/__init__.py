"""Measuring: the manager that spawns ranks and keeps records, and the worker that runs the collectives."""
