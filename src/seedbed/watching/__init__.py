"""The watching of runs: their folders are read, in a terminal or by a browser, and nothing in them is changed."""
