"""Convolutions and max-pools on a CPU by oneDNN, as an extension that Orchard does without where it is missing.

``python -m orchard.nets.native.build`` compiles it (``make install`` does); :mod:`~orchard.nets.native.library` finds,
proves and opens it; :mod:`~orchard.nets.native.operations` are its functions. :mod:`orchard.nets.convolutions`, the one
seam of all convolutions, is the only part of Orchard that calls them.
"""
