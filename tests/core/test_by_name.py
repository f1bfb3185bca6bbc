import sys

import pytest

from movelist.core.by_name import check_name, find, name_of
from movelist.core.errors import SettingsError


class Thing:
    def __init__(self, size, *, heads=1, word=""):
        self.size, self.heads, self.word = size, heads, word


NOT_CALLABLE = 3


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A file with code of one's own, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "my_parts_7.py"
    path.write_text("class Thing:\n    def __init__(self, heads=1): self.heads = heads\nnumber = 3\n", encoding="utf-8")
    yield path
    sys.modules.pop("my_parts_7", None)


@pytest.mark.parametrize("place", ["my_parts_7", "my_parts_7.py", "./my_parts_7.py"])
def test_a_class_is_found_by_its_module_or_its_file(place, module):
    assert find(f"{place}:Thing")().heads == 1
    assert find(f"{place}:Thing(heads=4)")().heads == 4
    assert find(f"{place}:Thing") is find(f"{place}:Thing")  # a file is run once


def test_a_file_may_lie_in_a_folder_with_any_name(tmp_path):
    folder = tmp_path / "训练 (2)"
    folder.mkdir()
    (folder / "a.py").write_text("def f(x=0): return x", encoding="utf-8")
    assert find(f"{folder / 'a.py'}:f")() == 0


def test_keywords_may_be_any_plain_values():
    made = find("fractions:Fraction(numerator=1, denominator=-3)")()
    assert (made.numerator, made.denominator) == (-1, 3)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "module",
        "module:",
        ":Class",
        "module:Class(3)",
        "module:Class(**x)",
        "module:a b",
        "m:C(x=f())",
        "m:1",
        "m:C(",
    ],
)
def test_texts_that_name_nothing_are_refused_before_anything_is_imported(name):
    with pytest.raises(SettingsError, match=r'^this names no code: got .*"module:Class"'):
        check_name(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_parts_8:Thing", "there is no module my_parts_8: got my_parts_8:Thing. Start in the folder that holds it"),
        ("no_such.py:Thing", "there is no such file: got no_such.py:Thing"),
        ("my_parts_7:Thimg", "my_parts_7 has no Thimg: .*Did you mean 'Thing'"),
        ("my_parts_7:number", "this is neither a class nor a function: got my_parts_7:number, of type int"),
    ],
)
def test_what_cannot_be_found_is_one_line_with_what_to_do(name, message, module):
    with pytest.raises(SettingsError, match=message):
        find(name)


@pytest.mark.parametrize("source", ["import nothing_of_this_name\n", "1 / 0\n"])
@pytest.mark.parametrize("ending", ["", ".py"])
def test_a_module_that_fails_is_named_with_its_own_error_and_line(source, ending, module):
    module.write_text("\n" + source, encoding="utf-8")
    with pytest.raises(SettingsError, match=r"cannot be imported: got \w+Error: .*my_parts_7.py, line 2"):
        find(f"my_parts_7{ending}:Thing")


def test_names_lead_back_to_what_they_name(module):
    for thing in (find("my_parts_7.py:Thing"), find("fractions:Fraction"), Thing.__init__):
        name = name_of(thing)
        assert name is not None
        if thing is not Thing.__init__:
            assert find(name) is thing


def test_what_is_made_in_a_function_has_no_name():
    assert name_of(lambda: 0) is None
    assert name_of(3) is None
