"""Types that the models of settings (`yamame.cli.settings`) are made of.

A `Section` is a pydantic model of some keys. A `Node` is a part of a configuration whose keys no
model declares: the arguments of a ``_target_``, or free data.
"""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, PrivateAttr, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from yamame.checks import Bounds
from yamame.files.identity import is_one_of


class Node(Mapping[str, Any]):
    """Read-only part of a configuration whose keys no model declares.

    Keys are attributes, too. Mappings inside are nodes again; lists are returned as they are.

    Args:
        data: Plain data.
        key: Dotted key of the node in the configuration; empty for the whole configuration.
        trust: Packages whose classes the configuration may name, as the setting ``trust``.

    >>> env = Node({"_target_": "yamame_envs.Gym", "settings": {"deep": 3}}, key="env")
    >>> env.settings.deep, "id" in env, env.settings
    (3, False, Node({'deep': 3}, key='env.settings'))
    """

    __slots__ = ("_data", "_key", "_trust")

    def __init__(self, data: Mapping[str, Any], *, key: str = "", trust: tuple[str, ...] = ()):
        self._data = data
        self._key = key
        self._trust = trust

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Node":
        """Return a whole configuration, which has the packages to trust itself."""
        trust = config.get("trust")
        # A wrong value is reported where the setting is checked.
        return cls(config, trust=tuple(trust) if isinstance(trust, list) else ())

    def __getitem__(self, name: str) -> Any:
        value = self._data[name]
        if isinstance(value, Mapping):
            return Node(value, key=self.key_below(name), trust=self._trust)
        return value

    def __getattr__(self, name: str) -> Any:
        # Slots are looked up here while an object is unpickled, before they are set.
        if name.startswith("__") or name in Node.__slots__:
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{self._key or 'configuration'} has no key {name!r}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"Node({dict(self._data)!r}, key={self._key!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_node, (self._data, self._key, self._trust)

    def key_below(self, name: str) -> str:
        """Return the dotted key of an entry."""
        return f"{self._key}.{name}" if self._key else name


def _make_node(data: Mapping[str, Any], key: str, trust: tuple[str, ...]) -> Node:
    return Node(data, key=key, trust=trust)


def data_of(part: "Node | Section") -> dict[str, Any]:
    """Return a copy of the plain data of a part of the configuration.

    >>> data_of(Node({"settings": {"deep": [3]}}))
    {'settings': {'deep': [3]}}
    """
    if isinstance(part, Node):
        return copy.deepcopy(dict(part._data))
    # A section that was built without a configuration has nothing but its fields.
    return part.model_dump() if part._node is None else data_of(part._node)


def place_of(node: Node) -> tuple[str, tuple[str, ...]]:
    """Return the dotted key of a node, and the packages to trust."""
    return node._key, node._trust


def keys_set_in(value: Any, key: str, overridden: Collection[str]) -> list[str]:
    """Return the keys of a value, or below it, that the command line set.

    Args:
        value: Value in the configuration.
        key: Dotted key of the value.
        overridden: Keys that the command line set or removed.

    >>> keys_set_in({"b": 1, "c": 2}, "a", ["a", "a.b", "a.removed", "seed"])
    ['a.b']
    """
    found = []
    for name in overridden:
        is_below = name.startswith(f"{key}.") and _has(value, name.removeprefix(f"{key}."))
        if name == key or is_below:
            found.append(name)
    # A mapping that was set as a whole stands for the keys in it.
    return [name for name in found if not any(other.startswith(f"{name}.") for other in found)]


def _has(value: Any, key: str) -> bool:
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
    return True


