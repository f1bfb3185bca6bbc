"""A profile's words in English. texts_zh.py has the same names; numbers stand in braces."""

VERDICTS = {
    "loading": "Training waits for its data: {share:.0%} of the time goes into loading episodes. A faster update would "
    "only wait longer.",
    "playing": "Collecting is the limit: {share:.0%} of the time is spent playing games, so a faster update would gain "
    "little.",
    "logging": "Logging and saving take {share:.0%} of the time.",
    "waiting": "The GPU has nothing to do for {share:.0%} of the time, and in each update the host waits for it "
    "{waits:,.0f} times more than it needs to.",
    "feeding": "The GPU has nothing to do for {share:.0%} of the time: its operations are small, and the host cannot "
    "hand them out fast enough.",
    "copying": "Copies between host and device take {share:.0%} of the device's busy time.",
    "small": "The time goes into many small operations: the update reaches {efficiency:.1%} of what matrix products "
    "reach on this device.",
    "computing": "The time goes where it should, into computing: {steps:,.0f} steps/s, and the update reaches "
    "{efficiency:.1%} of this device's matrix product rate.",
}

WARNINGS = {
    "idle_though_used": "The driver says that the GPU is {use:.0%} used, but it computes for {busy:.0%} of the time: "
    "it is idle. The driver counts any kernel as use, however small.",
    "waits": "In each update the host waits for the device {count:,.0f} times more than needed (places: {places}); "
    "most often at {where}.",
    "copies": "Copies between host and device take {share:.0%} of the device's busy time; below 15% is good.",
    "pageable": "{count:,.0f} copies an update use memory that is not pinned, so the host waits for each of them.",
    "retries": "The GPU's memory was full {count:,.0f} times: the allocator gave its cache back and asked again.",
    "tight": "{share:.0%} of the memory is in use: a somewhat larger batch will not fit.",
    "few_episodes": "So few episodes for an update ({episodes:,.0f}) make a noisy gradient and small network calls.",
    "few_minibatches": "Minibatches an epoch: {count}, which are few steps of learning for the games played.",
    "amp_without_effect": "--use_amp does nothing here: mixed precision needs a device with units for it.",
    "amp_is_slower": "--use_amp makes layers of {hidden} slower on a CPU; it helps from {width} on.",
    "recompiles": "torch.compile made {count} graphs; up to 5 are usual. Some part of the network asks about sizes.",
    "look": 'The look "{look}" took {ratio:.1f} times the time of the plain one: take the shares it found with care.',
    "uneven": "The updates' seconds differ by {spread:.0%}: something else uses this machine, or lengths of games "
    "vary.",
}

# By kind of advice: why.
ADVICE = {
    "loading": "loading takes {share:.0%} of the time; a store has the recordings checked, credited and ready (unless "
    "it is a store already: then move it to a local disk)",
    "few_games": "a network call answers {states:,.0f} states on average, and collecting takes {share:.0%} of the time",
    "small_calls": "no more games than this run at once; a network call answers {states:,.0f} states on average",
    "slow_game": "the game's own code takes {share:.0%} of the time on one of {cores} cores; other processes can play",
    "few_episodes": "so few episodes for an update ({episodes:,.0f}) make a noisy gradient and small network calls",
    "few_minibatches": "minibatches an epoch: {count}; with more episodes an update makes at least 4 steps of learning",
    "small_batch": "batches of {batch:,} steps are small operations; larger ones share their cost, and their different "
    "actions, among more steps (now at {efficiency:.1%} of the matrix product rate)",
    "cut_batches": "batches are cut to {steps:,.0f} steps of {wanted:,.0f}, because their lists are long",
    "no_amp": "{share:.0%} of the device's time is in the network's towers, which this device computes faster in "
    "{dtype}",
    "no_compile_gpu": "the host cannot hand out small operations fast enough; one graph has fewer (the first update "
    "takes longer)",
    "no_compile_cpu": "layers of {hidden} are narrow, so operations are small; one graph has fewer (the first update "
    "takes longer)",
    "too_many_threads": "{threads} threads share products that are too small for it, and wait for each other (now at "
    "{efficiency:.1%} of the matrix product rate)",
    "too_few_threads": "{threads} threads compute on {cores} cores, and the layers are wide enough for more",
    "tight_memory": "the GPU's memory was full {count:,.0f} times; smaller pieces of a batch give the same result",
    "fragmented": "{share:.0%} of the memory that the allocator keeps is in no use even at the peak",
    "often_saved": "logging and saving take {share:.0%} of the time, with a checkpoint every {every} updates",
    "tried": "found by trying",
}

