"""A whole `vllm serve` command line, read as vLLM 0.32 reads it.

    # VLLM_USE_V1=1 vllm serve google/gemma-3-27b-it -tp 2 --max-model-len 32k --port 8000
    # ~~~~~~~~~~~              ~~~~~~~~~~~~~~~~~~~~~ ~~~~~~~~~~~~~~~~~~~~~~~~~ ~~~~~~
    #   ignored                        model         settings of a scenario    ignored

Which flag means what is in `serve_flags`; here is the grammar.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from simulator.scenario import ScenarioError
from simulator.serve_flags import (
    CHANGE_KV_MEMORY,
    HONOURED,
    IGNORED,
    IGNORED_SWITCHES,
    NOT_MODELLED,
    NOT_MODELLED_SWITCHES,
    OFF,
    ONE_WAY_SWITCHES,
    SEVERAL_VALUES,
    SPELLINGS,
)

__all__ = ["ServeCommand", "parse_serve_command"]

MODULES = {"vllm.entrypoints.cli.main": True, "vllm.entrypoints.openai.api_server": False}
"""What `python -m` starts, and whether "serve" comes next."""
SUFFIXES = {"": 1}
SUFFIXES |= {suffix: 1000**power for power, suffix in enumerate("kmgt", 1)}
SUFFIXES |= {suffix: 1024**power for power, suffix in enumerate("KMGT", 1)}
DTYPES = {"float": "float32", "half": "float16"}
"""vLLM's second names."""
DRAFT_KEYS = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}
"""Flags that are keys of `--speculative-config`."""

SWITCHES = {
    *IGNORED_SWITCHES,
    *(name.removeprefix("no-") for name in NOT_MODELLED_SWITCHES),
    *(name for name, kind in HONOURED.items() if kind == "switch"),
}
MEANINGS = {
    "--config": "config",
    **{"--" + name: name for name in {*HONOURED, *IGNORED, *NOT_MODELLED, *SWITCHES}},
    **{"--no-" + name: "no-" + name for name in SWITCHES - ONE_WAY_SWITCHES},
    **SPELLINGS,
}
"""From a flag in full to its name in the tables, or "no-" and a switch's name."""


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """What a server's command line says about KV memory."""

    settings: dict[str, object]
    """Fields of a scenario that the line states, `model` always among them."""
    ignored: tuple[str, ...]
    """What changes no KV memory: as written but without its value, each once."""


def parse_serve_command(words: Sequence[str]) -> ServeCommand:
    """Read the words of a command line; `vllm serve` may stand in front.

    Raises ScenarioError for what vLLM does not know and for what kvplan does not model.
    """
    variables, words = _split_environment(words)
    for name in variables:
        if name in CHANGE_KV_MEMORY:
            raise ScenarioError(f"{name}: changes KV memory, and is not modelled")
    reading = _Reading(ignored=variables)
    line = deque(_arguments(words))
    while line:
        word = line.popleft()
        if word == "--":
            continue
        if _is_flag(word):
            reading.take(_Flag.of(word), line)
        else:
            reading.name_model(word)
    return reading.command()


