"""Timed stages, and architectures compared side by side."""
