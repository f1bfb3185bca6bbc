"""A callback after each update, as loggers need it: wandb.log(update.metrics, step=update.steps) would stand here."""

import json
import sys

import movelist


def log(update):
    print(json.dumps({"update": update.number, "steps": update.steps, "entropy": update.metrics["losses/entropy"]}))
    sys.stdout.flush()


if __name__ == "__main__":
    movelist.train("kuhn_poker", after_update=log, total_steps=3_000, eval_games=200, hidden_dim=64)
