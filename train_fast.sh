#!/bin/sh
# Trains with small, frequent updates and mixed precision: first results in seconds. More flags may follow.
cd "$(dirname "$0")" || exit 1
if [ ! -x .venv/bin/python ]; then
    echo "movelist is not set up here yet: run 'make install' first." >&2
    exit 1
fi
# How fast these settings are here, by turns with those of --preset fast; about 15 seconds.
.venv/bin/python profile_performance.py --ratio fast --preset guide "$@" || exit $?
exec .venv/bin/python train.py --batch_size 128 --update_frequency 5 --epochs_per_update 4 --use_amp "$@"
