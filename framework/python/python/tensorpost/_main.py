"""The program's own main module, in its workers: tells a worker where it is, and loads it there.

A class of a script is pickled as ``__main__.Config``. A worker loads the script once, when an actor or one of
its arguments needs it, under the name by which ``multiprocessing`` knows a main module in a child:
``__mp_main__``. So a pool that an actor starts by spawn or forkserver finds it in turn. Code under
``if __name__ == "__main__"`` does not run.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import types
import zipimport
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from typing import Any

from ._errors import NodeError

MAIN = "__mp_main__"
NAMES = ("__main__", MAIN)


def _folder() -> str:
    """Returns the working directory; the root if it no longer exists."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


# Relative paths are mostly relative to this folder, even if the program changes its directory later.
first_folder = _folder()


def absolute(entry: str) -> str:
    """Returns the absolute path of an entry of ``sys.path``, or of a file, as this program's own imports
    resolve it."""
    if os.path.isabs(entry):
        return entry
    # Python caches the folder in which it first found such an entry.
    known = getattr(sys.path_importer_cache.get(entry), "path", None) if entry else None
    if isinstance(known, str) and os.path.isabs(known):
        return known
    found = [os.path.join(folder, entry) for folder in (_folder(), first_folder)]
    return os.path.normpath(next((one for one in found if os.path.exists(one)), found[0]))


def surroundings() -> dict[str, Any]:
    """Returns the surroundings of this program for a worker, as children of ``multiprocessing`` get them.
    They do not depend on later changes of the working directory."""
    contexts = sys.modules.get("multiprocessing.context")
    return {
        "path": [absolute(entry) for entry in sys.path if isinstance(entry, str)],
        "argv": list(sys.argv),
        "folder": _folder(),
        "start": None if contexts is None else contexts._default_context.get_start_method(allow_none=True),
    }


_entered = False


def enter(told: Mapping[str, Any]) -> None:
    """Gives this worker the surroundings of the program; each further actor in it gets only its modules."""
    global _entered
    sys.path[:] = told["path"]
    if _entered:
        return
    _entered = True
    sys.argv[:] = told["argv"]
    with contextlib.suppress(OSError):
        os.chdir(told["folder"])
    if told["start"] is not None:
        import multiprocessing

        multiprocessing.set_start_method(told["start"], force=True)


def names() -> Mapping[str, Any]:
    """Returns the names of the script. Under a profiler ``sys.modules`` may have the profiler's module
    instead, but the script is on the call stack."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in NAMES:
            return frame.f_globals
        frame = frame.f_back  # type: ignore[assignment]
    return vars(sys.modules["__main__"])


def where(what: str) -> tuple[str | None, str | None]:
    """Returns the main module's name, or else its file, for a worker to load. ``what`` is defined there."""
    of = names()
    name = getattr(of.get("__spec__"), "name", None)
    if name is not None and name not in NAMES:
        # `python -m app.run`
        return name, None
    file = of.get("__file__")
    if isinstance(file, str) and file != "<stdin>":
        file = absolute(file)
        # The second case is a script in an archive.
        if os.path.isfile(file) or os.path.isfile(os.path.dirname(file)):
            return None, file
        place = f"{file}, which is no file that can be read once more"
    elif sys.argv[:1] == ["-c"]:
        place = "the text of `python -c`"
    elif sys.argv[:1] in (["-"], [""]) and not hasattr(sys, "ps1"):
        place = "a script on standard input"
    else:
        place = "an interactive session"
    raise NodeError(f"`{what}` is defined in {place}, where a worker cannot find it; define it in a module")


def holds(thing: Any) -> str | None:
    """Returns the name of a class or a function in the main module, if it is defined there."""
    if not isinstance(thing, type | types.FunctionType) or thing.__module__ not in NAMES:
        return None
    first, *rest = thing.__qualname__.split(".")
    found: Any = names().get(first)
    for part in rest:
        found = getattr(found, part, None)
    # An object that is not found under its name cannot be pickled, here as elsewhere.
    return thing.__qualname__ if found is thing else None


_loaded: types.ModuleType | None = None
_loading = threading.RLock()


def load(name: str | None, file: str | None) -> types.ModuleType:
    """Loads the main module of the program in a worker. It runs the first time."""
    global _loaded
    with _loading:
        if _loaded is not None:
            return _loaded
        own = sys.modules["__main__"]
        try:
            if file is not None:
                _loaded = _of_file(file)
            elif name is not None:
                _loaded = sys.modules[MAIN] = sys.modules["__main__"] = importlib.import_module(name)
            else:
                raise NodeError("the program has no main module that a worker can find; define what is sent to it in a module")
        except BaseException as error:
            sys.modules.pop(MAIN, None)
            sys.modules["__main__"] = own
            if not isinstance(error, NodeError):
                error.add_note('a worker loads the script once more: put what runs once under `if __name__ == "__main__":`')
            raise
        return _loaded


def _of_file(file: str) -> types.ModuleType:
    module = types.ModuleType(MAIN)
    module.__file__ = file
    if os.path.isfile(file):
        loader: Any = (SourcelessFileLoader if file.endswith((".pyc", ".pyo")) else SourceFileLoader)(MAIN, file)
        # As Python does for a script, without a compiled file beside it.
        code = loader.get_code(MAIN) if isinstance(loader, SourcelessFileLoader) else loader.source_to_code(loader.get_data(file), file)
    else:
        loader = zipimport.zipimporter(os.path.dirname(file))
        code = loader.get_code(os.path.splitext(os.path.basename(file))[0])
    module.__loader__ = loader
    # Before it runs, because its definitions are looked up there.
    sys.modules[MAIN] = sys.modules["__main__"] = module
    exec(code, vars(module))
    return module


def named(qualname: str, name: str | None, file: str | None) -> Any:
    """Returns a class or a function of the main module, in a worker."""
    found: Any = load(name, file)
    for part in qualname.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise NodeError(
                f'`{qualname}` is not there when a worker loads the script, as what stands below `if __name__ == "__main__"`; define it above'
            ) from None
    return found