def _split_environment(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names of the variables that are set in front of the program, and the rest."""
    names: list[str] = []
    for word in words:
        match = re.match(r"([A-Za-z_]\w*)=", word)
        if match is None:
            break
        names.append(match[1])
    return names, list(words[len(names) :])


def _arguments(words: list[str]) -> list[str]:
    """The words after the program and `serve`."""
    is_serve_next = False
    rest = words
    match words:
        case [python, "-m", module, *rest] if re.fullmatch(r"(.*/)?python[\d.]*", python):
            if module not in MODULES:
                raise ScenarioError(f"python -m: must start {' or '.join(MODULES)}, got {module!r}")
            is_serve_next = MODULES[module]
        case ["vllm", *rest]:
            is_serve_next = True
        case [path, "serve", *_] if path.endswith("/vllm"):  # else a model's folder of this name
            rest = words[1:]
        case _:
            pass
    if rest[:1] == ["serve"]:
        return rest[1:]
    if is_serve_next:
        raise ScenarioError(f'vllm: must be followed by "serve", got {rest[0] if rest else ""!r}')
    return rest


def _is_flag(word: str) -> bool:
    """Whether a word begins a setting; a negative number and a sentence are values."""
    before_value = word.partition("=")[0]
    is_dashed = word.startswith("-") and len(word) > 1 and " " not in before_value
    return is_dashed and re.fullmatch(r"-\d+|-\d*\.\d+", word) is None


@dataclass(frozen=True, slots=True)
class _Flag:
    """One flag of the line, before its value is looked for."""

    written: str
    """Without a value."""
    name: str
    """Of the tables, or "no-" and a switch's name."""
    keys: tuple[str, ...] = ()
    """`--flag.key.key`: where in a JSON value."""
    attached: str | None = None
    """The value in `--flag=value`."""

    @classmethod
    def of(cls, word: str) -> "_Flag":
        head, equals, value = word.partition("=")
        if head.startswith("-O"):  # -O3, -O=3 and -O.level=3 besides -O 3
            return cls(head if "." in head else "-O", "optimization-level", (), word[2:].removeprefix("=") or None)
        spelling, *keys = head.split(".")
        return cls(head, _meaning(spelling), tuple(keys), value if equals else None)

    def value(self, line: deque[str]) -> str:
        """The flag's value, taken off the line; several are joined by spaces."""
        if self.attached is not None:
            return self.attached
        if line and (self.keys or not _is_flag(line[0])):
            values = [line.popleft()]
            while self.name in SEVERAL_VALUES and line and not _is_flag(line[0]):
                values.append(line.popleft())
            return " ".join(values)
        if self.name == "hf-token":  # the one that need not have any
            return ""
        raise self.error("needs a value" + (f", got the flag {line[0]!r}" if line else ""))

    def error(self, problem: str) -> ScenarioError:
        return ScenarioError(f"{self.written}: {problem}")


def _meaning(spelling: str) -> str:
    """What a flag means that is written in full, shortened as far as it is unique, or with underscores."""
    if spelling.startswith("--"):
        spelling = spelling.replace("_", "-")
    if spelling in MEANINGS:
        return MEANINGS[spelling]
    begun = sorted(flag for flag in MEANINGS if flag.startswith(spelling))
    if len({MEANINGS[flag] for flag in begun}) == 1:
        return MEANINGS[begun[0]]
    if begun:
        raise ScenarioError(f"{spelling}: is the beginning of {len(begun)} flags of vLLM, {begun[0]} the first")
    raise ScenarioError(f"{spelling}: vLLM 0.32 has no such flag{_near(spelling, MEANINGS)}")


def _near(word: str, right: Iterable[str]) -> str:
    near = get_close_matches(word, list(right), n=1)
    return f"; did you mean {near[0]}?" if near else ""


@dataclass(slots=True)
class _Reading:
    """What has been read so far."""

    ignored: list[str]
    settings: dict[str, object] = field(default_factory=dict)
    draft: dict[str, Any] | None = None
    """The JSON value of `--speculative-config`."""
    dotted_drafts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Its keys that came one by one, by how the flag was written."""
    draft_flags: dict[str, tuple[str, object]] = field(default_factory=dict)
    """Its keys that have a flag of their own: the flag as written, the value."""

    def take(self, flag: _Flag, line: deque[str]) -> None:
        """Read one flag and take its values off the line."""
        if flag.name == "config":
            raise flag.error("kvplan reads no file of flags; put the flags on the line")
        if flag.name.removeprefix("no-") in SWITCHES:
            self._turn(flag, line)
        else:
            self._set(flag, flag.value(line))

    def name_model(self, model: str) -> None:
        """Remember the model; a second one is a word that stands where none belongs."""
        known = self.settings.setdefault("model", model)
        if known != model:
            raise ScenarioError(f"model: is {known!r} already, got {model!r}")

    def command(self) -> ServeCommand:
        """What was read, now that all of it was."""
        if "model" not in self.settings:
            raise ScenarioError("model: is needed, as in: vllm serve google/gemma-3-27b-it")
        draft = self._whole_draft()
        if draft is not None:
            self.settings["speculative_config"] = draft
        return ServeCommand(self.settings, tuple(dict.fromkeys(self.ignored)))

    def _turn(self, flag: _Flag, line: deque[str]) -> None:
        """Turn a switch on or off."""
        name = flag.name.removeprefix("no-")
        value = ".".join(flag.keys) if flag.keys else flag.attached
        if value is None and line and line[0].lower() in {"true", "false"}:
            value = line[0]
        if value is not None:
            other = name if flag.name != name else "no-" + name
            hint = f"; did you mean --{other}?" if value.lower() in {"false", "0"} else ""
            raise flag.error(f"takes no value, got {value!r}{hint}")
        if flag.name in NOT_MODELLED_SWITCHES:
            raise flag.error(f"kvplan does not model {NOT_MODELLED_SWITCHES[flag.name]}; plan without it")
        if name in HONOURED:
            self.settings[name.replace("-", "_")] = flag.name == name
        else:
            self.ignored.append(flag.written)

    def _set(self, flag: _Flag, text: str) -> None:
        """Keep, ignore or refuse the value of a flag that takes one."""
        kind = HONOURED.get(flag.name)
        if flag.name in NOT_MODELLED and not _is_off(flag.name, text):
            right = " or ".join(OFF.get(flag.name, ()))
            hint = f"it must be {right}" if right else "plan without it"
            raise flag.error(f"kvplan does not model {NOT_MODELLED[flag.name]}; {hint}, got {text!r}")
        if kind is None:
            self.ignored.append(flag.written)
        elif kind == "draft":
            self._set_draft(flag, text)
        elif flag.keys:
            raise flag.error(f"takes a value without keys, as in --{flag.name} {text}")
        elif kind == "model":
            self.name_model(text)
        else:
            self._set_field(flag, READERS[kind], text)

    def _set_field(self, flag: _Flag, read: Callable[[str], object], text: str) -> None:
        field_name = flag.name.replace("-", "_")
        try:
            value = read(text)
        except ValueError as error:
            raise flag.error(f"{error}, got {text!r}{_near_number(text)}") from None
        self.settings[field_name] = value
        if value is None:  # as if the flag had not been given, not even before
            del self.settings[field_name]

    def _set_draft(self, flag: _Flag, text: str) -> None:
        """Remember one of the three ways to say who drafts tokens."""
        if flag.name in DRAFT_KEYS:
            try:
                value = _whole(text) if flag.name == "spec-tokens" else text
            except ValueError as error:
                raise flag.error(f"{error}, got {text!r}") from None
            self.draft_flags[DRAFT_KEYS[flag.name]] = (flag.written, value)
        elif flag.keys:
            spelling = flag.written.partition(".")[0].replace("_", "-")
            _put(self.dotted_drafts.setdefault(spelling, {}), flag.keys, text)
        else:
            self.draft = _json_object(flag, text)

    def _whole_draft(self) -> dict[str, Any] | None:
        """All that was said about drafts, as one JSON object; None: nothing."""
        said = [*self.dotted_drafts.values(), *([] if self.draft is None else [self.draft])]
        if len(said) > 1:  # vLLM takes the last and drops the others without a word
            raise ScenarioError("--speculative-config: is written in two ways; put all of its keys in one JSON object")
        draft = {key.replace("-", "_"): value for one in said for key, value in one.items()}
        for key, (written, value) in self.draft_flags.items():
            if key in draft:
                raise ScenarioError(f"{written}: --speculative-config has {key!r} as well, got {value!r}")
            draft[key] = value
        return draft if said or draft else None


def _is_off(name: str, text: str) -> bool:
    """Whether a flag that kvplan does not model has a value at which it changes nothing."""
    values = OFF.get(name, ())
    if text in values:
        return True
    try:
        return float(text) in [float(value) for value in values if value.isdigit()]
    except ValueError:
        return False


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("must be a whole number") from None


def _suffixed(text: str) -> int:
    """A number that may end in k, m, g or t (powers of 1,000) or K, M, G or T (of 1,024, whole numbers only)."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)([kKmMgGtT])\s*", text)
    try:
        if match is None:
            return int(text)
        number, suffix = match.groups()
        return int(float(number) * SUFFIXES[suffix]) if suffix.islower() else int(number) * SUFFIXES[suffix]
    except ValueError:
        raise ValueError("must be a number such as 32768, 32k (32,000) or 32K (32,768)") from None