SPANS = {
    "game": "the game's own code",
    "plan": "planning batches",
    "load": "loading episodes",
    "copy": "copying to the device",
    "forward": "forward pass",
    "loss": "loss",
    "backward": "backward pass",
    "optimiser": "optimiser",
    "logging": "logging and saving",
    "idle": "all else, and waiting",
}

CRITERIA = {
    "gpu_use": "GPU use",
    "memory": "Memory: peak allocated of reserved",
    "copies": "Copies, share of device time",
    "compute": "Compute, share of device time",
    "speed_up": "Speed-up over one network call a step",
}
GOALS = {
    "gpu_use": "over 75%",
    "memory": "over 70%",
    "copies": "under 15%",
    "compute": "over 60%",
    "speed_up": "2 to 5 times",
}
OUTCOMES = {"met": "met", "missed": "missed", "absent": "not applicable here"}
TO_DO = {
    "gpu_use": "Raise --batch_size and --num_games; mend the waits below; try --compile on.",
    "memory": "Nothing is lost while the card has room. Otherwise --empty_cache_every 10.",
    "copies": "Look for copies from memory that is not pinned, and for reads in the middle of an update.",
    "compute": "Larger batches, fewer reads and copies: see the suggestions.",
    "speed_up": "Batches too small to share anything: raise --batch_size and --update_frequency.",
}
# Why a row of the table is not judged.
ABSENT = {
    "gpu_use": "about a GPU",
    "memory": "about a GPU's memory",
    "copies": "about a GPU",
    "compute": "about a GPU",
    "speed_up": "was not measured in this run",
}

LINES = {
    "total": "Total: {seconds} s, {episodes} episodes/s",
    "gpu_memory": "GPU memory: {used} of {all} GB allocated ({share:.0%})",
    "gpu_memory_unknown": "GPU memory: not measured",
    "no_gpu": "No GPU: what only a GPU has is left out below. The process held {peak} GB at most.",
    "warnings": "Warnings:",
    "no_warnings": "Warnings: none",
    "suggestions": "Suggestions:",
    "no_suggestions": "Suggestions: none; no rule found anything to change",
    "suggestion": "{flag}: {why} ({tried})",
    "tried": "tried: {ratio:.2f} times as fast",
    "tried_on_top": "tried: {ratio:.2f} times as fast, on top of {others}",
    "on_top": "{changes} on top of {others}",
    "tried_together": "tried only together with {others}: {ratio:.2f} times as fast",
    "to_be_done": "not tried",
    "not_tried": "not tried; movelist profile --tune tries it",
    "convert": "movelist convert {data} --out store, then --data store",
    "tuned": "Together: {flags}{ratio}",
    "tuned_ratio": " ({ratio:.2f} times as fast, {low} to {high})",
    "source": "{source}; updates: {updates}, episodes in each: {episodes}, steps: {steps}, seconds: {seconds} (+/- "
    "{spread:.0%})",
    "speed": "{steps} steps/s, {actions} legal actions/s",
    "halves": "Collecting {rollout:.0%} of the time ({rollout_seconds} s), updating {update:.0%} ({update_seconds} s)",
    "spans": "Where the time goes (host{device}):",
    "spans_device": ", then device",
    "copies": "Copies in an update: {to_device} MB to the device, {to_host} MB back, {count} in all, {pageable} from "
    "or "
    "to memory that is not pinned; {share:.1%} of the device's time",
    "compute_share": "Compute kernels take {share:.1%} of the device's time",
    "efficiency": "Efficiency: the formulas need {flops} Gflop an update, done at {rate} Gflop/s; a matrix product of "
    "this width runs at {matmul} Gflop/s here, so {efficiency:.1%}",
    "waits": "Waits: {count} in an update, {known} of which it needs",
    "waits_rehearsed": "Waits: {count} in an update on a GPU, {known} of which it needs (judged by how the program is "
    "written)",
    "waits_rollout": "Beside them, {count} reads while collecting: each network call is asked for its choices",
    "known": "needed",
    "extra": "not needed",
    "unseen": "What this detector cannot see:",
    "memory": "Memory: {peak} of {reserved} GB reserved are allocated at the peak ({share:.0%}); the rest is "
    "fragmented or kept for later; the card has {all} GB, {card:.0%} of it reserved",
    "process": "The process held {peak} GB at most",
    "machine": "Machine: {cpu}, {cores} cores, {threads} threads; {memory} GB; {platform}; Python {python}, torch "
    "{torch}, "
    "movelist {movelist}",
    "machine_gpu": "{device} with {memory} GB",
    "use": "The GPU is used {use:.0%} of the time by the driver's count and computes {busy:.0%} of it; samples: "
    "{samples}",
    "use_by_driver": "The GPU is used {use:.0%} of the time by the driver's count, which counts any kernel, however "
    "small; samples: {samples}",
    "use_by_events": "The GPU computes {busy:.0%} of the time; the driver's count is not available",
    "cpu_use": "The process uses {cpu:.0%} of all cores",
    "lists": "Lists: {mean} legal actions on average, {longest} at most; {unique:.1%} of a batch's are different; "
    "padded "
    "to the longest of a batch they would be {padding} times as many",
    "batches": "A batch has {steps} steps; a network call while playing answers {states} states",
    "batches_loaded": "A batch has {steps} steps; nothing was played",
    "recompiles": "torch.compile made {count} graphs",
    "histogram": "Steps by length of their list:",
    "looks": "Looks, against the plain one: {looks}",
    "goals": "Goals:",
    "goal": "{name}: {value}, goal {goal}: {outcome}",
    "unknown": "-",
    "per_sample": "The update makes {ours} steps/s; one network call a step, bit by bit, {base} on the same steps: "
    "{ratio} "
    "times",
    "trials": "Tried, in turns with the settings as they were:",
    "trial": "{changes}: {ratio:.2f} times ({low} to {high}), {steps} steps/s, {outcome}",
    "helped": "helped",
    "hurt": "slower",
    "within": "no difference beyond the spread",
    "times": "{ratio} times",
    "absent": "{outcome} ({reason})",
    "unit": "s",
    "comma": ", ",
    "semicolon": "; ",
}

