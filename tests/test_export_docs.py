"""docs/export.md: its recipes are compiled and run on its test vectors."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from movelist.core.action_ids import parse, to_bits, to_text
from movelist.learn.model import ModelShape, PolicyValueNet
from movelist.play.policy_info import describe
from movelist.play.profiles import profile_named
from movelist.play.weights_file import CHECKSUM, weights_of

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
VECTORS = re.findall(r"^\| (-?\d+) \| (0x[0-9a-f]{16}) \| ([a-z0-9, ]+) \|$", TEXT, re.MULTILINE)
WANTED = {-7, -1, -(2**63), -(2**62) - 1, 2**63 - 1, 0}

CPP = """
#include <cstdint>
#include <cstdio>
#include <initializer_list>
RECIPE
int main() {
    float out[64];
    for (std::int64_t id : {IDS}) {
        encode_bits(id, out);
        for (float number : out) std::printf("%d", static_cast<int>(number));
        std::puts("");
    }
}
"""
CSHARP = """
using System;
static class Recipe
{
    RECIPE
    static void Main()
    {
        var output = new float[64];
        foreach (long id in new long[] { IDS })
        {
            EncodeBits(id, output, 0);
            foreach (float number in output) Console.Write((int)number);
            Console.WriteLine();
        }
    }
}
"""


def recipe(language):
    return re.search(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)[1]


def ones(words):
    """The places that a row of the table names."""
    places = {int(place) for place in re.findall(r"\d+", words)}
    return set(range(64)) - places if words.startswith("all") else places


def expected():
    return ["".join(str(int(k in ones(words))) for k in range(64)) for _, _, words in VECTORS]


def test_the_vectors_are_those_of_movelist():
    assert {int(number) for number, _, _ in VECTORS} >= WANTED and len(VECTORS) >= 10
    for (number, pattern, _), row in zip(VECTORS, expected(), strict=True):
        assert to_text(parse(number)) == pattern
        bits = to_bits(torch.tensor([int(number)]))[0].numpy()
        np.testing.assert_array_equal(bits, [float(bit) for bit in row], err_msg=number)


def test_the_recipe_for_gdscript_written_in_python():
    # 1 << k of a signed 64-bit number, as Godot has it: the last one is -2^63.
    masks = [1 << k if k < 63 else -(2**63) for k in range(64)]
    assert "1.0 if (id & (1 << k)) != 0 else 0.0" in recipe("gdscript")
    assert ["".join(str(int(int(number) & mask != 0)) for mask in masks) for number, _, _ in VECTORS] == expected()


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_the_recipe_for_cpp(tmp_path):
    literals = ", ".join(f"static_cast<std::int64_t>({pattern}ull)" for _, pattern, _ in VECTORS)
    source = CPP.replace("RECIPE", recipe("cpp")).replace("IDS", literals)
    (tmp_path / "recipe.cpp").write_text(source, encoding="utf-8")
    subprocess.run(
        ["g++", "-std=c++17", "-Wall", "-Werror", "-o", tmp_path / "recipe", tmp_path / "recipe.cpp"], check=True
    )
    done = subprocess.run([tmp_path / "recipe"], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.split() == expected()


@pytest.mark.skipif(not (shutil.which("mcs") and shutil.which("mono")), reason="needs mono's mcs")
def test_the_recipe_for_csharp(tmp_path):
    literals = ", ".join(f"unchecked((long){pattern}UL)" for _, pattern, _ in VECTORS)
    source = CSHARP.replace("RECIPE", recipe("csharp")).replace("IDS", literals)
    (tmp_path / "Recipe.cs").write_text(source, encoding="utf-8")
    subprocess.run(["mcs", f"-out:{tmp_path / 'Recipe.exe'}", tmp_path / "Recipe.cs"], check=True)
    done = subprocess.run(["mono", tmp_path / "Recipe.exe"], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.split() == expected()


def test_every_tensor_and_field_is_in_the_text():
    for more in ({}, {"action_encoder": "table", "num_actions": 3}):
        net = PolicyValueNet(ModelShape(state_size=2, hidden_dim=4, **more))
        names = [*weights_of(net), CHECKSUM]
        short = {"state_to_pair.bias": ".bias"}
        missing = [name for name in names if f"`{short.get(name, name)}`" not in TEXT]
        info = describe(net.shape, version="1", game="x", policy_version=1)
        missing += [name for name in info.to_metadata() if f"`{name}`" not in TEXT]
        assert not missing


def test_documented_exports_name_files_of_their_profile():
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.md")]
    lines = [line for path in documents for line in path.read_text(encoding="utf-8").splitlines()]
    found = [re.search(r"movelist export .*--out (\S+\.\w+)", line) for line in lines]
    exports = [(match[1], line) for match, line in zip(found, lines, strict=True) if match]
    assert len(exports) >= 6
    for name, line in exports:
        profile = re.search(r"--profile (\w+)", line)
        assert name.endswith(profile_named(profile[1] if profile else "ort").suffix), line
