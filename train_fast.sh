#!/bin/sh
# Trains with the fastest settings that were measured on this kind of machine, and says which. More flags may follow;
# --preset guide trains with small, frequent updates instead.
cd "$(dirname "$0")" || exit 1
if [ ! -x .venv/bin/python ]; then
    echo "movelist is not set up here yet: run 'make install' first." >&2
    exit 1
fi
exec .venv/bin/python train.py --preset fast "$@"
