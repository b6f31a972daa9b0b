"""Processes that are started here: argv and environment of the ranks, and the end of whatever was started. Never imports torch."""
