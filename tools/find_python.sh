#!/bin/sh
# Prints the newest Python on this machine that Seedbed can be installed with, or one line that says what to do.
#
# Looked at: python3.N on the PATH, the versions that pyenv holds (its commands on the PATH work only for the
# version that is switched on), python3 and python. Newer than 3.14 is not taken: nobody has tried
# it. On CPU, JAX trains about twice as fast on 3.12 and 3.13 as on 3.11.

works() { # it runs, is no venv itself, is 64-bit, has a version with all wheels, and can make a venv
    "$1" -c '
import sys
assert (3, 11) <= sys.version_info[:2] <= (3, 14) and sys.maxsize > 2**32 and sys.prefix == sys.base_prefix
import ctypes, ensurepip, sqlite3, ssl, venv, zlib
' >/dev/null 2>&1
}

# One path a line, newest version first. PATH is searched by hand: a broken first python3.N may hide a working one.
candidates() {
    for minor in 14 13 12 11; do
        on_path "python3.$minor"
        for root in "${PYENV_ROOT:-}" "${HOME:-}/.pyenv"; do
            for folder in "$root/versions/3.$minor".*; do
                echo "$folder/bin/python"
            done
        done
    done
    on_path python3
    on_path python
}

on_path() {
    (
        IFS=:
        for folder in $PATH; do
            echo "${folder:-.}/$1"
        done
    )
}

candidates | {
    while IFS= read -r python; do
        if [ -x "$python" ] && works "$python"; then
            echo "$python"
            exit 0
        fi
    done
    exit 1
} || {
    echo "no Python between 3.11 and 3.14 that works was found. Install one, with its venv module, or name it: make PYTHON=python3.12 ..." >&2
    exit 1
}
