"""The readers for engines: compiled, held against torch, and given files that are damaged or meant for others."""

import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from movelist.core.ragged import Segments, log_softmax
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.play.export import export_net, random_features, random_lists
from movelist.play.policy import NetPolicy, Turns, gumbel
from movelist.play.policy_info import describe

ROOT = Path(__file__).resolve().parents[2]
EDGE_IDS = [-7, -1, -(2**63), -(2**62) - 1, 2**63 - 1, 0, 1, 2**53 + 1, 0x0404_0000_0000_0011]
SHAPES = {
    "bits": ModelShape(state_size=11, hidden_dim=24),
    "table": ModelShape(state_size=6, hidden_dim=13, action_encoder="table", num_actions=450),
    "narrow actions": ModelShape(state_size=4, hidden_dim=16, action_hidden_dim=5),
    "bits, features": ModelShape(state_size=4, hidden_dim=16, feature_size=3),
    "table, features": ModelShape(state_size=3, hidden_dim=9, action_encoder="table", num_actions=450, feature_size=20),
    "features": ModelShape(state_size=11, hidden_dim=24, action_encoder="features", feature_size=5),
}
SANITIZED = ["-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
STRICT = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wsign-conversion"]


def run(command, **more):
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300, **more)


def built(command):
    done = run(command)
    assert done.returncode == 0, done.stdout + done.stderr


def compiled(folder, flags):
    if not shutil.which("g++"):
        pytest.skip("needs g++")
    program = folder / "policy_check"
    built(["g++", *STRICT, *flags, "-o", program, ROOT / "tests/engines/policy_check.cpp"])
    return [program]


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("sanitized"), SANITIZED)


@pytest.fixture(scope="module")
def optimized(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("optimized"), ["-O3"])


@pytest.fixture(scope="module")
def csharp(tmp_path_factory):
    if not (shutil.which("mcs") and shutil.which("mono")):
        pytest.skip("needs mono's mcs")
    program = tmp_path_factory.mktemp("csharp") / "PolicyCheck.exe"
    sources = [ROOT / "tests/engines/PolicyCheck.cs", ROOT / "examples/engines/MovelistPolicy.cs"]
    built(["mcs", "-langversion:6", "-warnaserror", f"-out:{program}", *sources])
    return ["mono", program]


@pytest.fixture(params=["sanitized", "csharp"])
def reader(request):
    return request.getfixturevalue(request.param)


def exported(shape, path):
    torch.manual_seed(1)
    net = PolicyValueNet(shape)
    with torch.no_grad():
        net.pair_weight.mul_(30)
    info = describe(net.shape, version="0.1.0", game='斗地主 "\\', policy_version=2)
    export_net(net, info, path, "weights")
    return net


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "policy-2.safetensors"
    exported(SHAPES["bits"], path)
    return path


def case(state, ids, features=(), *, greedy=True, temperature=1.0, top_k=0, seed=0, turn=0):
    """A line for the check programs; repr of a float32's double is read back as the same float32."""
    numbers = [repr(float(number)) for number in [*state, *np.ravel(features)]]
    return " ".join(map(str, [int(greedy), temperature, top_k, seed, turn, len(ids), *map(int, ids), *numbers]))


def choices(reader, path, lines):
    done = run([*reader, "choose", path], input="\n".join(lines) + "\n")
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()
    assert len(rows) == len(lines)
    return [[float(word) for word in row.split()] for row in rows]


def lists(net, num_steps=200):
    state_BS, action_id_A, segments = random_lists(net, num_steps, np.random.default_rng(5))
    offsets = segments.offsets.numpy()
    ids = [np.array(list(dict.fromkeys(action_id_A[start:end].tolist()))) for start, end in pairwise(offsets)]
    if net.shape.action_encoder == "bits":
        ids[0] = np.array(EDGE_IDS)
    return state_BS, ids


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_reader_agrees_with_torch_on_200_lists(reader, shape, tmp_path):
    path = tmp_path / "policy 名.safetensors" if reader[0] != "mono" else tmp_path / "policy.safetensors"
    net = exported(shape, path)
    state_BS, ids = lists(net)
    rng = np.random.default_rng(6)
    features = [random_features(net, len(row), rng) for row in ids]
    told = [() if each is None else each for each in features]
    greedy, drawing = NetPolicy(net, greedy=True), NetPolicy(net)
    lines = [case(state, row, each) for state, row, each in zip(state_BS, ids, told, strict=True)]
    lines += [
        case(state, row, each, greedy=False, seed=n * 7919, turn=n)
        for n, (state, row, each) in enumerate(zip(state_BS, ids, told, strict=True))
    ]
    found = choices(reader, path, lines)
    for n, (state, row) in enumerate(zip(state_BS, ids, strict=True)):
        index, log_prob, *logits = found[n]
        with torch.no_grad():
            one, every = torch.zeros(len(row), dtype=torch.int64), torch.arange(len(row))
            seen = {} if features[n] is None else {"action_features": torch.from_numpy(features[n])}
            encoded = net.encode_ids(torch.from_numpy(row))
            expected = net(torch.from_numpy(state[None]), encoded, one, every, **seen)[0].numpy()
        # Sums of float32 in another order: 1e-5 of the list's largest logit, or of 1.
        np.testing.assert_allclose(logits, expected, atol=1e-5 * max(1.0, np.abs(expected).max()), rtol=0)
        best = greedy.act(state, row, features[n])
        assert (int(index), log_prob) == (best[0], pytest.approx(best[1], abs=1e-5))
        index, log_prob = found[len(ids) + n][:2]
        expected_draw = drawing.act(state, row, features[n], seed=n * 7919, turn=n)
        assert (int(index), log_prob) == (expected_draw[0], pytest.approx(expected_draw[1], abs=1e-5))
    assert len({row[0] for row in found[: len(ids)]}) > 20  # not all the same index


