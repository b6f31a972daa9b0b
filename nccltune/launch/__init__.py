"""From a number of ranks to processes: argv and environment. Never measures, never imports torch."""
