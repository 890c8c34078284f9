"""Numbers on the command line: all are read by one rule, and refused in the same words."""

from collections.abc import Callable
from inspect import signature
from typing import Annotated, Any, get_args, get_origin

from specsim.core.errors import SpecsimError
from specsim.core.reading import number_in

_NAMES = {float: "NUMBER", int: "COUNT"}


def with_numbers(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose numbers may be written as specsim prints them: 1,000 and 90 %.

    Percentages are for shares alone, which are the options of at most 1.
    """
    for name, parameter in signature(command).parameters.items():
        kind, option = parameter.annotation, parameter.default
        if get_origin(kind) is Annotated:
            kind, option = get_args(kind)
        kind = next((each for each in _NAMES if kind == each or each in get_args(kind)), None)
        if kind is not None:
            names = option.param_decls or (f"--{name.replace('_', '-')}",)
            option.parser = _reader(names[0], kind, option.min, option.max)
            option.metavar = option.metavar or _NAMES[kind]
    return command


def _reader(
    option: str, kind: type[float], low: float | None, high: float | None
) -> Callable[[Any], Any]:
    is_share = kind is float and high is not None and high <= 1
    examples = "0.9 or 90%" if is_share else "1000 or 1,000"
    rule = f"should be a {'whole ' if kind is int else ''}number, such as {examples}"

    def read(text: Any) -> Any:
        if not isinstance(text, str):  # a default
            return text
        value = number_in(text, kind, is_share=is_share)
        # No ConfigError: the library that calls this would put a ValueError into its own words.
        if value is None:
            raise SpecsimError(f"{option} {text:.80}: {rule}")
        if (low is not None and value < low) or (high is not None and value > high):
            between = " and ".join(
                f"at {which} {bound:,}"
                for which, bound in (("least", low), ("most", high))
                if bound is not None
            )
            raise SpecsimError(f"{option} {text:.80}: {rule}, {between}")
        return value

    return read