@pytest.mark.parametrize(("temperature", "top_k"), [(0.25, 0), (4.0, 0), (1.0, 3), (2.0, 1), (1.5, 1000)])
def test_temperature_and_top_k(reader, temperature, top_k, small, tmp_path):
    net = exported(SHAPES["bits"], small)
    state_BS, ids = lists(net, 60)
    options = {"temperature": temperature, "top_k": top_k, "greedy": False, "turn": 3}
    found = choices(
        reader, small, [case(s, i, seed=n, **options) for n, (s, i) in enumerate(zip(state_BS, ids, strict=True))]
    )
    for n, row in enumerate(ids):
        index, log_prob, *logits = found[n]
        logit_A = np.float32(logits)
        kept = np.argsort(-logit_A, kind="stable")[: top_k or len(row)]
        drawn_from = np.full(len(row), -np.inf, np.float32)
        drawn_from[kept] = logit_A[kept] / np.float32(temperature)
        expected = log_softmax(torch.from_numpy(drawn_from), Segments.from_counts([len(row)])).numpy()
        noise = gumbel(Turns(np.zeros(0), np.array([len(row)]), row, np.array([n]), np.array([3])))
        assert int(index) == np.argmax(expected + noise)
        assert log_prob == pytest.approx(expected[int(index)], abs=2e-5)


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, 0), (0.5, 0), (1.0, 3), (2.0, 1), (1.0, 4)])
def test_an_id_that_is_there_several_times_is_one_action(reader, temperature, top_k, small):
    net = exported(SHAPES["bits"], small)
    generator = np.random.default_rng(2)
    state_BS, _ = lists(net, 40)
    once = [np.array(EDGE_IDS)[generator.permutation(9)[: generator.integers(1, 9)]] for _ in state_BS]
    rows = [np.r_[row, row[generator.integers(0, len(row), 4)]][generator.permutation(len(row) + 4)] for row in once]
    rows[0] = np.array(EDGE_IDS * 3)
    options = {"temperature": temperature, "top_k": top_k, "greedy": False, "turn": 3}
    plays = list(zip(state_BS, rows, strict=True))
    found = choices(reader, small, [case(s, i, seed=n, **options) for n, (s, i) in enumerate(plays)])
    greedy = choices(reader, small, [case(s, i) for s, i in plays])
    for n, (state, row) in enumerate(plays):
        index, log_prob, *logits = found[n]
        ids, number = np.unique(row, return_counts=True)
        first = np.array([row.tolist().index(value) for value in ids])
        copies = number[np.searchsorted(ids, row)]
        score_U = np.float32(logits)[first] / np.float32(temperature)
        left_out = np.lexsort((first, -score_U))[top_k or len(ids) :]
        score_U[left_out] = -np.inf
        together_U = log_softmax(torch.from_numpy(score_U), Segments.from_counts([len(ids)])).numpy()
        share_A = together_U[np.searchsorted(ids, row)] - np.log(copies).astype(np.float32)
        noise = gumbel(Turns(np.zeros(0), np.array([len(row)]), row, np.array([n]), np.array([3])))
        assert int(index) == np.argmax(share_A + noise)
        assert log_prob == pytest.approx(share_A[int(index)], abs=2e-5)
        # What a recording of it becomes where copies are merged: the log-prob in a list that names each action once.
        chosen, own = NetPolicy(net, greedy=True).act(state, ids)
        place = int(greedy[n][0])
        assert row[place] == ids[chosen] and place == first[chosen]
        assert greedy[n][1] + np.log(copies[place]) == pytest.approx(own, abs=2e-5)


# Of the 64 hashed bits all are 1 with this seed at turn 0 in the first place: the largest noise, far above any score.
LARGEST_NOISE = 2741761586741081495


@pytest.mark.parametrize("top_k", [0, 1])
def test_the_largest_noise_is_finite_as_in_python(reader, top_k, small):
    net = exported(SHAPES["bits"], small)
    state_BS, ids = lists(net, 60)
    noise = gumbel(Turns(np.zeros(0), np.array([1]), ids[0][:1], np.array([LARGEST_NOISE], np.uint64), np.zeros(1)))
    assert noise > 36
    rows = list(zip(state_BS, ids, strict=True))
    found = choices(reader, small, [case(s, i, greedy=False, top_k=top_k, seed=LARGEST_NOISE) for s, i in rows])
    best = [int(np.argmax(row[2:])) for row in found]
    assert len(set(best)) > 5
    # Noise that is infinite would choose even what top_k leaves out.
    assert [int(row[0]) for row in found] == (best if top_k else [0] * 60)


