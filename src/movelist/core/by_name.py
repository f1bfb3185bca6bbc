"""Code of one's own by its name: "module:Class" or "folder/file.py:Class", with keywords as in "module:Class(heads=4)".

What is named is imported, and so run: take names only from where you would take a program.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from movelist.core.errors import SettingsError, nearest

HANDED_IN = "handed in: "  # begins the name of what only the program that made it can make again
EXAMPLES = '"module:Class", "file.py:Class" or "module:Class(keyword=1)"'


def check_name(name: str) -> None:
    """Refuse a text that can name nothing; nothing is imported.

    Raises:
        SettingsError: Says what a name looks like.
    """
    _parse(name)


def find(name: str) -> Callable[..., Any]:
    """What a name names, with its keywords filled in.

    Args:
        name: "module:Class", "file.py:Class", either with keywords of plain values in brackets. A module is looked for
            on Python's path, then in the current folder; a file from the current folder.

    Raises:
        SettingsError: There is no such module, file or name, it raised while it was imported, or it cannot be called.

    Example:
        >>> find("fractions:Fraction(denominator=4)")(3)
        Fraction(3, 4)
    """
    place, attribute, keywords = _parse(name)
    module = _file(place, name) if place.endswith(".py") else _module(place, name)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            close = nearest(part, [known for known in vars(found) if not known.startswith("_")])
            do = f"Did you mean {close!r}?" if close else None
            raise SettingsError(f"{place} has no {part}", got=name, where=getattr(module, "__file__", None), do=do)
        found = getattr(found, part)
    if not callable(found):
        raise SettingsError("this is neither a class nor a function", got=f"{name}, of type {type(found).__name__}")
    return functools.partial(found, **keywords) if keywords else found


def name_of(thing: object) -> str | None:
    """A name under which `find` gets a class or function again; None for one made in a function, say."""
    module, attribute = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if module is None or attribute is None or "<" in attribute:
        return None
    if module == "__main__" or module.startswith(_FILES):
        file = getattr(sys.modules.get(module), "__file__", None)
        return f"{file}:{attribute}" if file and file.endswith(".py") else None
    return f"{module}:{attribute}"


def with_whole_path(name: str) -> str:
    """The same name from any folder: a file's path from the root; a module's name stays as it is.

    Raises:
        SettingsError: The text can name nothing.
    """
    place, _, _ = _parse(name)
    return str(Path(place).resolve()) + name[len(place) :] if place.endswith(".py") else name


def files_in(pickled: bytes) -> list[str]:
    """The files that a pickle needs of those that `find` imported: another process imports them before it unpickles."""
    files = [(name, module) for name, module in list(sys.modules.items()) if name.startswith(_FILES)]
    return [str(module.__file__) for name, module in files if name.encode() in pickled]


def import_file(path: str) -> None:
    """Import what another process's `files_in` named.

    Raises:
        SettingsError: The file is not there, or it raised while it was imported.
    """
    _file(path, path)


_FILES = "movelist_file_"
T = TypeVar("T")


# The first colon behind which a name stands, and nothing but its keywords: a path may hold colons and brackets, too.
_NAME = re.compile(r"(?P<place>.+?):(?P<attribute>[^\W\d]\w*(?:\.[^\W\d]\w*)*)(?P<keywords>\(.*\))?", re.DOTALL)


def _parse(name: str) -> tuple[str, str, dict[str, Any]]:
    """(module or file, attribute, keywords)."""
    match = _NAME.fullmatch(name)
    keywords = None if match is None else keywords_in(match["keywords"] or "")
    if match is None or keywords is None:
        raise SettingsError("this names no code", got=name, expected=EXAMPLES)
    return match["place"], match["attribute"], keywords


def plain_call(text: str) -> tuple[str, dict[str, Any]]:
    """A name and the plain values in the brackets behind it: "mcts(simulations=200)".

    Raises:
        SettingsError: It is not written so.
    """
    _, attribute, keywords = _parse(f"a:{text}")
    return attribute, keywords


def keywords_in(brackets: str) -> dict[str, Any] | None:
    """The keywords in brackets behind a name, as in "(heads=4)", none in ""; None if they are no plain values."""
    try:
        call = ast.parse(f"f{brackets or '()'}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(word.arg is None for word in call.keywords):
            return None
        return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (ValueError, SyntaxError):
        return None


def _module(place: str, name: str) -> ModuleType:
    try:
        return _imported(lambda: importlib.import_module(place), name)
    except ModuleNotFoundError as error:
        if not place.startswith(error.name or "\0"):
            raise _failed(error, name) from error
    here = str(Path.cwd())
    sys.path.append(here)  # last, so that a file of the folder hides no installed package
    try:
        return _imported(lambda: importlib.import_module(place), name)
    except ModuleNotFoundError as error:
        sys.path.remove(here)
        if not place.startswith(error.name or "\0"):
            raise _failed(error, name) from error
        do = "Start in the folder that holds it, add that to PYTHONPATH, or name the file: file.py:Class."
        raise SettingsError(f"there is no module {place}", got=name, do=do) from None


def _file(place: str, name: str) -> ModuleType:
    path = Path(place).resolve()
    if not path.is_file():
        raise SettingsError("there is no such file", got=name, where=str(path))
    # Named after its place, so that it is run once, whoever asks for it.
    module_name = _FILES + hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    main = sys.modules.get("__main__")
    if getattr(main, "__file__", None) and Path(str(main.__file__)).resolve() == path:  # type: ignore[union-attr]
        return main  # type: ignore[return-value]  # the program that is running
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        _imported(lambda: spec.loader.exec_module(module), name)  # type: ignore[union-attr]
    except BaseException as error:
        del sys.modules[module_name]
        if isinstance(error, ModuleNotFoundError):
            raise _failed(error, name) from error
        raise
    return module


def _imported(load: Callable[[], T], name: str) -> T:
    try:
        return load()
    except ModuleNotFoundError:
        raise
    except Exception as error:  # whatever somebody's module raises
        raise _failed(error, name) from error


def _failed(error: Exception, name: str) -> SettingsError:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f"{trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}" if trace is not None else None
    return SettingsError(f"{name} cannot be imported", got=f"{type(error).__name__}: {error}", where=where)
