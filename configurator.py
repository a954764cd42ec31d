"""Config files and flags onto a dataclass: defaults, then files, then flags; later wins.

    config, name = load(TrainConfig, ["config/san_param.py", "--seed=43", "--muon_lr=0.03"])

A config file is Python assignments (`n_layer = 4`, `muon_lr = 0.04 * 8**0.5`); names that start
with an underscore and imported modules are scratch. `--help` prints every option with its comment.
"""

import dataclasses
import difflib
import inspect
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType


class UserError(ValueError):
    """A user's mistake; the message is one line. Programs end on it through fail()."""

    code = 2  # exit code


class ConfigError(UserError):
    """An option that does not exist, has the wrong type, or does not fit the others."""


def split(cls, argv, bare=()):
    """(words, flags as --key=value) of argv, where --key value and a bare --truth_value do as well.
    bare: what a flag that stands alone means, by key. Prints the options and ends on --help."""
    types = {f.name: f.type for f in dataclasses.fields(cls)}
    words, flags, rest = [], [], iter(argv)
    for word in rest:
        if word in ("-h", "--help"):
            print(describe(cls))
            raise SystemExit(0)
        key = word.removeprefix("--")
        if not word.startswith("-"):
            words.append(word)
            continue
        if key in types and types[key] in (bool, "bool"):
            word += "=true"
        elif key in bare:
            word += f"={bare[key]}"
        elif key in types and (value := next(rest, None)) is not None:
            word += f"={value}"
        flags.append(word)
    return words, flags


def load(cls, argv, bare=()):
    """Returns (cls instance, run name = last config file's stem, or ""). Raises ConfigError."""
    types = {f.name: f.type for f in dataclasses.fields(cls)}
    values, name = {}, ""
    files, flags = split(cls, argv, bare)
    for file in files:
        for key, value in _read(file).items():
            values[key] = _convert(key, value, types, file)
        name = Path(file).stem
    for flag in flags:
        key, equals, text = flag.removeprefix("--").partition("=")
        if not flag.startswith("--") or key in types and not equals:
            raise ConfigError(f"flag {flag!r}: write it as --key=value")
        values[key] = _convert(key, text, types, f"--{key}", parse=True)
    return cls(**values), name


def _read(file):
    if not Path(file).is_file():
        near = difflib.get_close_matches(
            Path(file).stem, [p.stem for p in Path("config").glob("*.py")], n=1
        )
        hint = f"; did you mean config/{near[0]}.py?" if near else "; see the files in config/"
        raise ConfigError(f"no config file {file}{hint}")
    try:
        found = runpy.run_path(str(file))
    except Exception as error:
        raise ConfigError(f"{file} does not run: {type(error).__name__}: {error}") from error
    return {k: v for k, v in found.items()
            if not k.startswith("_") and not isinstance(v, ModuleType)}


def _convert(key, value, types, where, parse=False):
    """value as the type of option key. Only int to float is converted; text only from flags."""
    if key not in types:
        near = difflib.get_close_matches(key, types, n=1)
        hint = f"did you mean {near[0]}?" if near else "--help lists the options"
        raise ConfigError(f"{where}: no option is called {key}; {hint}")
    kind = types[key] if isinstance(types[key], type) else {"int": int, "float": float,
                                                            "bool": bool, "str": str}[types[key]]
    if parse and kind is not str:
        value = _parse(value.strip(), kind)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or value != value:
        raise ConfigError(f"{where}: {key} is {kind.__name__}, not {value!r}")
    return value


def _parse(text, kind):
    """The number or truth value that text spells, or text itself: then the type check refuses."""
    if kind is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        return words.get(text.lower(), text)
    for number in (int, float):
        try:
            value = number(text)
        except ValueError:
            continue
        # 1e5 is a whole number too.
        return int(value) if kind is int and value % 1 == 0 else value
    return text


def describe(cls):
    """Every option with its type, default and comment, as text."""
    lines = [f"{(inspect.getdoc(cls) or '').splitlines()[0]}", ""]
    pattern = re.compile(r"^    (\w+): (\w+) = (.*?)(?:  # (.*))?$|^    # (.*)$")
    for line in inspect.getsource(cls).splitlines():
        if match := pattern.match(line):
            key, kind, default, comment, heading = match.groups()
            lines.append(f"\n{heading}" if heading else
                         f"  --{f'{key}={default.strip()}':32} {kind:6}{comment or ''}")
    return "\n".join(lines)


def model_fields(config, cls):
    """The fields of config that cls has, by name: how training options reach ModelConfig."""
    return {f.name: getattr(config, f.name) for f in dataclasses.fields(cls)}


def fail(error):
    """End the program on a user's mistake: one line, exit code 2 unless the error has its own."""
    print(f"{Path(sys.argv[0]).name}: {' '.join(str(error).split())}", file=sys.stderr)
    raise SystemExit(getattr(error, "code", 2))