# Said while it goes on.
PROGRESS = {
    "measuring": "Measuring, about {seconds:,.0f} s ...",
    "ratio": "Measuring these settings by turns with --preset {preset}, about {seconds:,.0f} s ...",
    "ratio_found": "With these settings this machine learns from {ratio:.2f} times as many steps a second as with "
    "--preset {preset} ({low:.2f} to {high:.2f}, {pairs} pairs).",
    "trying": "Trying {count} changes by turns, about {seconds:,.0f} s ...",
    "trial": "{changes}{on_top}: {steps:,.0f} steps/s, {ratio:.2f} times ({low} to {high}, {pairs} pairs)",
    "on_top": ", on top of {others}",
    "together": "All together: {trial}",
    "preset": "What was faster, as a preset: movelist train --preset {file}",
    "flags": "Or as flags: {command}",
    "learning": "Measured is speed: what --batch_size and --update_frequency do to learning is another question.",
    "nothing": "Nothing that was tried is faster: the settings stay as they are.",
    "files": "Files: {folder} ({names}).",
}

LOOKS = {"plain": "plain timing", "spans": "spans", "trace": "trace", "waits": "waits"}

COMPARE = {
    "faster": "{speed:.2f} times as fast as before, beyond the noise ({noise:.2f}).",
    "slower": "{speed:.2f} times as fast as before, so slower, beyond the noise ({noise:.2f}).",
    "same": "{speed:.2f} times as fast as before: within the noise ({noise:.2f}), so no difference is shown.",
    "unknown": "{speed:.2f} times as fast as before; with so few updates nobody can tell this from noise.",
    "machine": "Another machine: {name} was {old}, is {new}.",
    "setting": "Another setting: {name} was {old}, is {new}.",
    "source": "Another source: it was {old}, is {new}.",
    "beyond": "beyond the noise",
    "within": "within the noise",
    "unclear": "",
    "row": "{name}: {old} -> {new}",
    "head_old": "before",
    "head_new": "after",
    "head_ratio": "ratio",
    "rule": "The noise is twice the standard error of the updates' median seconds, of both profiles together; a ratio "
    "from 1/{noise:.2f} to {noise:.2f} may be chance. A part of an update is held against the noise of the whole "
    "update, so a short part may change more than that and still be within it.",
}
FIGURES = {
    "steps_per_second": "steps/s, by median updates",
    "episodes_per_second": "episodes/s",
    "actions_per_second": "legal actions/s",
    "rollout": "collecting, ms for 1,000 steps",
    "update": "updating, ms for 1,000 steps",
    **{f"span_{name}": f"{text}, ms for 1,000 steps" for name, text in SPANS.items()},
    "efficiency": "share of the matrix product rate",
    "compute_share": "compute, share of device time",
    "copies_share": "copies, share of device time",
    "copied_bytes": "copied, MB an update",
    "waits": "waits an update",
    "extra_waits": "waits not needed, an update",
    "gpu_use": "GPU use by the driver's count",
    "gpu_busy": "GPU busy",
    "process_peak": "memory of the process at most, GB",
    "peak_allocated": "GPU memory at the peak, GB",
    "reserved": "GPU memory reserved, GB",
    "steps_per_update": "steps an update",
    "speed_up": "speed-up over one call a step",
}