class Section(BaseModel):
    """Model of the keys of a mapping in the configuration.

    Types are strict: a boolean is no integer, and a string is no boolean. Integers are accepted as
    floats. Keys without a field are refused if the command line sets them. Those of YAML files are
    dropped, because a preset may be written for several recipes.
    """

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        use_attribute_docstrings=True,
        # A command line needs the models of one recipe.
        defer_build=True,
    )

    _node: Node | None = PrivateAttr(default=None)

    def __getitem__(self, name: str) -> Any:
        """Return a field, for functions that take plain dictionaries as well."""
        if name not in type(self).model_fields:
            raise KeyError(name)
        return getattr(self, name)

    @model_validator(mode="wrap")
    @classmethod
    def _from_node(cls, value: Any, handler: Callable[[Any], Self], info: Any) -> Self:
        if not isinstance(value, Node):
            return handler(value)
        overridden = info.context or ()
        entries = {}
        for name, entry in value.items():
            key = value.key_below(name)
            is_set = is_one_of(key, overridden) or bool(keys_set_in(entry, key, overridden))
            # Pydantic refuses what remains and has no field.
            if name in cls.model_fields or is_set:
                entries[name] = entry
        section = handler(entries)
        section._node = value
        return section


class Config(Section):
    """Model of the whole configuration of a recipe.

    Attributes:
        first_word: Key whose value the first argument of the command line is if it has no ``=``.
        open_keys: Keys below which the command line may set anything, without a plus.
    """

    first_word: ClassVar[str | None] = None
    open_keys: ClassVar[tuple[str, ...]] = ()


AnyConfig: TypeAlias = Any
"""A whole configuration: typed settings (`Config`), or as OmegaConf composes it. Both have keys as
attributes, so that functions take either.
"""


@dataclass(frozen=True)
class Rule:
    """Condition of a value, as metadata of ``typing.Annotated``.

    Args:
        words: Values that meet the condition, in words that follow "must be"; empty for a condition
            that is mentioned only where it fails.
        holds: Returns whether a value meets it.
    """

    words: str
    holds: Callable[[Any], bool]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Let pydantic check the condition after the type."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: Any) -> Any:
        if not self.holds(value):
            raise PydanticCustomError("rule", "condition does not hold")
        return value


def is_distinct(values: Sequence[Any]) -> bool:
    """Return whether a list has at least one value, and no value twice.

    >>> is_distinct([0, 1]), is_distinct([0, 0]), is_distinct([])
    (True, False, False)
    """
    return 0 < len(values) == len(set(values))


@dataclass(frozen=True)
class Verbatim:
    """Metadata of a string whose value the command line takes as it is, with ``=`` and ``,``."""


def refuse(condition: str) -> PydanticCustomError:
    """Return the error of a section whose values do not fit each other.

    Args:
        condition: Condition that is not met, in words that follow "must".
    """
    return PydanticCustomError("condition", "{condition}", {"condition": condition})


_DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "npu", "mtia", "xla")
LARGEST_INTEGER = 2**63 - 1


def _fits_64_bits(value: Any) -> bool:
    return bool(abs(value) <= LARGEST_INTEGER)


def _is_printable(value: Any) -> bool:
    # Who types None means null, and would get a run or a file of this name.
    return value not in ("", "None") and value.isprintable()


def _is_device(value: Any) -> bool:
    name, colon, number = value.partition(":")
    # Not str.isdecimal(), which accepts digits of all scripts.
    has_number = number.isascii() and number.isdigit()
    return name in _DEVICES and (has_number or not colon)


def _has_target(value: Any) -> bool:
    return "_target_" in value


FITS_64_BITS = Rule("", _fits_64_bits)
PRINTABLE = Rule("", _is_printable)

Integer = Annotated[int, FITS_64_BITS]
Count = Annotated[int, Bounds(least=1), FITS_64_BITS]
Natural = Annotated[int, Bounds(least=0), FITS_64_BITS]
Seeds = Annotated[
    list[Natural],
    Rule("a list of at least one, all different, each an integer of at least 0", is_distinct),
]
Side = Annotated[int, Bounds(least=1, most=1_000_000)]
"""Number of copies side by side. A typing error would otherwise ask for all memory there is."""
Text = Annotated[str, PRINTABLE]
VerbatimText = Annotated[str, PRINTABLE, Verbatim()]
Device = Annotated[
    str, Rule(f"one of {', '.join(_DEVICES)}, or cuda:1 with its number", _is_device)
]
"""Name of a device. Whether the machine has it is checked when a run begins."""
Target = Annotated[Node, Rule("a mapping with a _target_", _has_target)]
"""Class or function with its arguments, which its own signature checks."""
