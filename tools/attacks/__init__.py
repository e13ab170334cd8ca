"""Attacks on whole runs, as rows of one table; ``tools/attack.py`` is the command."""
