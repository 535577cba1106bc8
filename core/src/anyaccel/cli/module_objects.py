"""Module objects: `module:object` on the command line, which runs that module."""

from __future__ import annotations

import importlib
import importlib.util
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from anyaccel.arguments import shown
from anyaccel.cli.console import print_line
from anyaccel.errors import AnyaccelError, ConfigError
from anyaccel.suggestions import did_you_mean

_EXAMPLE = "write 'package.module:train', or 'train.py:train'"


def load_object(reference: str) -> tuple[ModuleType, Any]:
    """Run a module and return an object of it. Output of the module goes to standard error, which names the module.

    Args:
        reference: `module:object`: the module as Python imports it, or the path of a file that ends with `.py`. The
            working directory is not added to Python's search path.

    Raises:
        ConfigError: no such module or object, or the module fails.
    """
    name, separator, attribute = reference.rpartition(":")
    if not separator or not name or not all(part.isidentifier() for part in attribute.split(".")):
        hint = (
            f"write '{reference}:NAME', the name of an object in this file" if reference.endswith(".py") else _EXAMPLE
        )
        raise ConfigError(f"{shown(reference)} is not module:object", hint=hint)
    is_file = name.endswith(".py")
    with redirect_stdout(sys.stderr):
        print_line(f"running {name}", stderr=True)
        first, implicit = sys.path[:1], False
        try:
            # the working directory, if `python -m anyaccel` has put it there
            implicit = bool(first) and first[0] in ("", str(Path.cwd())) and Path(sys.argv[0]).name == "__main__.py"
            if implicit:
                sys.path.pop(0)
            module = _run_file(Path(name)) if is_file else importlib.import_module(name)
        except AnyaccelError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"{name} cannot be run: {type(error).__name__}: {error}", hint=_hint_of_failure(name, is_file, error)
            ) from error
        finally:
            if implicit:
                sys.path.insert(0, first[0])
    sys.stderr.flush()  # what the module has printed comes before what follows
    target: Any = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            given = vars(module).items()
            names = [name for name, value in given if not name.startswith("_") and not isinstance(value, ModuleType)]
            hint = did_you_mean(part, names, "name an object of the module")
            raise ConfigError(f"{name} has no {attribute!r}", available=", ".join(names[:20]), hint=hint)
        target = getattr(target, part)
    return module, target


def _hint_of_failure(name: str, is_file: bool, error: BaseException) -> str:
    path = Path(name)
    if is_file and not path.is_file():
        return f"name a file that exists; a relative path starts in {Path.cwd()}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        if not is_file and f"{name}.".startswith(f"{error.name}."):
            return "install it, set PYTHONPATH, or pass the file: 'train.py:train'"
        beside = path.parent / error.name.partition(".")[0]
        if is_file and (beside.is_dir() or beside.with_suffix(".py").is_file()):
            return f"python adds the folder of a script by itself; here, set PYTHONPATH={shlex.quote(str(path.parent))}"
    return "run it with python first"


def _run_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"the file {path} does not exist")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if before is None:
            del sys.modules[path.stem]
        else:
            sys.modules[path.stem] = before
        raise
    return module
