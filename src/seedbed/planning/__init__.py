"""Prediction of a run from its declared program and the measured costs of its stages."""