def test_wrong_calls_are_named_and_change_nothing(reader, small):
    state, ids = [0.5] * 11, [1, 2, 3]
    # Infinity less infinity in the second layer: torch gives NaN for all three.
    large = [-5e37, -3.3e38, -2.9e38, -3.3e38, -2e38, 3.3e38, -1.7e38, 2.4e38, -1e36, -2.1e38, 3.3e38]
    lines = [
        case(state[:-1], ids), case([*state[:-1], float("nan")], ids), case(state, []),
        case(state, ids, greedy=False, temperature=-1.0), case([3e38] * 11, ids), case(large, ids),
        case(state, ids),
    ]  # fmt: skip
    lines[1] = lines[1].replace("nan", "NaN")  # as .NET reads it
    done = run([*reader, "choose", small], input="\n".join(lines) + "\n")
    rows = done.stdout.splitlines()
    assert "wrong width: got 10, expected 11" in rows[0]
    assert "the state holds NaN or infinity" in rows[1]
    assert "legal action" in rows[2] and "got 0, expected at least 1" in rows[2]
    assert "the temperature has to be above 0" in rows[3]
    assert "scores are not finite" in rows[4] and "scores are not finite" in rows[5]
    assert rows[6].split()[0] in {"0", "1", "2"}


def test_features_that_are_missing_or_of_another_width_are_named(reader, small, tmp_path):
    path = tmp_path / "featured.safetensors"
    exported(SHAPES["bits, features"], path)
    state, ids = [0.5] * 4, [1, 2]
    lines = [case(state, ids), case(state, ids, [1.0] * 2), case(state, ids, [1.0] * 5 + [float("nan")]),
             case(state, ids, [1.0] * 6)]  # fmt: skip
    lines[2] = lines[2].replace("nan", "NaN")
    rows = run([*reader, "choose", path], input="\n".join(lines) + "\n").stdout.splitlines()
    assert "the action features have the wrong width: got 0" in rows[0] and "3 for each" in rows[0]
    assert "the action features have the wrong width" in rows[1]
    assert "the action features hold NaN or infinity" in rows[2]
    assert rows[3].split()[0] in {"0", "1"}


def test_ids_outside_the_table_are_named(reader, tmp_path):
    path = tmp_path / "policy.safetensors"
    exported(SHAPES["table"], path)
    done = run([*reader, "choose", path], input="\n".join(case([0.5] * 6, [3, bad]) for bad in (450, -1)) + "\n")
    assert done.stdout.splitlines() == [
        f"error: an action id has no row in the table: got {bad}, expected 0 to 449." for bad in (450, -1)
    ]


def test_files_for_others_are_refused(reader, small, tmp_path):
    good = run([*reader, "load", small, '斗地主 "\\', "float32[11]"])
    assert (good.returncode, good.stdout.strip()) == (0, "good")
    other = run([*reader, "load", small, "", "float32[12]"])
    assert other.returncode == 3
    assert "another state layout: got 'float32[11]', expected 'float32[12]'" in other.stdout
    other = run([*reader, "load", small, "chess", ""])
    assert other.returncode == 3
    assert "another game: got '斗地主 \"\\', expected 'chess'" in other.stdout
    for missing in (tmp_path / "none.safetensors", tmp_path):  # a folder, too: its size is any number
        done = run([*reader, "load", missing, "", ""])
        assert done.returncode == 3
        assert "cannot be" in done.stdout


@pytest.mark.parametrize("shape", ["bits", "bits, features"])
def test_damaged_files_are_refused_and_never_crash(reader, shape, tmp_path):
    small = tmp_path / "policy-2.safetensors"
    exported(SHAPES[shape], small)
    # 2,000 cuts and flips, and headers changed by someone who mended the checksum: no way to crash, and none of the
    # plain damage is read. The C++ reader runs with the address and undefined-behaviour sanitizers.
    done = run([*reader, "fuzz", small, "4000"])
    assert done.returncode == 0, done.stdout + done.stderr
    words = done.stdout.split()
    assert int(words[1]) >= 2000 and int(words[1]) + int(words[3]) == 4000
    for size in (0, 7, 100):
        cut = small.with_name("cut.safetensors")
        cut.write_bytes(small.read_bytes()[:size])
        done = run([*reader, "load", cut, "", ""])
        assert done.returncode == 3
        assert "too short" in done.stdout or "its checksum differs" in done.stdout


def test_no_call_after_the_first_allocates(optimized, small, tmp_path):
    table = tmp_path / "table.safetensors"
    exported(SHAPES["table"], table)
    featured = tmp_path / "featured.safetensors"
    exported(SHAPES["bits, features"], featured)
    for path in (small, table, featured):
        done = run([*optimized, "allocations", path])
        words = done.stdout.split()
        assert (words[0], words[2:]) == ("first", ["later", "0"]), done.stdout + done.stderr
        assert int(words[1]) > 0  # the counter counts
