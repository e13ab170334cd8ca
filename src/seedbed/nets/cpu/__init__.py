"""Convolutions and max-pools on a CPU by oneDNN, as an extension that Seedbed does without where it is missing.

``python -m seedbed.nets.cpu.build`` compiles it (``make install`` does); :mod:`~seedbed.nets.cpu.library` finds,
proves and opens it; :mod:`~seedbed.nets.cpu.operations` are its functions. :mod:`seedbed.nets.convolutions`, the one
seam of all convolutions, is the only part of Seedbed that calls them.
"""