# What the wait detector itself says, as regular expressions; here its own words serve.
DETECTOR: dict[str, str] = {}

PAGE = {
    "title": "Profile of {source}",
    "created": "made {created} by {command}",
    "seconds": "seconds in all",
    "steps_per_second": "steps/s",
    "episodes_per_second": "episodes/s",
    "actions_per_second": "legal actions/s",
    "goals": "Goals",
    "goal": "Goal",
    "measured": "Measured",
    "wanted": "Wanted",
    "outcome": "Outcome",
    "to_do": "What to do",
    "warnings": "Warnings",
    "suggestions": "What to change",
    "spans": "Where the time goes",
    "host": "host",
    "device": "device",
    "span": "Span",
    "share": "Share",
    "seconds_head": "Seconds",
    "device_seconds": "On the device",
    "updates": "Seconds of each update",
    "waits": "Where the host waits for the device",
    "place": "Place",
    "kind": "What it does",
    "count": "In an update",
    "needed": "Needed?",
    "no_waits": "None was seen.",
    "lists": "Lists of legal actions",
    "length": "Legal actions",
    "steps": "Steps",
    "trials": "What was tried",
    "change": "Change",
    "ratio": "Ratio",
    "spread": "Spread",
    "compare": "Before and after",
    "figure": "Figure",
    "machine": "Machine",
    "device_reading": "Device and memory",
    "settings": "Settings",
    "defaults": "Settings, all of them",
    "foot": "Everything on this page stands in profile.json, too; nothing was loaded from a network.",
    "language": "en",
}
ARENA = {
    "language": "en",
    "title": "Arena: {game}",
    "verdict": "{player} is the strongest: {rating:+.0f} points, {low:+.0f} to {high:+.0f}",
    "player": "Player",
    "players": "players",
    "games_head": "games",
    "deals": "Deals",
    "rating": "Rating",
    "interval": "95 % interval",
    "score": "Score",
    "ratings": "Ratings",
    "cross": "Who scored how much against whom",
    "cross_note": "A row's player against a column's. A cell is the mean of the deals, its 95 % interval is below it.",
    "reading": "How to read it",
    "points": "A player that is 100 points ahead is expected to score 0.64, 200 points 0.76, 400 points 0.91.",
    "zero": "0 is {player}.",
    "mean": "0 is the mean of all players.",
    "games": "{games:,} games. What counts is a deal, in which both play every seat on the same cards; an equal player "
    "gets 0.5.",
    "openings": "The game has no chance: each deal starts with {openings} decisions by lot.",
    "repeated": "{repeated:,} deals went as one before and are not counted.",
    "truncated": "{truncated:,} games ({share:.1%}) were cut off at max_turns, and count as they stood.",
    "forfeits": "{forfeits:,} games were forfeited by a player that failed.",
    "luck": "Fits the ratings least: {player} scored {score:.3f} against {against}, where they say {expected:.3f}. "
    "Luck alone often does that.",
    "no_order": "Fits the ratings least: {player} scored {score:.3f} against {against}, where they say {expected:.3f}. "
    "That is more than luck: one number for each player does not tell who beats whom here.",
    "foot": "The results stand in results.jsonl beside this page; nothing was loaded from a network.",
}
