"""An export profile of one's own: compressed plain weights, proven equal to torch and played like the others."""

import zlib

import movelist
from movelist.play import profiles, weights_file
from movelist.play.scorers import WeightsScorer

PACKED = profiles.ExportProfile(
    name="packed",
    suffix=".packed",
    to_bytes=lambda net, info, value: zlib.compress(weights_file.to_bytes(net, info)),
    reader=lambda content, where: WeightsScorer(zlib.decompress(content), where),
    holds_value=False,
)

if __name__ == "__main__":
    profiles.PROFILES.append(PACKED)
    result = movelist.train("kuhn_poker", total_steps=3_000, eval_games=200, hidden_dim=64)
    print(movelist.export(result.folder, "policy.packed", "packed"))
    print(movelist.match("policy.packed", num_games=20))
