"""What all tests need."""

import signal

# Whoever starts the tests in the background of a script has them ignore Ctrl-C, and every process that they start
# would inherit that; tests that interrupt one would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
