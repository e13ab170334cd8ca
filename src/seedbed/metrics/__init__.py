"""Measurements of a run: a registry of names, meters that count, sinks that keep, and reports that show.

A *row* is a mapping of registered names to numbers, all measured at one moment. Meters make the numbers,
:class:`~seedbed.metrics.sinks.Record` checks the names and hands the row to every sink.
"""