def _length(text: str) -> int | str:
    return "auto" if text.strip().lower() in {"auto", "-1"} else _suffixed(text)


def _none_or(read: Callable[[str], object]) -> Callable[[str], object]:
    return lambda text: None if text in {"", "None"} else read(text)


def _interval(text: str) -> int | str:
    """Tokens between what is retained; None is what a scenario calls dense."""
    return "dense" if text in {"", "None"} else _whole(text)


READERS: dict[str, Callable[[str], object]] = {
    "dtype": lambda text: DTYPES.get(text, text),
    "interval": _interval,
    "suffixed": _suffixed,
    "suffixed or None": _none_or(_suffixed),
    "suffixed or auto": _length,
    "text": str,
    "text or None": _none_or(str),
    "whole": _whole,
    "whole or None": _none_or(_whole),
}
"""By the kinds in `HONOURED`."""


def _near_number(text: str) -> str:
    """What somebody meant who wrote 40GiB, 1.5M or 32,768 where that is not allowed."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(b?)\s*", text.replace(",", ""), re.IGNORECASE)
    if match is None:
        return ""
    number, letter, binary, unit = match.groups()
    # vLLM's K is 1,024, but never after a decimal point; KB is 1,000 for everybody.
    is_binary = binary or (letter.isupper() and "." not in number and not unit)
    factor = SUFFIXES[letter.upper() if is_binary else letter.lower()]
    return f"; did you mean {round(float(number) * factor)}?"


def _json_object(flag: _Flag, text: str) -> dict[str, Any] | None:
    if text in {"", "None"}:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise flag.error(f"""must be JSON such as '{{"method": "mtp", "num_speculative_tokens": 1}}', got {text!r}""")
    return value


def _put(tree: dict[str, Any], keys: Sequence[str], text: str) -> None:
    """Set the value under dotted keys; a last key that ends in + adds to a list."""
    *parents, last = keys
    for key in parents:
        if not isinstance(tree.get(key), dict):
            tree[key] = {}
        tree = tree[key]
    if last.endswith("+"):
        known = tree.get(last[:-1])
        tree[last[:-1]] = [*(known if isinstance(known, list) else ()), *text.split(",")]
    else:
        tree[last] = _json_or_text(text)


def _json_or_text(text: str) -> object:
    for read in (json.loads, _suffixed):
        try:
            return read(text)
        except ValueError:
            continue
    return text
