"""The writers for engines, compiled and run; and the example of a loader of one's own."""

import runpy
import shutil
import subprocess

import numpy as np
import pytest

from movelist.cli import main
from movelist.data.record_rules import join
from recorded import EXAMPLE, read_all

ENGINES = EXAMPLE.parents[1] / "engines"


REFUSED = {
    "C++": """#include "movelist_writer.hpp"
int main(int, char** argv) {
    movelist::Writer writer(argv[1], "toy", {1});
    writer.begin({{"human"}});
    for (double reward : {1.0, std::nan(""), 2.0}) {
        try { writer.step(0, {0.5f}, {0xfffffffffffffff9u, 9}, 1, reward); } catch (const std::invalid_argument&) {}
    }
    writer.end({3.0});
}""",
    "C#": """public static class Refused {
    public static void Main(string[] arguments) {
        using (var writer = new Movelist.Writer(arguments[0], "toy", new[] { 1 })) {
            writer.Begin(new[] { Movelist.Player.Human });
            foreach (double reward in new[] { 1.0, double.NaN, 2.0 }) {
                try { writer.Step(0, new[] { 0.5f }, new long[] { -7, 9 }, 1, reward); }
                catch (System.ArgumentException) { }
            }
            writer.End(new[] { 3.0 });
        }
    }
}""",
}


def compiled(language, folder, program=None):
    """The command of the recorder, or of a program of one's own."""
    made = folder / ("program.cpp" if language == "C++" else "Program.cs")
    if program:
        made.write_text(program, encoding="utf-8")
    if language == "C++":
        if not shutil.which("g++"):
            pytest.skip("no g++")
        flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror"]
        subprocess.run(
            [
                "g++",
                *flags,
                f"-I{ENGINES}",
                str(made if program else ENGINES / "toy_recorder.cpp"),
                "-o",
                str(folder / "toy"),
            ],
            check=True,
        )
        return [str(folder / "toy")]
    if not (shutil.which("mcs") and shutil.which("mono")):
        pytest.skip("no mono")
    sources = [str(made if program else ENGINES / "ToyRecorder.cs"), str(ENGINES / "MovelistWriter.cs")]
    subprocess.run(["mcs", "-warnaserror", *sources, f"-out:{folder / 'toy.exe'}"], check=True)
    return ["mono", str(folder / "toy.exe")]


@pytest.mark.parametrize("language", ["C++", "C#"])
def test_an_engine_records_what_movelist_reads(tmp_path, language):
    command = compiled(language, tmp_path)
    recording = tmp_path / "games.jsonl"
    recording.write_bytes(b'{"format":"movel')  # a crash left half a header; then runs add to the file
    for _ in range(2):
        subprocess.run([*command, str(recording), "50"], check=True, capture_output=True)
    parts, (problem,) = read_all(recording)
    columns = join(parts)
    assert problem.place == "line 1" and len(columns) == 100
    rest, problems = read_all(recording, start=columns.position(60))
    assert not problems and sum(map(len, rest)) == 39 and rest[0].widths == columns.widths
    assert np.unique(columns.raw.state_NS).tolist() == [0.0, np.float32(0.1)]
    stones = columns.raw.state_NS.argmax(axis=1)
    first = columns.raw.action_id_A[columns.raw.action_offsets[:-1]]
    assert (first == -(2**63) + 1).all()
    counts = np.diff(columns.raw.action_offsets)
    assert (counts == np.minimum(3, stones)).all()
    assert np.abs(columns.raw.log_prob_N + np.log(counts)).max() < 1e-6  # float32
    assert columns.version_EP.tolist() == [[3, -1]] * 100
    # The one who takes the last stone wins: that is the mover of the last step.
    last = columns.raw.episode_offsets[1:] - 1
    assert (columns.raw.return_EP[np.arange(100), columns.raw.player_N[last]] == 1).all()
    run = ["--update_frequency", "64", "--hidden_dim", "8", "--no-tensorboard", "--out", str(tmp_path / "run")]
    assert main(["train", "--data", str(recording), *run]) == 0


@pytest.mark.parametrize("language", ["C++", "C#"])
def test_a_step_that_a_writer_refuses_leaves_nothing_behind(tmp_path, language):
    command = compiled(language, tmp_path, REFUSED[language])
    subprocess.run([*command, str(tmp_path / "a.jsonl")], check=True)
    (columns,), problems = read_all(tmp_path / "a.jsonl")
    assert not problems and columns.raw.reward_N.tolist() == [1, 2]
    assert columns.raw.action_id_A.tolist() == [-7, 9] * 2  # in C# from signed numbers


def test_a_loader_of_ones_own_is_learned_from(capsys):
    runpy.run_path(str(EXAMPLE.parents[1] / "from_my_loader.py"), run_name="__main__")
    entropy = float(capsys.readouterr().out.split("entropy ")[1].split(",")[0])
    assert entropy < 0.4  # from 1.2, the mean log of 2 to 5
